// What does one call through a device backend cost, beside the call it stands for?
//
// The pairs (Backend, Direct) do the same work; their difference is the backend. On a machine without an accelerator
// they run on the stub device of the tests, whose own work is a few map look-ups: an upper bound for real devices'
// share.
#include <benchmark/benchmark.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <noria/device_backend.h>

#include <cstring>

#include "support/stub_device.h"

namespace {

c10::Device device() {
  static c10::Device const chosen = [] {
    noria::stub::install("stub");
    return c10::Device(noria::DeviceBackend::usable_types().front(), 0);
  }();
  return chosen;
}

noria::DeviceBackend& backend() { return noria::DeviceBackend::get(device()); }

void lookup(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(&noria::DeviceBackend::get(device()));
  }
}

void capabilities(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(backend().capabilities().streams);
  }
}

void current_stream_backend(benchmark::State& state) {
  auto& chosen = backend();
  for (auto _ : state) {
    benchmark::DoNotOptimize(chosen.current_stream());
  }
}

void current_stream_direct(benchmark::State& state) {
  c10::impl::VirtualGuardImpl const guard(device().type());
  for (auto _ : state) {
    benchmark::DoNotOptimize(guard.getStream(device()));
  }
}

void event_record_backend(benchmark::State& state) {
  auto& chosen = backend();
  auto event = chosen.new_event();
  auto const stream = chosen.current_stream();
  for (auto _ : state) {
    event.record(stream);
  }
}

void event_record_direct(benchmark::State& state) {
  c10::Event event(device().type());
  auto const stream = backend().current_stream();
  for (auto _ : state) {
    event.record(stream);
  }
}

/// Argument: bytes. The generic copy goes through the device's copy kernel, below autograd and callbacks.
void copy_to_device(benchmark::State& state) {
  auto& chosen = backend();
  auto const bytes = static_cast<noria::Bytes>(state.range(0));
  auto block = chosen.allocate_pinned(bytes);
  auto const memory = chosen.allocate(bytes);
  auto const stream = chosen.current_stream();
  for (auto _ : state) {
    chosen.copy_to_device(memory.get(), block.data(), bytes, stream);
    chosen.synchronize(stream);
  }
}

void cpu_copy_to_device(benchmark::State& state) {
  auto& cpu = noria::DeviceBackend::get(c10::Device(c10::kCPU));
  auto const bytes = static_cast<noria::Bytes>(state.range(0));
  auto const from = cpu.allocate(bytes);
  auto const memory = cpu.allocate(bytes);
  auto const stream = cpu.current_stream();
  for (auto _ : state) {
    cpu.copy_to_device(memory.get(), from.get(), bytes, stream);
    benchmark::ClobberMemory();
  }
}

BENCHMARK(lookup);
BENCHMARK(capabilities);
BENCHMARK(current_stream_backend);
BENCHMARK(current_stream_direct);
BENCHMARK(event_record_backend);
BENCHMARK(event_record_direct);
BENCHMARK(copy_to_device)->Arg(4096);
BENCHMARK(cpu_copy_to_device)->Arg(4096);

}  // namespace

BENCHMARK_MAIN();
