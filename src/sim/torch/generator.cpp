#include "sim/torch/generator.h"

#include <deque>
#include <mutex>

#include "sim/torch/backend.h"

namespace noria::simtorch {
namespace {

// Two generators change places: engine and the spare normal draws.
void swap_engines(at::CPUGeneratorImpl& a, at::CPUGeneratorImpl& b) {
  at::mt19937 const engine = a.engine();
  auto const spare_float = a.next_float_normal_sample();
  auto const spare_double = a.next_double_normal_sample();
  a.set_engine(b.engine());
  a.set_next_float_normal_sample(b.next_float_normal_sample());
  a.set_next_double_normal_sample(b.next_double_normal_sample());
  b.set_engine(engine);
  b.set_next_float_normal_sample(spare_float);
  b.set_next_double_normal_sample(spare_double);
}

std::mutex borrow_mutex;

at::CPUGeneratorImpl& host_default() { return *at::detail::getDefaultCPUGenerator().get<at::CPUGeneratorImpl>(); }

}  // namespace

SimGenerator::SimGenerator(c10::DeviceIndex index, std::uint64_t seed)
    : c10::GeneratorImpl(c10::Device(device_type(), index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      cpu_(at::detail::createCPUGenerator(seed)) {}

void SimGenerator::set_current_seed(std::uint64_t seed) { engine().set_current_seed(seed); }

void SimGenerator::set_offset(std::uint64_t offset) { engine().set_offset(offset); }

std::uint64_t SimGenerator::get_offset() const { return engine().get_offset(); }

std::uint64_t SimGenerator::current_seed() const { return engine().current_seed(); }

std::uint64_t SimGenerator::seed() { return engine().seed(); }

void SimGenerator::set_state(c10::TensorImpl const& state) { engine().set_state(state); }

c10::intrusive_ptr<c10::TensorImpl> SimGenerator::get_state() const { return engine().get_state(); }

SimGenerator* SimGenerator::clone_impl() const {
  auto* const copy = new SimGenerator(device_.index());  // NOLINT: GeneratorImpl::clone takes it over
  copy->cpu_ = cpu_.clone();
  return copy;
}

at::Generator const& default_generator(c10::DeviceIndex index) {
  static std::mutex mutex;
  // Leaked: PyTorch holds references to the elements until the process ends.
  static auto& generators = *new std::deque<at::Generator>();
  std::size_t const wanted = static_cast<unsigned char>(index < 0 ? current_device() : index);
  TORCH_CHECK(wanted < static_cast<std::size_t>(device_count()), "invalid device index ", wanted,
              ": the simulator has ", static_cast<int>(device_count()), " devices");
  std::lock_guard const lock(mutex);
  while (generators.size() <= wanted) {
    generators.push_back(at::make_generator<SimGenerator>(static_cast<c10::DeviceIndex>(generators.size())));
  }
  return generators[wanted];
}

BorrowedDefaultGenerator::BorrowedDefaultGenerator(c10::DeviceIndex index)
    : turn_(borrow_mutex),
      host_(host_default()),
      device_(*default_generator(index).get<SimGenerator>()->cpu().get<at::CPUGeneratorImpl>()) {
  swap_engines(host_, device_);
}

BorrowedDefaultGenerator::~BorrowedDefaultGenerator() { swap_engines(host_, device_); }

}  // namespace noria::simtorch
