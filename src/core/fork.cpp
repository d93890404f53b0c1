#include "core/fork.h"

#include <atomic>

#if __has_include(<pthread.h>)
#include <pthread.h>
#define NORIA_HAS_ATFORK 1
#endif

namespace noria {
namespace {

std::atomic<std::uint64_t> g_forks{0};

#if NORIA_HAS_ATFORK
void count_in_child() { g_forks.fetch_add(1, std::memory_order_relaxed); }

bool count_forks() { return pthread_atfork(nullptr, nullptr, &count_in_child) == 0; }
#else
bool count_forks() { return false; }
#endif

}  // namespace

std::uint64_t forks() {
  [[maybe_unused]] static bool const counting = count_forks();
  return g_forks.load(std::memory_order_relaxed);
}

}  // namespace noria
