/// One object per device through which every device call goes: streams, events, memory, copies, statistics, seeds.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <noria/bytes.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace at {
class Tensor;
}  // namespace at

namespace noria {

/// What a device offers. Found once per device by trying each thing, never guessed from its name where trying is
/// possible.
struct Capabilities {
  bool streams = false;            ///< new streams differ from the default one and run beside it
  bool events = false;             ///< events order streams and can be waited for by the host
  bool event_timing = false;       ///< two events give the seconds between them
  bool async_copies = false;       ///< a copy from pinned memory returns before it is done
  bool pinned_memory = false;      ///< page-locked host memory that the device recognises as such
  bool host_register = false;      ///< existing host memory can be page-locked in place
  bool caching_allocator = false;  ///< freed device memory is kept for reuse, and empty_cache() gives it back
  bool memory_stats = false;       ///< allocated and peak bytes of this device index
  bool memory_info = false;        ///< free and total bytes of this device index
  bool unified_memory = false;     ///< host and device are the same memory
  bool generator = false;          ///< random numbers are drawn on the device
  bool float64 = false;
  bool int64 = false;
  bool bfloat16 = false;
};

/// The name of each capability and where it is in the record, in the order of the record.
std::span<std::pair<std::string_view, bool Capabilities::*> const> capability_fields();

/// A point in the work of a stream. Owns the device's event; moves, does not copy.
/// Until it has been recorded it is complete: no call waits for it.
class Event {
 public:
  /// What a device provides behind an Event. Called only between a record() and the destructor, `record` excepted.
  class Handle {
   public:
    Handle() = default;
    Handle(Handle const&) = delete;
    Handle& operator=(Handle const&) = delete;
    virtual ~Handle() = default;
    virtual void record(c10::Stream stream) = 0;
    virtual void block(c10::Stream stream) const = 0;
    virtual bool query() const = 0;
    virtual void synchronize() const = 0;
    /// Seconds from this event to `later`, which is of the same class.
    virtual double elapsed_seconds(Handle const& later) const = 0;
  };

  Event() = default;
  explicit Event(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}

  /// Marks the end of all work given to `stream` so far; replaces an earlier mark.
  void record(c10::Stream stream);
  /// Work given to `stream` from now on starts after the mark. Returns at once.
  void block(c10::Stream stream) const;
  /// True when the marked work is done, or nothing was marked.
  [[nodiscard]] bool query() const;
  /// Returns when the marked work is done. Blocks the calling thread.
  void synchronize() const;
  /// Seconds between the marks of two timing events, both complete. Throws UnsupportedOperation where the device cannot
  /// time, std::invalid_argument when one of them was not recorded.
  [[nodiscard]] double elapsed_seconds(Event const& later) const;

  [[nodiscard]] bool recorded() const noexcept { return recorded_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  std::unique_ptr<Handle> handle_;
  bool recorded_ = false;
};

/// Page-locked host memory. Owns it; moves, does not copy. The owner keeps it until no copy from or to it is running.
class PinnedBlock {
 public:
  using Release = std::function<void(void*)>;

  PinnedBlock() = default;
  PinnedBlock(std::byte* data, Bytes size, Bytes booked, Release release)
      : data_(data), size_(size), booked_(booked), release_(std::move(release)) {}
  PinnedBlock(PinnedBlock&& other) noexcept { swap(other); }
  PinnedBlock& operator=(PinnedBlock&& other) noexcept;
  PinnedBlock(PinnedBlock const&) = delete;
  PinnedBlock& operator=(PinnedBlock const&) = delete;
  ~PinnedBlock() { reset(); }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  /// What was asked for.
  [[nodiscard]] Bytes size() const noexcept { return size_; }
  /// What it costs the machine: `size` rounded up to whole pages where the device can register host memory, to a power
  /// of two where only PyTorch's pinned allocator is there.
  [[nodiscard]] Bytes booked_bytes() const noexcept { return booked_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_, static_cast<std::size_t>(size_)}; }
  explicit operator bool() const noexcept { return data_ != nullptr; }
  /// Gives the memory back now.
  void reset() noexcept;

 private:
  void swap(PinnedBlock& other) noexcept;

  std::byte* data_ = nullptr;
  Bytes size_ = 0;
  Bytes booked_ = 0;
  Release release_;
};

struct MemoryInfo {
  Bytes free_bytes = 0;
  Bytes total_bytes = 0;
};

/// All calls to one device. Every call acts on this device's index and leaves the calling thread's current device and
/// streams as they were, also when it throws (set_current_device and set_current_stream excepted). Thread-safe. What a
/// device lacks is an UnsupportedOperation that names the device, the operation and the reason.
class DeviceBackend {
 public:
  using Factory = std::function<std::unique_ptr<DeviceBackend>(c10::Device)>;

  /// The backend of `device`, made at the first call and kept. A device without an index is the current device of its
  /// type. Throws std::invalid_argument that names what was given and what is there.
  static DeviceBackend& get(c10::Device device);
  /// Makes the backends of a device type from now on; replaces an earlier factory and the backends it made, which stay
  /// valid for those who hold them.
  static void register_backend(c10::DeviceType type, Factory factory);
  /// Device types that can be used now, best first; cpu is always among them, and last. Asks again at every call, so
  /// that a device that plugs in later is found.
  static std::vector<c10::DeviceType> usable_types();

