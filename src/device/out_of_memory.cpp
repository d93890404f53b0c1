#include "device/out_of_memory.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace noria {
namespace {

constexpr std::array kPatterns{
    OutOfMemoryPattern{"", "DefaultCPUAllocator: can't allocate memory", "pytorch c10/core/impl/alloc_cpu.cpp"},
    OutOfMemoryPattern{"", "DefaultCPUAllocator: not enough memory", "pytorch c10/core/impl/alloc_cpu.cpp, Windows"},
    OutOfMemoryPattern{"cuda", "CUDA error: out of memory", "cudaErrorMemoryAllocation through c10/cuda/CUDAException"},
    OutOfMemoryPattern{"cuda", "CUBLAS_STATUS_ALLOC_FAILED", "cuBLAS workspace, ATen/cuda/Exceptions.cpp"},
    OutOfMemoryPattern{"cuda", "HIP out of memory", "ROCm build of c10/cuda/CUDACachingAllocator.cpp"},
    OutOfMemoryPattern{"cuda", "HIP error: out of memory", "ROCm build of c10/cuda/CUDAException"},
    OutOfMemoryPattern{"xpu", "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "SYCL unified runtime, result 39"},
    OutOfMemoryPattern{"xpu", "PI_ERROR_OUT_OF_RESOURCES", "older SYCL runtimes' name of the same result"},
    OutOfMemoryPattern{"mps", "MPS backend out of memory", "pytorch aten/src/ATen/mps/MPSAllocator.mm"},
    OutOfMemoryPattern{"npu", "NPU out of memory", "torch_npu NPUCachingAllocator.cpp"},
    OutOfMemoryPattern{"mlu", "MLU out of memory", "torch_mlu caching allocator"},
    OutOfMemoryPattern{"hpu", "MODULE:PT_DEVMEM Allocation failed", "mila-iqia/milabench#301"},
    OutOfMemoryPattern{"xla", "RESOURCE_EXHAUSTED", "XLA status of that name; torch_xla passes it on"},
    OutOfMemoryPattern{"neuron", "NRT_RESOURCE", "Neuron runtime: failed to allocate a resource"},
};

std::string upper(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

}  // namespace

std::span<OutOfMemoryPattern const> out_of_memory_patterns() { return kPatterns; }

bool says_out_of_memory(std::string_view device_type, std::string_view message) {
  auto const matches = [&](OutOfMemoryPattern const& pattern) {
    return (pattern.device_type.empty() || pattern.device_type == device_type) &&
           message.find(pattern.text) != std::string_view::npos;
  };
  return std::ranges::any_of(kPatterns, matches) ||
         message.find(upper(device_type) + " out of memory") != std::string_view::npos;
}

}  // namespace noria
