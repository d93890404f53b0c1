/// The simulated accelerator without PyTorch: devices, streams, events, memory, copies, the virtual clock and the order
/// checker behind one object.
///
/// Note [Eager kernels, lazy copies]
/// Kernels run on the calling thread, on real bytes, between begin_kernel() and end_kernel(): their values are those of
/// program order. A copy between host and device is only noted when it is issued; its destination holds poison. It
/// lands (the bytes move) when an operation that is ordered after it touches its bytes, or when the host observes its
/// completion by a synchronisation, a query that says yes, or a later event. So a program with a missing wait reads
/// poison, and the checker names the pair whatever the timing was. A program whose waits are right sees the values that
/// a real device would give.
///
/// Note [One host]
/// All host threads are one actor with one clock. The runtime cannot see the locks and queues by which threads order
/// themselves, so what one thread has observed counts as known to all. It may thus miss a race between host threads; it
/// never invents one.
///
/// Order is logical (vector clocks over streams and host), time is virtual; neither depends on the wall clock.
/// All members of Runtime are thread-safe. No callback runs under its lock.
#pragma once

#include <noria/bytes.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/runtime/clock.h"
#include "sim/runtime/errors.h"
#include "sim/runtime/fault.h"
#include "sim/runtime/profile.h"
#include "sim/runtime/report.h"
#include "sim/runtime/stats.h"
#include "sim/runtime/timeline.h"

namespace noria::sim {

enum class CheckerMode {
  kRaise,   ///< the second operation of a race throws before it touches a byte
  kRecord,  ///< races and findings are listed, nothing throws
  kOff,     ///< no access is tracked
};

/// "raise", "record", "off"; empty for anything else.
std::optional<CheckerMode> checker_mode(std::string_view name);

struct DeviceConfig {
  Profile profile;
  Bytes memory_bytes = 0;  ///< capacity in place of the profile's; 0: the profile's
};

struct Config {
  std::vector<DeviceConfig> devices;
  CheckerMode checker = CheckerMode::kRaise;
  /// Shapes, accounting, clock and order only: blocks above kSmallBlock are reserved address space that must not be
  /// touched; is_real() tells which bytes exist.
  bool dry = false;
  bool streams = true;            ///< false: create_stream throws UnsupportedOperation
  bool pinned_memory = true;      ///< false: allocate_pinned and register_host throw UnsupportedOperation
  bool caching_allocator = true;  ///< false: each allocation and release costs device time, a release synchronises
  int copy_engines = 2;           ///< per device; 1: both directions share one
  /// Fresh, freed and not-yet-landed bytes are 0xFF (NaN in every float type); copies land late. Off: copies land when
  /// issued. Dry runs have none.
  bool poison = true;
  Bytes pinned_limit_bytes = 0;  ///< page-locked bytes allowed in all; 0: no limit
};

/// Blocks up to this are real memory in a dry run.
inline constexpr Bytes kSmallBlock = Bytes{1} << 20U;
/// Blocks begin at multiples of this and count as multiples of it.
inline constexpr Bytes kBlockAlignment = 512;
/// What poison bytes are.
inline constexpr unsigned char kPoisonByte = 0xFF;

/// A stream of a device. Id 0 is the device's default stream and always exists.
struct StreamRef {
  int device = 0;
  std::int64_t id = 0;
  friend bool operator==(StreamRef const&, StreamRef const&) = default;
};

/// Names an event until destroy_event. 0 is none. Numbers are never used twice, not even after configure().
using EventId = std::uint64_t;

/// Bytes that an operation touches, [pointer, pointer + bytes).
struct Range {
  void const* pointer = nullptr;
  Bytes bytes = 0;
};

/// What a kernel costs: max(flops / peak(type), bytes / memory bandwidth) + floor, on the stream; `launch_seconds` of
/// the profile on the host.
struct KernelCost {
  double flops = 0;
  ComputeType type = ComputeType::kFloat32;
  Bytes bytes = 0;            ///< read and written, in device memory
  Nanoseconds duration = -1;  ///< >= 0: this in place of the formula
};

/// A kernel between begin and end. A value; dropping it (an exception in the kernel) leaves the device usable.
struct KernelScope {
  StreamRef stream;
  std::uint32_t op = 0;
  std::uint64_t epoch = 0;
};

/// When something ran, in virtual time.
struct Interval {
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
};

enum class CopyKind {
  kHostToDevice,
  kDeviceToHost,
  kDeviceToDevice,  ///< within one device: done by a kernel at memory bandwidth; between two: by a copy engine
};

struct CopyResult {
  Interval time;
  bool pageable = false;  ///< the host side was not page-locked: the host has waited and the bytes have landed
};

struct MemoryInfo {
  Bytes free = 0;
  Bytes total = 0;
};

/// A live block as find_block() sees it.
struct BlockInfo {
  void* base = nullptr;
  Bytes bytes = 0;  ///< as asked for
  int device = 0;   ///< -1: pinned host memory
  std::int64_t stream = 0;
};

class Runtime {
 public:
  /// As configured; throws std::invalid_argument for a configuration that makes no sense.
  explicit Runtime(Config config);
  ~Runtime();
  Runtime(Runtime const&) = delete;
  Runtime& operator=(Runtime const&) = delete;

