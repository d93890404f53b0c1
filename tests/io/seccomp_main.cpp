/// Runs the read engines' contract where io_uring is denied, as in the profiles of many containers.
#include <gtest/gtest.h>
#include <noria/error.h>
#include <seccomp.h>

#include <cerrno>
#include <cstdio>

#include "io/read_engine.h"
#include "io/reader.h"

namespace noria {
namespace {

bool deny_uring() {
  scmp_filter_ctx const filter = ::seccomp_init(SCMP_ACT_ALLOW);
  bool loaded = filter != nullptr;
  for (char const* const call : {"io_uring_setup", "io_uring_enter", "io_uring_register"}) {
    loaded = loaded && ::seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), ::seccomp_syscall_resolve_name(call), 0) == 0;
  }
  loaded = loaded && ::seccomp_load(filter) == 0;
  ::seccomp_release(filter);
  return loaded;
}

TEST(WithoutUring, AutoReadsWithThreads) {
  EXPECT_FALSE(uring_unusable_reason().empty());
  EXPECT_EQ(make_read_engine({})->name(), "threads");
  EXPECT_EQ(Reader().engine_name(), "threads");
}

TEST(WithoutUring, AForcedUringFails) {
  EXPECT_THROW((void)make_read_engine({.kind = EngineKind::kUring}), UnsupportedOperation);
  EXPECT_THROW(Reader({.engine = {.kind = EngineKind::kUring}}), UnsupportedOperation);
}

}  // namespace
}  // namespace noria

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!noria::deny_uring()) {
    std::puts("no seccomp filter can be loaded here: not run");
    return 0;
  }
  return RUN_ALL_TESTS();
}
