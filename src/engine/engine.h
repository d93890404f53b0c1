/// The engine: groups of pages that come to the device just before they are used.
#pragma once

#include <noria/bytes.h>
#include <noria/device_backend.h>
#include <noria/status.h>
#include <noria/trace.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/host_home.h"
#include "engine/page.h"
#include "engine/staging.h"
#include "io/reader.h"
#include "io/scratch_file.h"
#include "plan/grouping.h"
#include "plan/order.h"
#include "plan/ranges.h"
#include "plan/residency.h"
#include "plan/ring_policy.h"
#include "plan/steady_pass.h"

namespace noria {

enum class Pinning { kAuto, kOn, kOff };

struct EngineSettings {
  c10::Device device{c10::kCPU};
  /// Bytes of weights on the device at once, residents and ring together.
  Bytes budget = 0;
  /// Groups in a row that the ring should hold. 2 hides the copies of equal groups behind computation.
  std::uint32_t depth = 2;
  Pinning pin = Pinning::kAuto;
  /// At most this much host memory is page-locked; what is beyond stays pageable.
  Bytes pinned_limit = ~Bytes{0};
  /// Copies on streams of their own, ordered by events, where the device has both.
  bool use_streams = true;
  /// Host memory stays pageable and is copied through a small page-locked ring.
  bool low_memory = false;
  /// Poison what is freed, compare what was loaded with its home.
  bool verify = false;
};

struct Use;
struct UseStack;

/// Note [Locking]
/// One mutex guards the state of all groups. It is never held while user code, the Python interpreter or a device wait
/// may run; messages are collected and said after it is released. A thread that holds the GIL never waits for the
/// mutex, nor for anything else: it gives the GIL away first (lock_politely, BlockingRegion). So one that holds the
/// mutex may wait for the GIL.
class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// Weights as set-up describes them: sizes only. `grouping` says which pages go together.
  struct PageSpec {
    std::string name;
    Bytes bytes = 0;
  };

  /// What each group costs on the device: its pages, padded as the engine places them.
  static std::vector<plan::GroupUse> device_costs(std::span<PageSpec const> pages, plan::Grouping const& grouping);

  /// Groups for a budget. Those of Granularity::kAuto leave room to load ahead where they can, and where they would not
  /// fit any other split may serve; when none does, they are those of the smallest budget that works. Without a budget
  /// nothing is split but for the options.
  static plan::Grouping group(std::span<plan::ModuleNode const> modules, std::span<PageSpec const> pages,
                              plan::GroupingOptions options, std::optional<Bytes> budget);

  static std::shared_ptr<Engine> create(EngineSettings options, std::vector<PageSpec> pages, plan::Grouping grouping);
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;
  ~Engine();

  /// @name Set-up, group by group, from one thread
  /// @{
  [[nodiscard]] std::size_t group_count() const { return groups_.size(); }
  [[nodiscard]] std::vector<plan::PageIndex> const& group_pages(plan::GroupIndex group) const;
  /// Takes host memory for a group, page-locked if it may be.
  void give_memory_home(plan::GroupIndex group);
  /// The group's bytes stay in checkpoint files. Extents are whole pages, in file offsets; `group_offset` of each is
  /// filled in here. Pages without an extent get memory of their own.
  void give_file_home(plan::GroupIndex group, std::vector<std::pair<plan::PageIndex, FileExtent>> extents);
  /// Weights whose home is on disk and that are written to go to a file of their own in `folder`. Without it such a
  /// group moves to host memory.
  void set_scratch_folder(std::filesystem::path folder) { scratch_folder_ = std::move(folder); }
  /// Any other home.
  void give_home(plan::GroupIndex group, HostHome home) { groups_[group].home = std::move(home); }
  /// On the device, padding included.
  [[nodiscard]] Bytes group_bytes(plan::GroupIndex group) const { return groups_[group].bytes; }
  /// Reads the bytes of a group with a file home into memory, which is its home from then on; page-locked as in
  /// give_memory_home. Throws StorageError or IntegrityError; the home is then the file as before.
  void bring_home(plan::GroupIndex group);
  /// Copies the bytes of a page into its home.
  void fill_home(plan::PageIndex page, std::byte const* source);
  /// The page's place in host memory, null when that is on disk.
  [[nodiscard]] std::byte* home_of(plan::PageIndex page) const;
  [[nodiscard]] Page& page(plan::PageIndex index) { return *pages_[index]; }
  [[nodiscard]] std::size_t page_count() const { return pages_.size(); }
  /// Takes the device memory and starts. Throws the device's own out-of-memory error.
  void start();
  /// @}

