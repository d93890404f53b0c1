#include "engine/blocking.h"

#include <atomic>

namespace noria {
namespace {
std::atomic<void* (*)()> g_enter{nullptr};
std::atomic<void (*)(void*)> g_leave{nullptr};
}  // namespace

void BlockingRegion::install(void* (*enter)(), void (*leave)(void*)) {
  g_leave = leave;
  g_enter = enter;
}

BlockingRegion::BlockingRegion() {
  if (auto* const enter = g_enter.load()) {
    token_ = enter();
  }
}

BlockingRegion::~BlockingRegion() {
  if (token_ != nullptr) {
    g_leave.load()(token_);
  }
}

std::unique_lock<std::mutex> lock_politely(std::mutex& mutex) {
  std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    BlockingRegion const region;
    lock.lock();
  }
  return lock;
}

}  // namespace noria
