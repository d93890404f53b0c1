/// Waiting without holding the Python interpreter up.
#pragma once

#include <mutex>

namespace noria {

/// While one is alive this thread may block: if it holds the interpreter's lock, it has given it away. Set up by the
/// Python bindings; in a C++ program it does nothing.
class BlockingRegion {
 public:
  /// `enter` gives the lock away if this thread holds it and returns a token, null otherwise; `leave` takes it back.
  static void install(void* (*enter)(), void (*leave)(void*));

  BlockingRegion();
  BlockingRegion(BlockingRegion const&) = delete;
  BlockingRegion& operator=(BlockingRegion const&) = delete;
  ~BlockingRegion();

 private:
  void* token_ = nullptr;
};

/// Locks without ever waiting for `mutex` and holding the interpreter at once: the thread that holds the mutex may need
/// it.
std::unique_lock<std::mutex> lock_politely(std::mutex& mutex);

}  // namespace noria