  /// @name Uses
  /// @{
  /// The forward of `module` is about to run on the calling thread's current stream: its groups are on the device when
  /// this returns, or will be before work that is given to that stream from now on. Throws BudgetError, StorageError,
  /// IntegrityError; the module then has no use.
  void begin(plan::ModuleIndex module);
  /// The forward has ended, well or not. Does nothing when the calling thread has no such use.
  void end(plan::ModuleIndex module) noexcept;
  /// Ends all uses of the calling thread above its first `keep`: an exception may have passed the hooks by.
  void reclaim(std::size_t keep) noexcept;
  /// A begin() failed, and an end() for it will come all the same.
  void note_failed_begin(plan::ModuleIndex module);
  /// Modules of the calling thread's uses, outermost first.
  [[nodiscard]] std::vector<plan::ModuleIndex> uses_of_this_thread() const;
  /// As begin, for groups that are used together by no module: an operator's. None of them when it throws.
  void begin_groups(std::span<plan::GroupIndex const> groups);
  void end_group(plan::GroupIndex group) noexcept;
  /// These groups are on the device and their addresses hold until let_go(), on any thread. Between passes the budget
  /// is divided anew around them. Throws BudgetError when they do not fit it beside the rest.
  void hold(std::vector<plan::GroupIndex> const& groups);
  void let_go(std::vector<plan::GroupIndex> const& groups) noexcept;
  /// What the bindings know of a thread's frames, by its pthread_t. Installed once; null in a C++ program.
  struct Interpreter {
    /// A module of the engine is running there. Called without the engine's lock.
    bool (*runs)(Engine const&, std::uint64_t thread) = nullptr;
    /// It waits for the gradients that other threads compute for it.
    bool (*awaits_backward)(std::uint64_t thread) = nullptr;
  };
  static Interpreter& interpreter();
  /// Between start() and stop(): outside, operators on closed pages are none of ours.
  [[nodiscard]] bool running() const { return running_; }
  /// True when the calling thread holds a use of the group.
  [[nodiscard]] bool in_use_here(plan::GroupIndex group) const;
  /// @}

  /// Copies modified weights to their homes and waits for it. A group whose home is a checkpoint file moves to host
  /// memory first.
  void flush();
  /// As flush, then gives every group's place on the device away. Throws Error while a use is open.
  void evict_all();
  /// From the next use on. Throws BudgetError and keeps the old one.
  void resize(Bytes budget);
  /// The page's bytes in host memory, current as of now. For the disk tier a copy. Keeps the memory alive.
  std::shared_ptr<HostBlock> host_bytes(plan::PageIndex page, std::byte** data);
  /// After this the storage of `page` owns `data`.
  void detach(plan::PageIndex page, c10::DataPtr data);
  /// Onload device cpu: the storage goes on with the bytes of its home.
  void detach_to_home(plan::PageIndex page);
  /// The storage gets device memory of its own. Throws the device's own out-of-memory error.
  void detach_to_device(plan::PageIndex page);
  [[nodiscard]] plan::PageIndex index_of(Page const& page) const;
  /// Gives everything on the device away for good; the pages must have been detached.
  void stop();

  [[nodiscard]] Status status();
  [[nodiscard]] bool is_root(plan::ModuleIndex module) const { return grouping_.roots[module]; }
  [[nodiscard]] EngineSettings const& options() const { return options_; }
  [[nodiscard]] DeviceBackend& backend() const { return backend_; }

  void start_trace();
  [[nodiscard]] std::vector<TraceSlice> stop_trace();

  /// From ~StorageImpl, on any thread.
  void on_storage_death(Page& page) noexcept;
  /// A net load that was needed; counted.
  void count_net_fault();
  /// See Note [Refusals]. The page could not be brought in for an operator of the calling thread: until allow() it
  /// stays away, and the error of an access says why. False when it is there after all.
  bool refuse(Page& page, std::string const& why) noexcept;
  void allow(Page& page) noexcept;

 private:
  /// Timing marks around a wait for a load, read once they have passed.
  struct StallProbe {
    plan::GroupIndex group;
    Event before;
    Event after;
  };