  /// The runtime of the process; throws Error before configure_process(). Never destroyed: at exit, memory may still be
  /// given back by objects that outlive it.
  static Runtime& process();
  /// The same, or null before configure_process(). Cheap.
  static Runtime* process_if_configured() noexcept;
  /// Creates the runtime of the process, or configures it anew.
  static Runtime& configure_process(Config config);
  /// The process is as before configure_process(). The runtime is leaked, since something may still hold memory of it.
  static void forget_process() noexcept;

  /// Starts afresh with another configuration: clocks, streams, events, statistics, reports, faults, timeline.
  /// Throws Error, and changes nothing, while device or pinned blocks are alive (their count and bytes are named).
  void configure(Config config);
  [[nodiscard]] Config const& config() const noexcept;

  // -- Devices
  // ---------------------------------------------------------------------------------------------------------
  [[nodiscard]] int device_count() const noexcept;
  /// Valid until configure().
  [[nodiscard]] Profile const& profile(int device) const;

  // -- Clocks
  // ----------------------------------------------------------------------------------------------------------
  [[nodiscard]] Nanoseconds host_clock() const;
  /// When everything issued to the device is done, and the host clock if that is later.
  [[nodiscard]] Nanoseconds device_clock(int device) const;
  /// When everything issued to the stream is done; says nothing about the host.
  [[nodiscard]] Nanoseconds stream_clock(StreamRef stream) const;
  /// Adds host time, e.g. of Python code or of a disk read that the caller models. `time` >= 0.
  void advance_host(Nanoseconds time);
  /// Lets all outstanding work finish (as synchronize_all() without its cost) and sets every clock to 0.
  void reset_clocks();

  // -- Streams
  // ---------------------------------------------------------------------------------------------------------
  /// A new stream; ids count up from 1 per device and are not reused. Lower `priority` is more urgent; kept, not
  /// modelled. Throws UnsupportedOperation when streams are configured off.
  StreamRef create_stream(int device, int priority = 0);
  [[nodiscard]] bool has_stream(StreamRef stream) const;
  [[nodiscard]] int stream_priority(StreamRef stream) const;
  /// Streams of the device, the default one included.
  [[nodiscard]] std::int64_t stream_count(int device) const;
  /// True when the host clock has reached the end of the stream's work; then that work counts as observed. Each call
  /// costs event_seconds (1 ns at least), so a loop that polls comes to an end.
  bool query_stream(StreamRef stream);
  /// The host waits for the stream. Throws SimDeviceError after an injected copy error; what a kRaise checker found
  /// where nothing may throw (a deallocation) is thrown here too.
  void synchronize_stream(StreamRef stream);
  void synchronize_device(int device);

  // -- Events
  // ----------------------------------------------------------------------------------------------------------
  EventId create_event(int device, bool timing = false);
  /// Unknown ids are ignored.
  void destroy_event(EventId event) noexcept;
  /// The event now stands for the stream's work so far. Waits made before keep the state they saw. An event may be
  /// recorded on another device of the runtime; it then belongs to that one.
  void record_event(EventId event, StreamRef stream);
  /// Later work of the stream starts after the event's state at this moment. Never recorded: counts as done, and is
  /// reported as a finding (never thrown).
  void wait_event(EventId event, StreamRef stream);
  /// True when the host clock has reached the event, or it was never recorded. Costs as query_stream() does.
  bool query_event(EventId event);
  void synchronize_event(EventId event);
  /// Virtual time from `begin` to `end`, may be negative. Throws Error when one of them has no timing, was not recorded
  /// or is not complete.
  [[nodiscard]] Nanoseconds elapsed(EventId begin, EventId end) const;
  [[nodiscard]] std::uint64_t event_generation(EventId event) const;  ///< how often it was recorded

  // -- Device memory
  // ---------------------------------------------------------------------------------------------------
  /// Device memory for work of `stream` (the stream-keyed caching of CUDA's allocator), aligned to kBlockAlignment.
  /// `bytes` 0 gives null. Throws SimOutOfMemory. A block from the cache keeps the access history of its bytes.
  void* allocate(Bytes bytes, StreamRef stream);
  /// Gives a block back; work of its own stream may reuse it at once, after the streams noted by record_stream() have
  /// passed. Never throws: what it finds is listed and, in kRaise, thrown by the next operation or synchronisation.
  void free(void* pointer) noexcept;
  /// The block is used by `stream`: it must not be reused before that stream's work at the time of free() is done.
  /// Unknown pointers are ignored.
  void record_stream(void const* pointer, StreamRef stream);
  /// Memory of the caller's that shall count as device memory (the output of a CPU kernel). It is accounted and checked
  /// as a block, not poisoned, and must stay valid until release_adopted(). Throws SimOutOfMemory. Its history ends
  /// with its release: a race with whoever has these bytes next is not seen, as it is for blocks of allocate().
  void adopt(void* pointer, Bytes bytes, StreamRef stream);
  void release_adopted(void* pointer) noexcept;
  /// Gives cached blocks of the device back to it. Costs alloc_seconds per segment.
  void empty_cache(int device);
  [[nodiscard]] MemoryInfo memory_info(int device) const;
  /// Which device the bytes are on; empty for host memory.
  [[nodiscard]] std::optional<int> device_of(void const* pointer) const;
  /// The live block, device or pinned, that holds this byte.
  [[nodiscard]] std::optional<BlockInfo> find_block(void const* pointer) const;
  /// Whether the bytes exist, i.e. may be read and written: always, except in a dry run for blocks above kSmallBlock.
  [[nodiscard]] bool is_real(void const* pointer) const;
  /// The user overwrites the bytes with poison, on `stream`: a write like a kernel's, without cost in time.
  /// Earlier copies from or to the range that are ordered before it land first.
  void poison(void* pointer, Bytes bytes, StreamRef stream);

