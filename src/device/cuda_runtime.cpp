#include "device/cuda_runtime.h"

#include <dlfcn.h>

#include <array>

namespace noria {
namespace {

template <typename Function>
bool find(void* library, std::string const& prefix, char const* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, (prefix + name).c_str()));
  return function != nullptr;
}

bool fill(CudaRuntime& runtime, void* library, std::string const& prefix) {
  return find(library, prefix, "MemcpyAsync", runtime.memcpy_async) &&
         find(library, prefix, "MemsetAsync", runtime.memset_async) &&
         find(library, prefix, "HostRegister", runtime.host_register) &&
         find(library, prefix, "HostUnregister", runtime.host_unregister) &&
         find(library, prefix, "MemGetInfo", runtime.memory_info) &&
         find(library, prefix, "DeviceGetAttribute", runtime.device_attribute) &&
         find(library, prefix, "GetLastError", runtime.last_error) &&
         find(library, prefix, "GetErrorString", runtime.error_text);
}

}  // namespace

CudaRuntime find_cuda_runtime() {
  struct Candidate {
    char const* file;
    char const* prefix;
  };
  // The major versions that PyTorch 2.13 and 2.14 wheels are built with, and ROCm's.
  constexpr std::array kCandidates{Candidate{"libcudart.so.13", "cuda"}, Candidate{"libcudart.so.12", "cuda"},
                                   Candidate{"libcudart.so", "cuda"},    Candidate{"libamdhip64.so.7", "hip"},
                                   Candidate{"libamdhip64.so.6", "hip"}, Candidate{"libamdhip64.so", "hip"}};
  for (auto const& candidate : kCandidates) {
    // Kept open: it is PyTorch's own and stays for the life of the process.
    if (void* const library = dlopen(candidate.file, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL); library != nullptr) {
      CudaRuntime runtime;
      if (fill(runtime, library, candidate.prefix)) {
        runtime.library = candidate.file;
        return runtime;
      }
    }
  }
  return {};
}

}  // namespace noria