  /// Note [Measuring]
  /// Which groups should stay on the device depends on how long each is computed with and how fast the link is. The
  /// first passes are timed with events that are read once they have passed; then the plan is made anew, once.
  struct UseProbe {
    plan::GroupIndex group;
    Event before;  // its waits for loads
    Event after;
  };
  struct CopyProbe {
    Bytes bytes;
    Event begin;
    Event end;
  };

  enum class Place : std::uint8_t { kEvicted, kLoaded };

  struct FreeMark {
    c10::Stream stream;
    Event event;
  };

  static constexpr std::size_t kNoSlot = ~std::size_t{0};

  struct GroupState {
    std::string name;
    std::vector<plan::PageIndex> pages;
    Bytes bytes = 0;  // on the device, padding included
    HostHome home;
    bool nested = false;  // of a module around others: goes to the high edge of the ring
    Place place = Place::kEvicted;
    Bytes device_offset = 0;
    std::uint32_t uses = 0;
    std::uint32_t holds = 0;    // by hold(): must not move
    std::uint32_t parked = 0;   // of `uses`: by threads that wait for room
    std::uint32_t refused = 0;  // to operators that are under way
    bool open = false;
    bool used_since_load = false;
    std::vector<Event> use_begins;  // while tracing
    std::uint64_t last_use = 0;
    Event ready;
    Event written_back;
    std::shared_ptr<ReadTicket> reading;  // its files, on the way to the device or to a slot of the staging
    std::size_t slot = kNoSlot;           // of the staging, while `reading`
    std::chrono::steady_clock::time_point read_begin;
    std::vector<c10::Stream> waited;  // streams that have waited for `ready`
    std::vector<FreeMark> marks;      // ends of uses that an overwrite must wait for
    std::size_t marks_in_use = 0;
    std::uint64_t loads = 0;
    std::uint64_t stalls = 0;
    double stall_seconds = 0.0;
  };

  /// Note [Parts]
  /// A group that is to come next and finds no place yet comes piece by piece: what is free of its place now, the rest
  /// as others go. So the link works beside computation also where two large neighbours do not fit the ring together.
  /// Until it is whole the group counts as evicted; whoever needs it while its place is still taken starts afresh
  /// elsewhere.
  struct PartLoad {
    plan::GroupIndex group = 0;
    Bytes begin = 0;  // of the piece that it has, in the ring
    Bytes end = 0;
  };

  struct PendingSlice {
    std::string name;
    char const* row;
    Event begin;
    Event end;
  };

  Engine(EngineSettings options, std::vector<PageSpec> pages, plan::Grouping grouping);

  /// The engine belongs to the process that this one was forked from: its threads are not here, and the lock may be
  /// one of theirs for ever.
  [[nodiscard]] bool inherited() const;
  /// Its threads, reads and device memory stay as they are.
  void leave_to_parent();
  /// Locks politely. Throws Error when the engine is inherited.
  [[nodiscard]] std::unique_lock<std::mutex> enter() const;
  /// For what cannot fail: without the lock when the engine is inherited.
  [[nodiscard]] std::unique_lock<std::mutex> enter_anyway() const;

