/// Everything a configured runtime knows, for one thread at a time; Runtime adds the lock.
///
/// Split by concern: world.cpp (streams, events, clocks), world_order.cpp (checker, landing), world_memory.cpp (device
/// memory), world_host.cpp (pinned memory, host accesses), world_work.cpp (kernels, copies).
#pragma once

#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/runtime/memory.h"
#include "sim/runtime/pinned.h"
#include "sim/runtime/runtime.h"

namespace noria::sim {

inline constexpr ActorId kHostActor = 0;

/// A stream, as an actor of the vector clocks. The host is actor 0 and has one too, for its epoch and knowledge.
struct Actor {
  StreamRef ref;
  int priority = 0;
  Nanoseconds ready = 0;  ///< when its work so far is done
  Epoch epoch = 0;
  VectorClock known;
  std::uint64_t host_version = 0;                    ///< of the host's knowledge that `known` includes
  std::deque<std::shared_ptr<PendingCopy>> pending;  ///< in order of issue
};

struct Event {
  int device = 0;
  bool timing = false;
  std::uint64_t generation = 0;
  bool reported = false;  ///< a wait before the first record was listed
  VectorClock known;
  Nanoseconds time = 0;
};

/// Prices of one device, in nanoseconds.
struct Prices {
  Nanoseconds launch = 0;
  Nanoseconds kernel_floor = 0;
  Nanoseconds latency = 0;
  Nanoseconds sync = 0;
  Nanoseconds event = 0;
  Nanoseconds alloc = 0;
  std::array<double, kComputeTypes> per_flop{};
  double per_byte = 0;
};

struct Device {
  Device(int index, DeviceConfig const& config, Config const& all);

  int index;
  Profile profile;
  Prices prices;
  DeviceMemory memory;
  Bytes adopted = 0;
  DeviceStats stats;
  std::vector<ActorId> streams;
  std::array<Engine, 2> engines;  ///< host to device and back; the first for both when there is one
  std::optional<std::string> error;
  bool error_sticky = false;
};

/// A block given back that streams may still use.
struct Deferred {
  Block* block = nullptr;
  bool pinned = false;
};

/// One byte range of an operation within one block.
struct Touch {
  Block* block = nullptr;
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool write = false;
};

class World {
 public:
  explicit World(Config config);
  ~World();
  World(World const&) = delete;
  World& operator=(World const&) = delete;

  [[nodiscard]] Config const& config() const { return config_; }
  [[nodiscard]] Device& device(int index);
  [[nodiscard]] Device const& device(int index) const { return const_cast<World*>(this)->device(index); }
  [[nodiscard]] Actor& stream(StreamRef ref);
  [[nodiscard]] Actor const& stream(StreamRef ref) const { return const_cast<World*>(this)->stream(ref); }
  [[nodiscard]] bool has_stream(StreamRef ref) const;
  /// Live blocks of all kinds: how many and how many bytes.
  [[nodiscard]] std::pair<std::uint64_t, Bytes> alive() const;

  // Clocks.
  [[nodiscard]] Nanoseconds host_clock() const { return host_time_; }
  [[nodiscard]] Nanoseconds device_clock(int device) const;
  void advance_host(Nanoseconds time);
  void reset_clocks();

  // Streams and events.
  StreamRef create_stream(int device, int priority);
  bool query_stream(StreamRef ref);
  void synchronize_stream(StreamRef ref);
  void synchronize_device(int device);
  void create_event(EventId id, int device, bool timing);
  void destroy_event(EventId id) { events_.erase(id); }
  void record_event(EventId id, StreamRef ref);
  void wait_event(EventId id, StreamRef ref);
  bool query_event(EventId id);
  void synchronize_event(EventId id);
  [[nodiscard]] Nanoseconds elapsed(EventId begin, EventId end) const;
  [[nodiscard]] Event& event(EventId id);
  [[nodiscard]] Event const& event(EventId id) const { return const_cast<World*>(this)->event(id); }

  // Device memory.
  void* allocate(Bytes bytes, StreamRef ref);
  void free(void* pointer);
  void record_stream(void const* pointer, StreamRef ref);
  void adopt(void* pointer, Bytes bytes, StreamRef ref);
  void release_adopted(void* pointer);
  void empty_cache(int device);
  [[nodiscard]] MemoryInfo memory_info(int device) const;
  [[nodiscard]] std::optional<int> device_of(void const* pointer) const;
  [[nodiscard]] std::optional<BlockInfo> block_info(void const* pointer) const;
  [[nodiscard]] bool is_real(void const* pointer) const;
  void poison(void* pointer, Bytes bytes, StreamRef ref);

  // Host memory.
  void* allocate_pinned(Bytes bytes);
  void free_pinned(void* pointer);
  void record_pinned_use(void const* pointer, StreamRef ref);
  void empty_pinned_cache();
  void register_host(void* pointer, Bytes bytes);
  void unregister_host(void* pointer);
  [[nodiscard]] bool is_pinned(void const* pointer) const;
  void* reserve_host(Bytes bytes);
  void release_reserved_host(void* pointer);
  void host_access(void const* pointer, Bytes bytes, bool write, std::string_view name);

  // Work.
  KernelScope begin_kernel(StreamRef ref, std::string_view name, std::span<Range const> reads,
                           std::span<Range const> writes);
  Interval end_kernel(KernelScope const& scope, KernelCost const& cost, std::span<Range const> outputs);
  CopyResult copy_async(void* destination, void const* source, Bytes bytes, CopyKind kind, StreamRef ref,
                        std::string_view name);

