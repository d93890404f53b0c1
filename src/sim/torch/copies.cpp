// Copies between the host, a device and another device: every `copy_`, `to` and `item` of PyTorch ends here.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "sim/torch/backend.h"
#include "sim/torch/dry_run.h"
#include "sim/torch/fallback.h"
#include "sim/torch/registration.h"
#include "sim/torch/tensor_alias.h"

namespace noria::simtorch {
namespace {

constexpr char const* kCopyName = "aten::copy_";

// The copy engine moves bytes: both sides must lay the same elements out in the same way, without gaps.
bool same_bytes(at::Tensor const& a, at::Tensor const& b) {
  if (a.scalar_type() != b.scalar_type() || a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg() ||
      !a.is_non_overlapping_and_dense() || !b.is_non_overlapping_and_dense()) {
    return false;
  }
  for (std::int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) != 1 && a.stride(dim) != b.stride(dim)) {
      return false;
    }
  }
  return true;
}

std::byte* first_byte(at::Tensor const& tensor) {
  // Checked: an evicted weight raises here.
  auto const* const data = static_cast<std::byte const*>(tensor.storage().unsafeGetStorageImpl()->data());
  auto const offset = tensor.storage_offset() * static_cast<std::int64_t>(tensor.itemsize());
  return const_cast<std::byte*>(data +
                                offset);  // NOLINT(cppcoreguidelines-pro-type-const-cast): one type for both sides
}

// Values of a dry run: known bytes come along, unknown ones read as poison where there is memory for it.
void carry_knowledge(at::Tensor const& destination, at::Tensor const& source) {
  if (!dry::active()) {
    return;
  }
  void* const to = first_byte(destination);
  if (on_sim(source) && on_sim(destination)) {
    dry::copy_knowledge(to, first_byte(source), destination.nbytes());
  } else if (on_sim(destination)) {
    dry::learn(destination);
  } else if (!dry::known(source) && destination.nbytes() <= sim::kSmallBlock) {
    std::memset(to, sim::kPoisonByte, destination.nbytes());
  }
}

void copy_bytes_between_host_and_device(at::Tensor const& destination, at::Tensor const& source, bool non_blocking) {
  bool const to_device = on_sim(destination);
  at::Tensor const& device_side = to_device ? destination : source;
  void* const host = first_byte(to_device ? source : destination);
  sim::StreamRef const stream = current_stream(device_side.device().index());
  sim::CopyResult const copy =
      runtime().copy_async(first_byte(destination), first_byte(source), destination.nbytes(),
                           to_device ? sim::CopyKind::kHostToDevice : sim::CopyKind::kDeviceToHost, stream, kCopyName);
  if (!copy.pageable) {
    // PyTorch's own users of pinned memory may drop it right after the call.
    runtime().record_pinned_use(host, stream);
    if (!non_blocking) {
      runtime().synchronize_stream(stream);
    }
  }
  carry_knowledge(destination, source);
}

// Both devices' current streams take part: the bytes move after what either was given so far, and later work of the
// destination's waits for them.
void copy_bytes_between_devices(at::Tensor const& destination, at::Tensor const& source) {
  sim::StreamRef const from = current_stream(source.device().index());
  sim::StreamRef const to = current_stream(destination.device().index());
  sim::EventId const event = runtime().create_event(to.device);
  runtime().record_event(event, to);
  runtime().wait_event(event, from);
  runtime().copy_async(first_byte(destination), first_byte(source), destination.nbytes(),
                       sim::CopyKind::kDeviceToDevice, from, kCopyName);
  runtime().record_event(event, from);
  runtime().wait_event(event, to);
  runtime().destroy_event(event);
  carry_knowledge(destination, source);
}

// Within one device any layout and type is one kernel.
void copy_on_device(at::Tensor const& destination, at::Tensor const& source) {
  sim::StreamRef const stream = current_stream(destination.device().index());
  ByteRange const from = byte_range(source);
  ByteRange const to = byte_range(destination);
  // NOLINTBEGIN(performance-no-int-to-ptr)
  std::array<sim::Range, 1> const reads{{{reinterpret_cast<void const*>(from.begin), from.size()}}};
  std::array<sim::Range, 1> const writes{{{reinterpret_cast<void const*>(to.begin), to.size()}}};
  // NOLINTEND(performance-no-int-to-ptr)
  bool const compute = !dry::active() || (dry::known(source) && destination.storage().nbytes() <= sim::kSmallBlock);
  at::Tensor const target = compute ? cpu_alias(destination) : at::Tensor();
  at::Tensor const origin = compute ? cpu_alias(source) : at::Tensor();
  sim::KernelScope const scope = runtime().begin_kernel(stream, kCopyName, reads, writes);
  if (compute) {
    HostKernelScope const host;
    target.copy_(origin);
    dry::learn(destination);
  } else {
    dry::forget(writes[0].pointer, to.size());
  }
  runtime().end_kernel(scope, {.bytes = distinct_bytes(source) + distinct_bytes(destination)});
}