  // All below: the caller holds mutex_.
  void plan_residency();
  void allocate_arena();
  void acquire(std::unique_lock<std::mutex>& lock, std::span<plan::GroupIndex const> groups);
  /// Throws UnsupportedOperation when the current stream records a graph and a group may not stay where it is.
  void refuse_capture(std::span<plan::GroupIndex const> groups) const;
  [[noreturn]] void throw_no_room(plan::GroupIndex group) const;
  void release(plan::GroupIndex group) noexcept;
  /// Threads that wait for room look again.
  void note_release() noexcept;
  /// False when nothing was released for a while.
  bool wait_for_release(std::unique_lock<std::mutex>& lock);
  /// The calling thread's uses, and its place among the users.
  [[nodiscard]] std::shared_ptr<UseStack> const& stack() const;
  [[nodiscard]] std::vector<Use> const& my_uses() const;
  [[nodiscard]] std::vector<Use>& mine() const;  // to change them
  void arrive();
  void depart() noexcept;
  /// See Note [Abandoned uses]. The lock is given away meanwhile.
  bool reclaim_abandoned(std::unique_lock<std::mutex>& lock);
  /// See Note [Parking].
  void wait_for_room(std::unique_lock<std::mutex>& lock, std::span<plan::GroupIndex const> wanted);
  bool take_from_parked();
  /// What was taken from this thread while it waited, and has been loaded again, is readable.
  void open_again(std::unique_lock<std::mutex>& lock, c10::Stream stream);
  /// A group that this thread uses or is about to, and that is not on the device.
  [[nodiscard]] std::optional<plan::GroupIndex> missing(std::span<plan::GroupIndex const> wanted) const;
  /// Somebody who may read it at this moment has it.
  [[nodiscard]] bool in_use(plan::GroupIndex group) const {
    return groups_[group].uses > groups_[group].parked || groups_[group].holds > 0;
  }
  /// As acquire, with the calling thread among the users.
  void acquire_as_user(std::unique_lock<std::mutex>& lock, std::span<plan::GroupIndex const> groups);
  /// Ends uses of the calling thread whose modules are not running any more. The lock is given away meanwhile.
  void reclaim_interrupted(std::unique_lock<std::mutex>& lock);
  /// After a failure between evictions and their consequence: the ring knows again what stands in it.
  void forget_evicted() noexcept;
  /// The ring has room in sum, and not in one run: moves what this thread holds to the high edge. Where the ring is too
  /// small, residents that nobody uses give way until the next plan. False when that would not help or is not ours to
  /// do.
  bool compact(std::span<plan::GroupIndex const> wanted);
  /// What is in use may not move, and residents that nobody uses stand in the way of `wanted`: they give way until the
  /// next plan. False when there would be no room in one run even then.
  bool give_up_residents(plan::GroupIndex wanted);
  /// Bytes in a row that nothing in use stands in.
  [[nodiscard]] Bytes largest_gap() const;
  /// One of these is refused to an operator of another thread.
  [[nodiscard]] bool refused_elsewhere(std::span<plan::GroupIndex const> wanted) const;
  /// The thread whose uses are in the way may be waiting for this one.
  [[nodiscard]] bool may_be_awaited() const;
  bool load(plan::GroupIndex group, std::span<plan::GroupIndex const> sooner, bool demanded);
  [[nodiscard]] std::optional<Bytes> find_place(plan::RoomRequest const& request);
  /// See Note [Parts]. What can be had for a group that has no piece of its place yet, or more for one that has. True
  /// when it is whole then.
  bool load_piece(plan::RoomRequest const& request);
  [[nodiscard]] bool comes_in_part(plan::GroupIndex group) const { return part_ && part_->group == group; }
  /// Gives away what stood in a place that has been taken. When that fails the ring is again as it was `before`.
  void vacate_all(std::span<plan::GroupIndex const> evicted, plan::RangeMap const& before);
  [[nodiscard]] plan::Tenant tenant(plan::GroupIndex group) const;
  void copy_in(plan::GroupIndex group);
  void copy_staged(plan::GroupIndex group, c10::Stream stream);
  /// Copies the bytes of the group from `begin` to `end` to its place, timed while tracing or measuring, and marks it
  /// ready.
  void copy_from(plan::GroupIndex group, std::byte const* source, Bytes begin, Bytes end, c10::Stream stream);
  void verify_load(plan::GroupIndex group);
  /// @name Reads from files. See Note [Reads]
  /// @{
  [[nodiscard]] bool passes_staging(plan::GroupIndex group) const;
  void prepare_disk();
  bool take_slot(plan::GroupIndex group, std::span<plan::GroupIndex const> sooner, bool demanded);
  void start_read(plan::GroupIndex group);
  /// Gives what has been read to the device. Throws what went wrong; the group is then evicted.
  void finish_read(plan::GroupIndex group);
  /// Waits for the read of a group that the caller uses, without the lock, and finishes it.
  void await_read(std::unique_lock<std::mutex>& lock, plan::GroupIndex group);
  /// As await_read, for those who keep the lock.
  void await_read(plan::GroupIndex group);
  void finish_reads_done() noexcept;
  void cancel_read(plan::GroupIndex group) noexcept;
  void give_slot_back(plan::GroupIndex group) noexcept;
  void read_now(plan::GroupIndex group, std::span<std::byte> target);
  /// @}
  void vacate(plan::GroupIndex group);
  void write_back(plan::GroupIndex group);
  void move_home_to_memory(plan::GroupIndex group);
  /// Copies the changed pages to their home in host memory.
  void copy_back(plan::GroupIndex group, c10::Stream stream);
  /// Writes the changed pages to the scratch file, which is their home from then on.
  void write_to_scratch(plan::GroupIndex group, c10::Stream stream);
  void write_page_to_scratch(Page const& page, c10::Stream stream);
  void open_pages(plan::GroupIndex group);
  void close_pages(plan::GroupIndex group);
  void wait_ready(plan::GroupIndex group, c10::Stream stream);
  void prefetch();
  void mark_free(plan::GroupIndex group, c10::Stream stream);
  void drain();
  /// The host waits for all work of the device. Residents are used without marks: whoever overwrites one or copies it
  /// back, which is rare, waits this way.
  void settle();
  [[nodiscard]] std::string describe_need(plan::GroupIndex group) const;
  [[nodiscard]] std::byte* device_address(plan::GroupIndex group) const;
  [[nodiscard]] bool resident(plan::GroupIndex group) const { return residency_.resident[group]; }
  [[nodiscard]] bool any_dirty(plan::GroupIndex group) const;
  void apply_resize();
  void replan_if_learned();
  [[nodiscard]] plan::Residency choose(std::span<plan::GroupIndex const> order) const;
  [[nodiscard]] plan::Speeds speeds(std::span<plan::GroupIndex const> order) const;
  [[nodiscard]] bool worth_changing(plan::Residency const& other, std::span<plan::GroupIndex const> order) const;
  /// Reads the probes when all have passed. False while some have not.
  bool read_measurements();
  void stop_measuring();
  void take_plan(plan::Residency residency);
  /// Nothing stands in the ring, whose size is what residents leave.
  void empty_ring();
  void end_uses_from(std::size_t first) noexcept;
  void finish_entry() noexcept;
  void read_stalls();
  Event timing_event();
  void note_slice(plan::GroupIndex group, char const* row, Event begin, c10::Stream stream);

