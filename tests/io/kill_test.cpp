/// A writer of the offload folder that is killed: the folder holds the old weights or the new, and the next run goes
/// on.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <limits>
#include <optional>
#include <random>

#include "io/offload_store.h"
#include "support/offload_model.h"
#include "support/scale.h"
#include "support/temp_dir.h"

namespace noria {
namespace {

using testing::OffloadModel;

// Runs the writer in a child and kills it at the entry or exit of its `last`-th system call; answers how many it made,
// empty when this machine does not allow tracing. Counting calls instead of time makes every point reachable.
std::optional<long> write_and_kill(OffloadModel const& model, std::filesystem::path const& folder, long last) {
  pid_t const child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      ::_exit(77);
    }
    ::raise(SIGSTOP);
    try {
      (void)model.open_or_write(folder);
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) {
    return std::nullopt;
  }
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
  long calls = 0;
  while (calls < last) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
      return calls;
    }
    ++calls;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return calls;
}

// Whether everything in the store is this model's.
bool holds(OffloadStore const& store, OffloadModel const& model) {
  store.verify();
  return store.manifest().describes(model.source(), model.tensors()) && model.differing_tensor(store).empty();
}

TEST(KilledWriter, NeverLeavesWrongWeights) {
  testing::TempDir const base;
  OffloadModel const before(1);
  OffloadModel const after(2);
  (void)before.open_or_write(base / "count");
  std::optional<long> const calls = write_and_kill(after, base / "count", std::numeric_limits<long>::max());
  if (!calls) {
    GTEST_SKIP() << "child processes cannot be traced here";
  }
  ASSERT_GT(*calls, 20);
  std::mt19937_64 random(20);
  int old_weights = 0;
  for (int round = 0; round < testing::scaled(50); ++round) {
    std::filesystem::path const folder = base / ("round" + std::to_string(round));
    bool const had_weights = round % 3 != 0;
    if (had_weights) {
      (void)before.open_or_write(folder);
    }
    long const point = 1 + static_cast<long>(random() % static_cast<std::uint64_t>(*calls));
    SCOPED_TRACE(::testing::Message() << "killed at call " << point << " of " << *calls);
    (void)write_and_kill(after, folder, point);
    if (auto const store = OffloadStore::open(folder)) {
      bool const old = had_weights && holds(*store, before);
      old_weights += old ? 1 : 0;
      EXPECT_TRUE(old || holds(*store, after));
    } else {
      EXPECT_FALSE(had_weights) << "the old weights are gone";
    }
    EXPECT_TRUE(holds(*after.open_or_write(folder), after)) << "the next run cannot go on";
    EXPECT_TRUE(std::ranges::none_of(std::filesystem::directory_iterator(folder),
                                     [](auto const& entry) { return entry.path().extension() == ".tmp"; }));
  }
  EXPECT_GT(old_weights, 0) << "no kill came before the end";
}

}  // namespace
}  // namespace noria