  // -- Host memory
  // -----------------------------------------------------------------------------------------------------
  /// Page-locked memory, rounded up to a power of two as PyTorch's host allocator does; freed blocks are cached. Costs
  /// pin_seconds_per_byte when the cache does not serve it. Throws SimPinFailure, UnsupportedOperation. 0 gives null.
  void* allocate_pinned(Bytes bytes);
  /// Never throws. If a copy that uses the block may still run and no record_pinned_use() covers it, that is a race.
  void free_pinned(void* pointer) noexcept;
  /// After free_pinned(), the block is reused only when the stream's work so far has completed.
  void record_pinned_use(void const* pointer, StreamRef stream);
  /// Gives cached pinned blocks back to the system.
  void empty_pinned_cache();
  /// Page-locks an existing range, exactly these bytes. Throws SimPinFailure, UnsupportedOperation, and
  /// std::invalid_argument when it overlaps one that is pinned.
  void register_host(void* pointer, Bytes bytes);
  /// Throws std::invalid_argument when no registered range begins there.
  void unregister_host(void* pointer);
  [[nodiscard]] bool is_pinned(void const* pointer) const;
  /// Address space for pageable host memory of a dry run, never to be touched unless `bytes` <= kSmallBlock.
  void* reserve_host(Bytes bytes);
  void release_reserved_host(void* pointer) noexcept;

  // -- Work
  // ------------------------------------------------------------------------------------------------------------
  /// Announces a kernel before it touches bytes: checks its accesses, lands copies that it needs. Throws SimRace or
  /// SimMisuse in kRaise, and then nothing has happened. The caller then runs the kernel on the bytes and calls
  /// end_kernel(). Ranges outside device and pinned memory are ignored; empty ones too.
  KernelScope begin_kernel(StreamRef stream, std::string_view name, std::span<Range const> reads,
                           std::span<Range const> writes);
  /// Charges the kernel and, for outputs that did not exist before it ran, adds `outputs` to its writes.
  Interval end_kernel(KernelScope const& scope, KernelCost const& cost, std::span<Range const> outputs = {});
  /// begin_kernel and end_kernel in one.
  Interval launch(StreamRef stream, std::string_view name, std::span<Range const> reads, std::span<Range const> writes,
                  KernelCost const& cost);

  /// Issues a copy on `stream`. Both ranges must stay allocated, the source unchanged and the destination unread until
  /// work that is ordered after the copy, or until its completion was observed. A host side that is not pinned makes
  /// the copy synchronous. `name` is for reports and traces.
  CopyResult copy_async(void* destination, void const* source, Bytes bytes, CopyKind kind, StreamRef stream,
                        std::string_view name = {});

  /// Host code reads or writes these bytes now; checked against copies and kernels that use them. Pageable memory is
  /// ignored. Costs no time.
  void host_read(void const* pointer, Bytes bytes, std::string_view name = "host read");
  void host_write(void* pointer, Bytes bytes, std::string_view name = "host write");

  // -- Reports
  // ---------------------------------------------------------------------------------------------------------
  [[nodiscard]] std::vector<Race> races() const;
  [[nodiscard]] std::vector<Finding> findings() const;
  void clear_reports();
  [[nodiscard]] CheckerMode checker() const noexcept;
  /// Switching on starts with an empty history; blocks stay known.
  void set_checker(CheckerMode mode);
  /// In kRaise, throws what a deallocation found, if anything is waiting. synchronize_*() and begin_kernel() do so too.
  void throw_deferred();

  [[nodiscard]] DeviceStats stats(int device) const;
  [[nodiscard]] HostStats host_stats() const;
  void reset_stats(int device);       ///< counts to 0, peaks to the current amounts
  void reset_peak_stats(int device);  ///< peaks only

  void record_timeline(bool on);
  [[nodiscard]] std::vector<Span> timeline() const;
  void clear_timeline();

  // -- Faults
  // ----------------------------------------------------------------------------------------------------------
  void inject(Injection const& injection);
  void clear_injections();
  /// Forgets a sticky device error.
  void clear_error(int device);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace noria::sim