  std::uint64_t const id_;  // never reused, unlike addresses
  std::uint64_t const forks_;
  EngineSettings options_;
  DeviceBackend& backend_;
  bool async_ = false;  // streams and events order the copies; otherwise everything happens at once
  bool ahead_ = false;  // groups come while others are computed with: by streams, or by reads from files
  plan::Grouping grouping_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<GroupState> groups_;
  std::vector<plan::GroupUse> costs_;
  plan::Residency residency_;

  mutable std::mutex mutex_;
  std::condition_variable released_;
  c10::DataPtr arena_;
  Bytes arena_bytes_ = 0;
  Bytes peak_arena_bytes_ = 0;
  plan::RangeMap ring_;
  std::optional<PartLoad> part_;
  plan::UseOrder order_;
  // The device's default stream until start() takes new ones; unused where async_ is off.
  c10::Stream in_stream_;
  c10::Stream out_stream_;
  std::optional<Bytes> resize_to_;
  std::uint64_t clock_ = 0;  // counts uses
  std::optional<plan::GroupIndex> last_group_;
  bool last_by_module_ = false;  // else the latest use was an operator's, and the next may want its group at once
  std::vector<plan::GroupIndex> planned_order_;
  bool replan_due_ = false;  // residents gave way, or are no longer held
  std::size_t waiting_ = 0;  // threads that have found no room since the latest release
  std::uint64_t releases_ = 0;
  std::size_t holds_ = 0;                           // of all groups
  std::vector<std::shared_ptr<UseStack>> present_;  // of threads with an open use
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Reader> reader_;
  std::filesystem::path scratch_folder_;  // empty: none
  std::unique_ptr<ScratchFile> scratch_;  // made when it is needed
  std::vector<Bytes> scratch_places_;     // of the groups in it
  std::atomic<bool> running_{false};      // between start() and stop()
  bool counted_by_net_ = false;

  Bytes bytes_in_ = 0;
  Bytes bytes_out_ = 0;
  std::uint64_t loads_ = 0;
  std::uint64_t passes_ = 0;
  std::uint64_t stalls_ = 0;
  double stall_seconds_ = 0.0;
  std::uint64_t host_syncs_ = 0;
  std::atomic<std::uint64_t> net_faults_{0};
  std::deque<StallProbe> probes_;
  std::vector<Event> spare_timing_events_;

  bool measuring_ = false;
  std::deque<UseProbe> use_probes_;
  std::deque<CopyProbe> copy_probes_;
  std::vector<double> group_seconds_;  // per use; negative: not measured
  double measured_bytes_ = 0.0;
  double measured_copy_seconds_ = 0.0;
  std::chrono::steady_clock::time_point last_read_;  // the end of the latest

  bool tracing_ = false;
  Event trace_begin_;
  std::vector<PendingSlice> slices_;
};

}  // namespace noria