  // Reports.
  [[nodiscard]] std::vector<Race> const& races() const { return races_; }
  [[nodiscard]] std::vector<Finding> const& findings() const { return findings_; }
  void clear_reports();
  void set_checker(CheckerMode mode);
  void throw_deferred();
  [[nodiscard]] DeviceStats stats(int device) const;
  [[nodiscard]] HostStats const& host_stats() const { return host_stats_; }
  void reset_stats(int device);
  void reset_peak_stats(int device);
  void record_timeline(bool on) { timeline_on_ = on; }
  [[nodiscard]] std::vector<Span>& timeline() { return timeline_; }
  [[nodiscard]] FaultPlan& faults() { return faults_; }
  void clear_error(int device) { this->device(device).error.reset(); }

 private:
  [[nodiscard]] bool checking() const { return config_.checker != CheckerMode::kOff; }
  [[nodiscard]] bool naming() const { return checking() || timeline_on_; }
  [[nodiscard]] bool lazy() const { return config_.poison && !config_.dry; }
  std::uint32_t intern(std::string_view name);

  // Order (world_order.cpp).
  /// Starts an operation of a stream: what the host knows, the stream knows now. Returns its epoch.
  Epoch begin_operation(Actor& actor);
  void learn_from_host(Actor& actor);
  [[nodiscard]] ActorId id_of(Actor const& actor) const { return static_cast<ActorId>(&actor - actors_.data()); }
  [[nodiscard]] Block* find(std::uintptr_t address) const;
  /// Appends the blocks that the ranges touch to touches_. In a checking mode, misuse is reported.
  void resolve(Actor const& actor, std::string_view op, std::span<Range const> ranges, bool write);
  void report_misuse(Actor const& actor, std::string_view op, std::pair<std::uintptr_t, std::uintptr_t> bytes,
                     Block const* block, bool write);
  /// Reports the conflicts of touches_ with earlier accesses.
  void check_touches(Actor const& actor, std::string_view op);
  /// Lands what touches_ needs, then notes the accesses.
  void settle_touches(Actor const& actor, std::uint32_t op, Epoch epoch);
  void land_needed(Block& block, std::uintptr_t begin, std::uintptr_t end, bool write, VectorClock const& known);
  void land(PendingCopy& copy);
  /// The host learns what `known` knows; copies in it land.
  void observe(VectorClock const& known);
  void report(Race race, bool may_throw);
  void report(Finding finding, bool may_throw);
  [[nodiscard]] Race race_of(Conflict const& conflict, int device, Access second) const;
  [[nodiscard]] Access access_of(Stamp const& stamp) const;

  // Clocks (world.cpp).
  void wait_until(Device& device, Nanoseconds time, std::string_view what);
  void raise_device_error(Device& device);
  [[nodiscard]] bool poll(Device& device, Nanoseconds time, VectorClock const& known);

  // Memory (world_memory.cpp, world_host.cpp).
  [[nodiscard]] Bytes room(Device const& device) const;
  Block* take_block(Device& device, Bytes bytes, StreamRef ref);
  void count_allocation(Device& device, Bytes asked);
  void count_free(Device& device, Bytes asked);
  void update_reserved(Device& device) const;
  [[noreturn]] void out_of_memory(Device& device, Bytes asked);
  void make_room(Device& device);
  void process_deferred(bool wait);
  void give_back(Deferred const& deferred);
  void poison_free(Block& block, VectorClock const& known);
  void release_segments(Device& device);
  void land_all(Block& block);
  void retire_host_block(Block& block, char const* op);
  void report_bad_free(void const* pointer, Block const* block, char const* what);
  /// Throws SimPinFailure when `bytes` more may not be pinned; charges and books them otherwise.
  void pin(Bytes bytes);
  void add_span(std::string name, SpanKind kind, int device, std::int64_t stream, int engine, Interval time,
                Bytes bytes);

  // Copies (world_work.cpp).
  struct CopyPlan;
  [[nodiscard]] CopyPlan plan_copy(void const* destination, void const* source, Bytes bytes, CopyKind kind,
                                   Device const& device) const;
  Interval charge_copy(CopyPlan const& plan, Device& device, Actor& actor, Bytes bytes);
  void move_bytes(CopyPlan const& plan, PendingCopy copy, Actor& actor);

  Config config_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Actor> actors_;  ///< the host first
  Nanoseconds host_time_ = 0;
  std::uint64_t host_version_ = 1;
  std::unordered_map<EventId, Event> events_;

  std::unique_ptr<PinnedMemory> pinned_;  ///< reserved at the first use
  ForeignBlocks foreign_;                 ///< registered host ranges and adopted device memory
  ForeignBlocks reserved_host_;
  std::vector<Deferred> deferred_;
  std::uint64_t pending_copies_ = 0;
  HostStats host_stats_;
  FaultPlan faults_;

  std::deque<std::string> names_;
  std::unordered_map<std::string_view, std::uint32_t> name_ids_;
  std::vector<Touch> touches_;  ///< of the operation at hand
  std::vector<Race> races_;
  std::vector<Finding> findings_;
  std::exception_ptr unthrown_;  ///< found where nothing may throw
  bool timeline_on_ = false;
  std::vector<Span> timeline_;
};

}  // namespace noria::sim
