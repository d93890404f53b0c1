#include "device/out_of_memory.h"

#include <gtest/gtest.h>

namespace noria {
namespace {

TEST(OutOfMemory, TheTextOfEachKindOfDeviceIsKnownOnThatDeviceOnly) {
  EXPECT_TRUE(says_out_of_memory("mps", "MPS backend out of memory (MPS allocated: 9.05 GB, max allowed: 9.07 GB)."));
  EXPECT_TRUE(says_out_of_memory("npu", "NPU out of memory. Tried to allocate 84.00 MiB"));
  EXPECT_TRUE(says_out_of_memory("mlu", "MLU out of memory. Tried to allocate 2.00 GiB (MLU 0; ..."));
  EXPECT_TRUE(says_out_of_memory("xpu", "XPU out of memory. Tried to allocate 2.00 GiB (GPU 0; ..."));
  EXPECT_TRUE(
      says_out_of_memory("xpu", "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"));
  EXPECT_TRUE(says_out_of_memory(
      "hpu", "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::268435456 (256)MB"));
  EXPECT_TRUE(says_out_of_memory("cuda", "CUDA out of memory. Tried to allocate 20.00 MiB"));
  EXPECT_TRUE(says_out_of_memory("cuda", "CUDA error: out of memory"));
  EXPECT_TRUE(says_out_of_memory("cpu",
                                 "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
                                 "allocate memory: you tried to allocate 274877906944 bytes."));
  EXPECT_FALSE(says_out_of_memory("mps", "NPU out of memory. Tried to allocate 84.00 MiB"));
}

TEST(OutOfMemory, ANewDeviceThatUsesTheCommonFormIsKnownByItsName) {
  EXPECT_TRUE(says_out_of_memory("musa", "MUSA out of memory. Tried to allocate 1 GiB"));
}

TEST(OutOfMemory, OtherTextsAreNot) {
  for (auto const* const text : {"", "out of range", "CUDA error: an illegal memory access was encountered",
                                 "memory format option is only supported by strided tensors", "out of memory"}) {
    EXPECT_FALSE(says_out_of_memory("cuda", text)) << text;
  }
}

TEST(OutOfMemory, EveryPatternNamesItsSource) {
  for (auto const& pattern : out_of_memory_patterns()) {
    EXPECT_FALSE(pattern.source.empty()) << pattern.text;
  }
}

}  // namespace
}  // namespace noria
