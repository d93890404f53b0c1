// The null backend: tensors on meta have shapes and no bytes. Calls about bytes have nothing to do, calls that would
// have to answer with bytes are unsupported.
#include <ATen/core/Tensor.h>
#include <noria/error.h>

#include "device/builtin_backends.h"

namespace noria {
namespace {

constexpr std::string_view kNoBytes = "its tensors have shapes and no bytes";

class MetaBackend final : public DeviceBackend {
 public:
  explicit MetaBackend(c10::Device device) : DeviceBackend(c10::Device(c10::kMeta)) {
    NORIA_CHECK(device.index() <= 0, std::invalid_argument,
                "device '" + device.str() + "' cannot be used: there is 1 meta device, meta:0 is the only one");
  }

  int device_count() const override { return 1; }
  int current_device() const override { return 0; }
  int set_current_device() override { return 0; }
  void restore_current_device(int /*index*/) override {}

  c10::Stream current_stream() override { return c10::Stream(c10::Stream::DEFAULT, device()); }
  c10::Stream default_stream() override { return current_stream(); }
  c10::Stream new_stream(int /*priority*/) override { unsupported("new_stream", kNoBytes); }
  c10::Stream set_current_stream(c10::Stream stream) override {
    NORIA_CHECK(stream.device_type() == c10::kMeta, std::invalid_argument,
                "the stream belongs to " + stream.device().str() + ", and this is the backend of meta");
    return stream;
  }
  Event new_event(bool /*timing*/) override { unsupported("new_event", kNoBytes); }

  c10::DataPtr allocate(Bytes /*bytes*/) override { return {nullptr, device()}; }
  PinnedBlock allocate_pinned(Bytes /*bytes*/) override { unsupported("allocate_pinned", kNoBytes); }
  bool is_pinned(void const* /*host*/) override { return false; }
  void empty_cache() override {}
  Bytes memory_allocated() override { unsupported("memory_allocated", kNoBytes); }
  Bytes max_memory_allocated() override { unsupported("max_memory_allocated", kNoBytes); }
  void reset_peak_memory_stats() override { unsupported("reset_peak_memory_stats", kNoBytes); }
  MemoryInfo mem_get_info() override { unsupported("mem_get_info", kNoBytes); }

  void copy_to_device(void* /*dst*/, void const* /*src*/, Bytes /*bytes*/, c10::Stream /*stream*/) override {}
  void copy_to_host(void* /*dst*/, void const* /*src*/, Bytes /*bytes*/, c10::Stream /*stream*/) override {
    unsupported("copy_to_host", kNoBytes);
  }
  void copy_on_device(void* /*dst*/, void const* /*src*/, Bytes /*bytes*/, c10::Stream /*stream*/) override {}
  void fill(void* /*dst*/, int /*byte*/, Bytes /*bytes*/, c10::Stream /*stream*/) override {}

  void synchronize() override {}
  void synchronize(c10::Stream /*stream*/) override {}

  void manual_seed(std::uint64_t /*seed*/) override { unsupported("manual_seed", kNoBytes); }
  at::Tensor rng_state() override { unsupported("get_rng_state", kNoBytes); }
  void set_rng_state(at::Tensor const& /*state*/) override { unsupported("set_rng_state", kNoBytes); }

  bool is_out_of_memory(std::exception const& /*error*/) const override { return false; }

 protected:
  Probe probe() override {
    Probe found;
    for (auto const& [name, field] : capability_fields()) {
      found.off(name, std::string(kNoBytes));
    }
    found.on.float64 = found.on.int64 = found.on.bfloat16 = true;
    return found;
  }
};

}  // namespace

std::unique_ptr<DeviceBackend> make_meta_backend(c10::Device device) { return std::make_unique<MetaBackend>(device); }

}  // namespace noria