  DeviceBackend(DeviceBackend const&) = delete;
  DeviceBackend& operator=(DeviceBackend const&) = delete;
  virtual ~DeviceBackend() = default;

  /// With an index, cpu and meta excepted.
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  /// Probed at the first call.
  [[nodiscard]] Capabilities const& capabilities();
  /// Why the named capability is off; empty when it is on. Throws std::invalid_argument for another name.
  [[nodiscard]] std::string why_not(std::string_view capability);

  [[nodiscard]] virtual int device_count() const = 0;
  /// The calling thread's current device index of this type.
  [[nodiscard]] virtual int current_device() const = 0;
  /// Makes this device the calling thread's current one; returns the index that was current.
  virtual int set_current_device() = 0;
  /// As set_current_device, for another index of the same type: to put back what it returned. Negative: does nothing.
  virtual void restore_current_device(int index) = 0;

  /// @name Streams
  /// A stream is a value; its device keeps it alive. Every device has the current and the default one. The streams of
  /// cpu are synchronous: work on them is done when the call that gave it returns.
  /// @{
  [[nodiscard]] virtual c10::Stream current_stream() = 0;
  /// Where a device does not name its default stream (xpu), the current one.
  [[nodiscard]] virtual c10::Stream default_stream() = 0;
  /// Lower priorities run first. Devices hand out streams from a pool: two new streams may be the same. Throws
  /// UnsupportedOperation where there is only one queue.
  [[nodiscard]] virtual c10::Stream new_stream(int priority = 0) = 0;
  /// For the calling thread and the stream's device; returns what was current. The current device does not change.
  virtual c10::Stream set_current_stream(c10::Stream stream) = 0;
  /// @}

  [[nodiscard]] virtual Event new_event(bool timing = false) = 0;

  /// @name Memory
  /// @{
  /// Memory of this device, aligned to 512 bytes where the device can. Belongs to the stream that is current: used on
  /// another, it must be kept until that one's work is done. Out of memory is the device's own error.
  [[nodiscard]] virtual c10::DataPtr allocate(Bytes bytes) = 0;
  /// Page-locked host memory of exactly these bytes (see PinnedBlock::booked_bytes), 64-byte aligned or better. Throws
  /// UnsupportedOperation where there is none, noria::Error when the system refuses.
  [[nodiscard]] virtual PinnedBlock allocate_pinned(Bytes bytes) = 0;
  /// True when the device recognises this host address as page-locked.
  [[nodiscard]] virtual bool is_pinned(void const* host) = 0;
  virtual void empty_cache() = 0;
  [[nodiscard]] virtual Bytes memory_allocated() = 0;
  [[nodiscard]] virtual Bytes max_memory_allocated() = 0;
  virtual void reset_peak_memory_stats() = 0;
  [[nodiscard]] virtual MemoryInfo mem_get_info() = 0;
  /// @}

  /// @name Raw copies
  /// In stream order on `stream`, outside autograd, hooks and operator callbacks. They return early only where
  /// capabilities().async_copies is on and the host side is pinned. Both sides must stay allocated, the source
  /// unchanged and the destination unread by others until work on `stream` up to here has completed. Bytes may be 0.
  /// @{
  virtual void copy_to_device(void* device_dst, void const* host_src, Bytes bytes, c10::Stream stream) = 0;
  virtual void copy_to_host(void* host_dst, void const* device_src, Bytes bytes, c10::Stream stream) = 0;
  virtual void copy_on_device(void* dst, void const* src, Bytes bytes, c10::Stream stream) = 0;
  /// Writes page-locked host memory from the host, at once. Where a device watches its host memory, this is how it
  /// knows.
  virtual void write_pinned(void* pinned_dst, void const* host_src, Bytes bytes);
  /// Sets each byte to `byte` (its low 8 bits).
  virtual void fill(void* device_dst, int byte, Bytes bytes, c10::Stream stream) = 0;
  /// @}

  /// Returns when all work given to this device is done.
  virtual void synchronize() = 0;
  /// Returns when all work given to this stream is done.
  virtual void synchronize(c10::Stream stream) = 0;

  /// @name Random numbers of this device index
  /// @{
  virtual void manual_seed(std::uint64_t seed) = 0;
  [[nodiscard]] virtual at::Tensor rng_state() = 0;
  virtual void set_rng_state(at::Tensor const& state) = 0;
  /// @}

  /// True for the errors by which this device says that its memory is used up, also nested ones
  /// (std::nested_exception), and for nothing else.
  [[nodiscard]] virtual bool is_out_of_memory(std::exception const& error) const = 0;

 protected:
  /// A device's answer to capabilities(): what is on, and for what is off the reason.
  struct Probe {
    Capabilities on;
    std::vector<std::pair<std::string_view, std::string>> reasons;
    /// Notes that `capability` is off and why.
    void off(std::string_view capability, std::string reason);
  };

  explicit DeviceBackend(c10::Device device) : device_(device) {}
  /// Tries everything once. Must not throw: what fails is off.
  virtual Probe probe() = 0;

  /// The error for what this device lacks.
  [[noreturn]] void unsupported(std::string_view operation, std::string_view reason) const;

 private:
  Probe const& probed();

  c10::Device device_;
  std::once_flag probe_once_;
  Probe probe_;
};

}  // namespace noria
