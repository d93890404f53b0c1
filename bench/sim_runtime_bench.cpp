// What does the simulated runtime add to each kernel, with the order checker on and off?
//
// A kernel here reads three ranges and writes one, as most PyTorch operators do, among many live blocks.
#include <benchmark/benchmark.h>

#include <array>
#include <random>
#include <vector>

#include "sim/runtime/runtime.h"

namespace {

using namespace noria::sim;

Config config(CheckerMode checker) {
  Config config;
  config.devices.push_back({profile("rtx4090"), 0});
  config.checker = checker;
  return config;
}

CheckerMode mode(benchmark::State const& state) {
  return state.range(0) != 0 ? CheckerMode::kRaise : CheckerMode::kOff;
}

/// Arguments: checker on, live blocks.
void kernel(benchmark::State& state) {
  Runtime runtime(config(mode(state)));
  constexpr noria::Bytes kBytes = 4096;
  std::vector<void*> blocks;
  blocks.reserve(static_cast<std::size_t>(state.range(1)));
  for (std::int64_t i = 0; i < state.range(1); ++i) {
    blocks.push_back(runtime.allocate(kBytes, {}));
  }
  std::mt19937 random(1);
  KernelCost cost;
  cost.flops = 1e6;
  cost.bytes = 4 * kBytes;
  for (auto _ : state) {
    std::array<Range, 3> reads;
    for (Range& read : reads) {
      read = {blocks[random() % blocks.size()], kBytes};
    }
    Range const write{blocks[random() % blocks.size()], kBytes};
    benchmark::DoNotOptimize(runtime.launch({}, "aten::addmm.out", reads, {&write, 1}, cost));
  }
  for (void* block : blocks) {
    runtime.free(block);
  }
}
BENCHMARK(kernel)->ArgNames({"checker", "blocks"})->ArgsProduct({{0, 1}, {16, 1000, 20000}});

/// Ranges of one big block, as an offloader's arena has them. Arguments: checker on, ranges.
void arena_kernel(benchmark::State& state) {
  Runtime runtime(config(mode(state)));
  constexpr noria::Bytes kBytes = 4096;
  auto const ranges = static_cast<std::size_t>(state.range(1));
  auto* const arena = static_cast<unsigned char*>(runtime.allocate(kBytes * ranges, {}));
  std::mt19937 random(1);
  for (auto _ : state) {
    std::array<Range, 3> reads;
    for (Range& read : reads) {
      read = {arena + kBytes * (random() % ranges), kBytes};
    }
    Range const write{arena + kBytes * (random() % ranges), kBytes};
    benchmark::DoNotOptimize(runtime.launch({}, "aten::addmm.out", reads, {&write, 1}, {}));
  }
  runtime.free(arena);
}
BENCHMARK(arena_kernel)->ArgNames({"checker", "ranges"})->ArgsProduct({{0, 1}, {16, 1000}});

/// An output is allocated, written, read and freed. Argument: checker on.
void allocate_use_free(benchmark::State& state) {
  Runtime runtime(config(mode(state)));
  constexpr noria::Bytes kBytes = 4096;
  for (auto _ : state) {
    void* const block = runtime.allocate(kBytes, {});
    Range const range{block, kBytes};
    runtime.launch({}, "write", {}, {&range, 1}, {});
    runtime.launch({}, "read", {&range, 1}, {}, {});
    runtime.free(block);
  }
}
BENCHMARK(allocate_use_free)->ArgName("checker")->Arg(0)->Arg(1);

/// One group arrives, is waited for and used. Arguments: checker on, KiB.
void load_group(benchmark::State& state) {
  Runtime runtime(config(mode(state)));
  StreamRef const copies = runtime.create_stream(0);
  auto const bytes = static_cast<noria::Bytes>(state.range(1)) << 10U;
  void* const slot = runtime.allocate(bytes, {});
  void* const home = runtime.allocate_pinned(bytes);
  EventId const ready = runtime.create_event(0);
  EventId const freed = runtime.create_event(0);
  runtime.record_event(freed, {});
  Range const range{slot, bytes};
  for (auto _ : state) {
    runtime.wait_event(freed, copies);
    runtime.copy_async(slot, home, bytes, CopyKind::kHostToDevice, copies);
    runtime.record_event(ready, copies);
    runtime.wait_event(ready, {});
    runtime.launch({}, "use", {&range, 1}, {}, {});
    runtime.record_event(freed, {});
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
  runtime.synchronize_device(0);
  runtime.free_pinned(home);
  runtime.free(slot);
}
BENCHMARK(load_group)->ArgNames({"checker", "KiB"})->ArgsProduct({{0, 1}, {4, 64 << 10}});

}  // namespace

BENCHMARK_MAIN();
