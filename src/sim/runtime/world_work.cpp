// Kernels and copies: what they check, what they cost, which bytes move.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "sim/runtime/world.h"

namespace noria::sim {
namespace {

std::uintptr_t address(void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

void* pointer_to(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

constexpr std::size_t kPendingSlack = 64;

Nanoseconds kernel_time(Prices const& prices, KernelCost const& cost) {
  if (cost.duration >= 0) {
    return cost.duration;
  }
  double const compute = cost.flops * prices.per_flop[static_cast<std::size_t>(cost.type)];
  double const memory = static_cast<double>(cost.bytes) * prices.per_byte;
  return std::llround(std::max(compute, memory)) + prices.kernel_floor;
}

}  // namespace

struct World::CopyPlan {
  SpanKind kind = SpanKind::kCopyH2D;
  bool pageable = false;
  bool hash_source = false;  ///< the source is pinned, so that host code may change it unseen
  bool real = true;          ///< both sides exist
  int engine = -1;           ///< -1: a kernel does it
  double bytes_per_second = 0;
};

KernelScope World::begin_kernel(StreamRef ref, std::string_view name, std::span<Range const> reads,
                                std::span<Range const> writes) {
  throw_deferred();
  Actor& actor = stream(ref);
  Epoch const epoch = begin_operation(actor);
  std::uint32_t const op = naming() ? intern(name) : 0;
  if (checking() || pending_copies_ > 0) {
    touches_.clear();
    resolve(actor, name, reads, false);
    resolve(actor, name, writes, true);
    if (checking()) {
      check_touches(actor, name);
    }
    settle_touches(actor, op, epoch);
  }
  return {ref, op, epoch};
}

Interval World::end_kernel(KernelScope const& scope, KernelCost const& cost, std::span<Range const> outputs) {
  Actor& actor = stream(scope.stream);
  Device& device = this->device(scope.stream.device);
  if (!outputs.empty() && (checking() || pending_copies_ > 0)) {
    touches_.clear();
    resolve(actor, names_[scope.op], outputs, true);
    if (checking()) {
      check_touches(actor, names_[scope.op]);
    }
    settle_touches(actor, scope.op, scope.epoch);
  }
  host_time_ += device.prices.launch;
  Nanoseconds const begin = std::max(actor.ready, host_time_);
  Nanoseconds const duration = kernel_time(device.prices, cost);
  actor.ready = begin + duration;
  ++device.stats.kernels;
  device.stats.kernel_time += duration;
  Interval const time{begin, actor.ready};
  if (timeline_on_) {
    add_span(names_[scope.op], SpanKind::kKernel, scope.stream.device, scope.stream.id, -1, time, 0);
  }
  return time;
}

World::CopyPlan World::plan_copy(void const* destination, void const* source, Bytes bytes, CopyKind kind,
                                 Device const& device) const {
  auto const to = device_of(destination);
  auto const from = device_of(source);
  bool const wants_to = kind != CopyKind::kDeviceToHost;
  bool const wants_from = kind != CopyKind::kHostToDevice;
  if (to.has_value() != wants_to || from.has_value() != wants_from) {
    throw std::invalid_argument(
        fmt::format("a copy from {:#x} ({} memory) to {:#x} ({} memory) was said to go from {} "
                    "to {} memory",
                    address(source), from ? "device" : "host", address(destination), to ? "device" : "host",
                    wants_from ? "device" : "host", wants_to ? "device" : "host"));
  }
  CopyPlan plan;
  plan.real = is_real(destination) && is_real(source);
  int const back = config_.copy_engines == 2 ? 1 : 0;
  if (kind == CopyKind::kDeviceToDevice) {
    bool const local = to == from;
    plan.kind = local ? SpanKind::kCopyD2D : SpanKind::kCopyPeer;
    plan.engine = local ? -1 : back;
    plan.bytes_per_second = device.profile.peer_bytes_per_second;
    return plan;
  }
  bool const in = kind == CopyKind::kHostToDevice;
  std::uintptr_t const host = address(in ? source : destination);
  Block const* const block = find(host);
  bool const pinned = block != nullptr && block->state == BlockState::kLive && host + bytes <= block->end();
  plan.kind = in ? SpanKind::kCopyH2D : SpanKind::kCopyD2H;
  plan.pageable = !pinned;
  plan.hash_source = in && pinned;
  plan.engine = in ? 0 : back;
  plan.bytes_per_second = !pinned ? device.profile.pageable_bytes_per_second
                          : in    ? device.profile.h2d_bytes_per_second
                                  : device.profile.d2h_bytes_per_second;
  return plan;
}

Interval World::charge_copy(CopyPlan const& plan, Device& device, Actor& actor, Bytes bytes) {
  host_time_ += device.prices.launch;
  Nanoseconds duration = 0;
  if (plan.engine < 0) {
    KernelCost cost;
    cost.bytes = 2 * bytes;
    duration = kernel_time(device.prices, cost);
  } else {
    duration = device.prices.latency + transfer_time(bytes, plan.bytes_per_second);
  }
  if (auto const slow = faults_.strike(FaultKind::kSlowCopy, device.index)) {
    duration = std::llround(static_cast<double>(duration) * slow->factor) + slow->extra;
  }
  Nanoseconds const ready = std::max(actor.ready, host_time_);
  for (Engine& engine : device.engines) {
    engine.forget_before(host_time_);
  }
  Nanoseconds const begin =
      plan.engine < 0 ? ready : device.engines[static_cast<std::size_t>(plan.engine)].book(ready, duration);
  actor.ready = begin + duration;
  device.stats.copy_time += duration;
  device.stats.pageable_copies += plan.pageable ? 1 : 0;
  if (plan.kind == SpanKind::kCopyH2D) {
    ++device.stats.copies_h2d;
    device.stats.bytes_h2d += bytes;
  } else if (plan.kind == SpanKind::kCopyD2H) {
    ++device.stats.copies_d2h;
    device.stats.bytes_d2h += bytes;
  } else {
    ++device.stats.copies_d2d;
    device.stats.bytes_d2d += bytes;
  }
  return {begin, actor.ready};
}

void World::move_bytes(CopyPlan const& plan, PendingCopy copy, Actor& actor) {
  if (!plan.real) {
    return;
  }
  bool const late = lazy() && !plan.pageable && plan.kind != SpanKind::kCopyD2D;
  if (!late) {
    if (!copy.failed) {
      std::memmove(pointer_to(copy.destination), pointer_to(copy.source), copy.bytes);
    }
    return;
  }
  if (plan.hash_source && checking()) {
    copy.source_hash = hash_bytes(copy.source, copy.bytes);
    copy.hashed = true;
  }
  copy.guards_destination = checking() && plan.kind == SpanKind::kCopyD2H;
  std::memset(pointer_to(copy.destination), kPoisonByte, copy.bytes);
  auto const pending = std::make_shared<PendingCopy>(copy);
  for (std::uintptr_t const side : {copy.source, copy.destination}) {
    if (Block* const block = find(side)) {
      block->drop_landed();
      block->pending.push_back(pending);
    }
  }
  // One that nobody needs may stay at the front for long; those behind it that have landed must not pile up.
  if (actor.pending.size() > kPendingSlack && actor.pending.size() > 2 * pending_copies_) {
    std::erase_if(actor.pending, [](auto const& other) { return other->landed; });
  }
  actor.pending.push_back(pending);
  ++pending_copies_;
}

CopyResult World::copy_async(void* destination, void const* source, Bytes bytes, CopyKind kind, StreamRef ref,
                             std::string_view name) {
  throw_deferred();
  Actor& actor = stream(ref);
  Device& device = this->device(ref.device);
  if (bytes == 0) {
    return {{actor.ready, actor.ready}, false};
  }
  CopyPlan const plan = plan_copy(destination, source, bytes, kind, device);
  if (name.empty()) {
    name = plan.kind == SpanKind::kCopyH2D ? "copy h2d" : plan.kind == SpanKind::kCopyD2H ? "copy d2h" : "copy d2d";
  }
  Epoch const epoch = begin_operation(actor);
  std::uint32_t const op = naming() ? intern(name) : 0;
  Range const read{source, bytes};
  Range const write{destination, bytes};
  touches_.clear();
  resolve(actor, name, {&read, 1}, false);
  resolve(actor, name, {&write, 1}, true);
  if (checking()) {
    check_touches(actor, name);
  }
  settle_touches(actor, op, epoch);

  PendingCopy copy;
  copy.destination = address(destination);
  copy.source = address(source);
  copy.bytes = bytes;
  copy.actor = id_of(actor);
  copy.epoch = epoch;
  copy.op = op;
  if (auto const fault = faults_.strike(FaultKind::kCopyError, ref.device)) {
    copy.failed = true;
    device.error = fmt::format("sim device {}: '{}' of {} on stream {} failed (injected copy error)", ref.device, name,
                               format_bytes(bytes), ref.id);
    device.error_sticky = fault->sticky;
  }
  Interval const time = charge_copy(plan, device, actor, bytes);
  if (timeline_on_) {
    add_span(std::string(name), plan.kind, ref.device, ref.id, plan.engine, time, bytes);
  }
  move_bytes(plan, copy, actor);
  if (plan.pageable) {
    wait_until(device, time.end, name);
    observe(actor.known);
    raise_device_error(device);
  }
  return {time, plan.pageable};
}

}  // namespace noria::sim
