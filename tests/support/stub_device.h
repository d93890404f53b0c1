/// A PrivateUse1 device made of host memory, whose streams run nothing until someone waits for them. A test that
/// forgets an event therefore sees the old bytes, every time. What real devices lack can be taken away from it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <noria/bytes.h>

#include <cstdint>
#include <string>

namespace noria::stub {

/// What the device offers. Read at each call, so a test may change it between backends.
struct Settings {
  int devices = 2;
  bool streams = true;            ///< getNewStream gives more than the default stream
  bool stream_pool_only = false;  ///< new streams come from getStreamFromGlobalPool, as in older backends
  bool default_stream = true;
  bool events = true;
  bool timing = true;
  bool synchronize_device = true;
  bool synchronize_stream = false;  ///< as on mps: only events can be waited for
  bool pin = true;                  ///< the pinned allocator works
  bool pin_is_real = true;          ///< isPinnedPtr recognises what it gave
  bool device_allocator = true;     ///< statistics work; off: they throw, as an allocator that is not PyTorch's kind
  bool memory_info = true;
  bool generator = true;
  bool capturing = false;  ///< every stream records a graph
  Bytes capacity = Bytes{1} << 30U;
  Bytes misalign = 0;  ///< added to every device address
};

Settings& settings();

/// Registers the device under `name`, once per process. Back to default settings at each call.
void install(std::string const& name);

/// @name What happened
/// @{
std::int64_t host_syncs();
std::int64_t operator_copies();            ///< copies that came through PyTorch's dispatcher
std::int64_t pending(c10::Stream stream);  ///< work given to the stream and not run
c10::DeviceIndex current_device();         ///< of the calling thread
Bytes allocated(c10::DeviceIndex device);
std::int64_t emptied_caches();
std::size_t pinned_blocks();
/// @}

/// Gives the stream a piece of work that writes `value` to `*target` when it runs.
void enqueue_write(c10::Stream stream, int* target, int value);

}  // namespace noria::stub