at::Tensor plain(at::Tensor const& tensor) { return tensor.resolve_conj().resolve_neg(); }

// Across devices, elements that are laid out differently go through temporaries. As on CUDA: a blocking copy converts
// on the host, which costs the device no memory; a non-blocking one on the device, which keeps the host free.
void copy_across(at::Tensor const& destination, at::Tensor const& source, bool non_blocking) {
  if (same_bytes(destination, source)) {
    if (on_sim(destination) && on_sim(source)) {
      copy_bytes_between_devices(destination, source);
    } else {
      copy_bytes_between_host_and_device(destination, source, non_blocking);
    }
    return;
  }
  bool const convert_on_sim = non_blocking || on_sim(source) == on_sim(destination);
  bool const convert_before = on_sim(source) == convert_on_sim;
  c10::ScalarType const type = convert_before ? destination.scalar_type() : source.scalar_type();
  if (source.is_cpu()) {
    runtime().host_read(first_byte(source), source.numel() == 0 ? 0 : byte_range(source).size(), kCopyName);
  }
  at::Tensor const packed =
      plain(source).to(type).expand(destination.sizes()).contiguous(c10::MemoryFormat::Contiguous);
  bool const direct = destination.is_contiguous() && destination.scalar_type() == type && !destination.is_conj() &&
                      !destination.is_neg();
  at::Tensor const landing =
      direct ? destination
             : at::empty(destination.sizes(), at::TensorOptions().dtype(type).device(destination.device()));
  copy_across(landing, packed, non_blocking);
  if (!direct) {
    destination.copy_(landing, non_blocking);
  }
}

void copy_any(at::Tensor const& destination, at::Tensor const& source, bool non_blocking) {
  if (destination.numel() == 0 || destination.is_same(source)) {
    return;
  }
  if (destination.device() == source.device()) {
    copy_on_device(destination, source);
  } else {
    copy_across(destination, source, non_blocking);
  }
}

at::Tensor copy_from(at::Tensor const& self, at::Tensor const& destination, bool non_blocking) {
  copy_any(destination, self.sizes() == destination.sizes() ? self : self.expand(destination.sizes()), non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(at::Tensor const& self, at::Tensor const& destination) {
  if (self.sizes() != destination.sizes()) {
    destination.resize_(self.sizes());
  }
  copy_any(destination, self, false);
  return destination;
}

// What `item()` reads: a copy of one element that the host waits for.
at::Scalar local_scalar(at::Tensor const& self) {
  if (!dry::known(self)) {
    dry::refuse("aten::item");
  }
  alignas(16) std::array<std::byte, 16> element{};
  sim::StreamRef const stream = current_stream(self.device().index());
  runtime().copy_async(element.data(), first_byte(self), self.itemsize(), sim::CopyKind::kDeviceToHost, stream,
                       "aten::item");
  HostKernelScope const host;
  return at::_local_scalar_dense(cpu_alias(self));
}

// `pin_memory()` as PyTorch has it, but that a dry run moves no large bytes.
at::Tensor pin_memory(at::Tensor const& self, std::optional<c10::Device> device) {
  c10::Allocator* const allocator =
      at::globalContext().getPinnedMemoryAllocator(device.has_value() ? std::optional(device->type()) : std::nullopt);
  std::size_t const bytes = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize());
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::int64_t>(bytes), allocator, false);
  at::Tensor pinned = at::empty({0}, self.options()).set_(std::move(storage), 0, self.sizes(), self.strides());
  if (!dry::active() || bytes <= sim::kSmallBlock) {
    pinned.copy_(self);
  }
  return pinned;
}

// Without these PyTorch resolves the conj or neg bit of a source before the copy, by a copy. Ours honour the bits.
void let_bits_through(c10::DispatchKey key) {
  static auto& libraries = *new std::vector<torch::Library>();  // leaked, as all registrations are
  torch::Library& library = libraries.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
  library.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace

void register_copies(torch::Library& library) {
  let_bits_through(c10::DispatchKey::Conjugate);
  let_bits_through(c10::DispatchKey::Negative);
  static auto& host = *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  host.impl("_pin_memory", &pin_memory);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
}

}  // namespace noria::simtorch
