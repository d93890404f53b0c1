// Tensors without values: creation, resizing, sharing of storages.
#include "sim/torch/storage.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <torch/library.h>

#include <algorithm>

#include "sim/torch/backend.h"
#include "sim/torch/device_allocator.h"
#include "sim/torch/dry_run.h"
#include "sim/torch/registration.h"
#include "sim/torch/tensor_alias.h"

namespace noria::simtorch {
namespace {

constexpr c10::DispatchKeySet kSimKeys{c10::DispatchKey::PrivateUse1};

// Makes a device current for a scope; the device of a factory may be without an index.
class DeviceScope {
 public:
  explicit DeviceScope(std::optional<c10::Device> device)
      : previous_(device.has_value() && device->has_index() ? exchange_device(device->index()) : current_device()) {}
  ~DeviceScope() { set_device_unchecked(previous_); }
  DeviceScope(DeviceScope const&) = delete;
  DeviceScope& operator=(DeviceScope const&) = delete;

 private:
  c10::DeviceIndex previous_;
};

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pinned) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout.has_value() || *layout == c10::kStrided,
                              "the simulated device has strided tensors only, not ", *layout);
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

c10::ScalarType type_or_default(std::optional<c10::ScalarType> dtype) {
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<c10::MemoryFormat> format) {
  check_options(layout, pinned);
  DeviceScope const scope(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), device_allocator(), kSimKeys, type_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pinned) {
  check_options(layout, pinned);
  DeviceScope const scope(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           device_allocator(), kSimKeys, type_or_default(dtype));
}

// A tensor of zeros that has no bytes at all: forward-mode AD makes them.
at::Tensor efficient_zeros(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype,
                           std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pinned) {
  check_options(layout, pinned);
  DeviceScope const scope(device);
  auto const sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto const type = type_or_default(dtype);
  c10::Storage storage(c10::Storage::use_byte_size_t(),
                       at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type)),
                       c10::DataPtr(nullptr, sim_device(current_device())), device_allocator(), false);
  at::Tensor zeros = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), kSimKeys.add(c10::DispatchKey::ZeroTensor), c10::scalarTypeToTypeMeta(type));
  zeros.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return zeros;
}

// Grows the storage when the geometry of `self` does not fit in it.
void fit_storage(at::Tensor const& self, std::size_t needed) {
  if (self.numel() != 0 && needed > self.storage().nbytes()) {
    resize_storage(self.storage(), needed);
  }
}

at::Tensor const& resize(at::Tensor const& self, c10::SymIntArrayRef size, std::optional<c10::MemoryFormat> format) {
  auto const sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* const impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    impl->set_sizes_contiguous(sizes);
    fit_storage(self, at::detail::computeStorageNbytesContiguous(sizes, self.itemsize(),
                                                                 static_cast<std::size_t>(self.storage_offset())));
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;  // NOLINT(bugprone-return-const-ref-from-parameter): the signature of aten::resize_
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the signature of aten::set_.source_Storage_storage_offset
at::Tensor& set_storage(at::Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  TORCH_CHECK(source.device_type() == kSimDevice, "set_: a tensor on ", self.device(),
              " cannot take a storage that is on ", source.device());
  auto const sizes = C10_AS_INTARRAYREF_SLOW(size);
  std::int64_t const begin = offset.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(begin >= 0, "Tensor: invalid storage offset ", begin);
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(begin);
  if (stride.empty() && !sizes.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, C10_AS_INTARRAYREF_SLOW(stride));
  }
  fit_storage(self, at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                                     static_cast<std::size_t>(begin)));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source) {
  auto const count = static_cast<std::int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {c10::SymInt(count)}, {c10::SymInt(1)});
}

at::Tensor& set_tensor(at::Tensor& self, at::Tensor const& source) {
  if (!self.is_same(source)) {
    set_storage(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(), source.sym_strides());
  }
  return self;
}

at::Tensor& set_nothing(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), true);
  return set_storage(self, std::move(storage), 0, {c10::SymInt(0)}, {c10::SymInt(1)});
}

bool is_set_to(at::Tensor const& self, at::Tensor const& other) {
  return self.storage().unsafeGetStorageImpl() == other.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  // Without the check that raises for an evicted weight: no bytes are touched.
  auto const& data = self.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  runtime().record_stream(data.get(), from_torch(stream));
}

// Lets `parameter.data = tensor` move a parameter between the host and the device, as it does for CUDA.
bool compatible_for_set_data(at::Tensor const& self, at::Tensor const& from) {
  auto const known = [](at::Tensor const& tensor) { return tensor.is_cpu() || on_sim(tensor); };
  return known(self) && known(from) && self.layout() == from.layout();
}

}  // namespace

void resize_storage(c10::Storage const& storage, std::size_t bytes) {
  auto* const impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  sim::StreamRef const stream = current_stream(impl->device().index());
  std::size_t const kept = std::min(bytes, impl->nbytes());
  void const* const old = kept == 0 ? nullptr : impl->data();
  c10::DataPtr fresh = allocate_on(stream, bytes);
  if (old != nullptr) {
    runtime().copy_async(fresh.get(), old, kept, sim::CopyKind::kDeviceToDevice, stream, "resize_");
    dry::copy_knowledge(fresh.get(), old, kept);
    runtime().record_stream(old, stream);
  }
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

void register_storage(torch::Library& library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_efficientzerotensor", &efficient_zeros);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_", &set_nothing);
  library.impl("is_set_to", &is_set_to);
  library.impl("record_stream", &record_stream);
  library.impl("_has_compatible_shallow_copy_type", &compatible_for_set_data);
}

}  // namespace noria::simtorch
