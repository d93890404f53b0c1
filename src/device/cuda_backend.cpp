#include "device/cuda_backend.h"

#include <c10/core/DeviceGuard.h>
#include <noria/error.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "device/builtin_backends.h"

namespace noria {
namespace {

using namespace noria::literals;

// cudaHostRegisterPortable and hipHostRegisterPortable: pinned for every device of the process.
constexpr unsigned kPortable = 1;
// cudaDevAttrIntegrated; HIP numbers its attributes differently, so it is asked of CUDA only.
constexpr int kIntegrated = 18;
// Drivers refuse one registration of 512 GiB and more (seen on R580); pieces well below that are as good.
constexpr Bytes kRegistration = 64_GiB;

Bytes page_bytes() { return static_cast<Bytes>(sysconf(_SC_PAGESIZE)); }

}  // namespace

CudaBackend::CudaBackend(c10::Device device, CudaRuntime runtime)
    : GenericBackend(device), runtime_(std::move(runtime)) {}

void CudaBackend::check(int status, std::string const& what) const {
  if (status == 0) {
    return;
  }
  (void)runtime_.last_error();
  throw Error(what + " failed on " + device().str() + ": " + runtime_.error_text(status));
}

DeviceBackend::Probe CudaBackend::probe() {
  auto found = GenericBackend::probe();
  if (!runtime_.loaded()) {
    found.off("host_register", "no CUDA or HIP runtime library is loaded under a known name");
    return found;
  }
  found.on.host_register = found.on.pinned_memory;
  if (!found.on.host_register) {
    found.off("host_register", "pinned memory does not work");
  }
  c10::DeviceGuard const here(device());
  int integrated = 0;
  if (runtime_.library.starts_with("libcudart") &&
      runtime_.device_attribute(&integrated, kIntegrated, device().index()) == 0 && integrated != 0) {
    found.on.unified_memory = true;
  }
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (runtime_.memory_info(&free_bytes, &total_bytes) == 0) {
    found.on.memory_info = true;
  }
  (void)runtime_.last_error();
  return found;
}

PinnedBlock CudaBackend::allocate_pinned(Bytes bytes) {
  if (!capabilities().host_register) {
    return GenericBackend::allocate_pinned(bytes);
  }
  if (bytes == 0) {
    return {};
  }
  // Our own pages, registered: PyTorch's pinned allocator would round to a power of two and never give back.
  Bytes const booked = align_up(bytes, page_bytes());
  void* const memory = mmap(nullptr, booked, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error("cannot map " + format_bytes(bytes) + " of host memory to pin: " + std::strerror(errno));
  }
  auto* const data = static_cast<std::byte*>(memory);
  auto const unmap = [runtime = runtime_, booked](void* block, Bytes registered) {
    for (Bytes at = 0; at < registered; at += kRegistration) {
      if (runtime.host_unregister(static_cast<std::byte*>(block) + at) != 0) {
        (void)runtime.last_error();  // at process exit the driver may be gone; the mapping goes with the process
      }
    }
    munmap(block, booked);
  };
  c10::DeviceGuard const here(device());
  for (Bytes at = 0; at < booked; at += kRegistration) {
    int const status = runtime_.host_register(data + at, std::min(kRegistration, booked - at), kPortable);
    if (status != 0) {
      unmap(memory, at);
      check(status, "pinning " + format_bytes(bytes) +
                        " of host memory (pin less with pin=False or a smaller host_budget, or free host memory)");
    }
  }
  return {data, bytes, booked, [unmap, booked](void* block) { unmap(block, booked); }};
}

MemoryInfo CudaBackend::mem_get_info() {
  if (!runtime_.loaded()) {
    return GenericBackend::mem_get_info();
  }
  c10::DeviceGuard const here(device());
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check(runtime_.memory_info(&free_bytes, &total_bytes), "asking for free memory");
  return {free_bytes, total_bytes};
}

void CudaBackend::copy(void* dst, void const* src, Bytes bytes, CudaRuntime::Direction direction, c10::Stream stream) {
  check_stream(stream);
  if (bytes == 0) {
    return;
  }
  c10::DeviceGuard const here(device());
  check(runtime_.memcpy_async(dst, src, bytes, static_cast<int>(direction), stream.native_handle()),
        "copying " + format_bytes(bytes));
}

void CudaBackend::copy_to_device(void* device_dst, void const* host_src, Bytes bytes, c10::Stream stream) {
  if (!runtime_.loaded()) {
    GenericBackend::copy_to_device(device_dst, host_src, bytes, stream);
    return;
  }
  // From pageable memory the runtime has staged the bytes when it returns: the source may change at once.
  copy(device_dst, host_src, bytes, CudaRuntime::Direction::kHostToDevice, stream);
}

void CudaBackend::copy_to_host(void* host_dst, void const* device_src, Bytes bytes, c10::Stream stream) {
  if (!runtime_.loaded()) {
    GenericBackend::copy_to_host(host_dst, device_src, bytes, stream);
    return;
  }
  copy(host_dst, device_src, bytes, CudaRuntime::Direction::kDeviceToHost, stream);
}

void CudaBackend::copy_on_device(void* dst, void const* src, Bytes bytes, c10::Stream stream) {
  if (!runtime_.loaded()) {
    GenericBackend::copy_on_device(dst, src, bytes, stream);
    return;
  }
  copy(dst, src, bytes, CudaRuntime::Direction::kDeviceToDevice, stream);
}

void CudaBackend::fill(void* device_dst, int byte, Bytes bytes, c10::Stream stream) {
  if (!runtime_.loaded()) {
    GenericBackend::fill(device_dst, byte, bytes, stream);
    return;
  }
  check_stream(stream);
  if (bytes == 0) {
    return;
  }
  c10::DeviceGuard const here(device());
  check(runtime_.memset_async(device_dst, byte, bytes, stream.native_handle()), "filling " + format_bytes(bytes));
}

std::unique_ptr<DeviceBackend> make_cuda_backend(c10::Device device) {
  return std::make_unique<CudaBackend>(device, find_cuda_runtime());
}

}  // namespace noria
