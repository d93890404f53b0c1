/// The random generator of a simulated device: the CPU's engine under the device's name, so that CPU kernels can draw
/// from it and the same seed gives the same numbers on every machine.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <mutex>

namespace noria::simtorch {

class SimGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(c10::DeviceIndex index, std::uint64_t seed = c10::default_rng_seed_val);

  void set_current_seed(std::uint64_t seed) override;
  void set_offset(std::uint64_t offset) override;
  std::uint64_t get_offset() const override;
  std::uint64_t current_seed() const override;
  std::uint64_t seed() override;
  /// State as a byte tensor on the CPU, in the CPU generator's own format.
  void set_state(c10::TensorImpl const& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  /// The generator that CPU kernels are given in place of this one.
  at::Generator const& cpu() const { return cpu_; }

 private:
  SimGenerator* clone_impl() const override;
  at::CPUGeneratorImpl& engine() const { return *cpu_.get<at::CPUGeneratorImpl>(); }

  at::Generator cpu_;
};

/// The default generator of device `index`; -1 means the current device.
at::Generator const& default_generator(c10::DeviceIndex index);

/// Makes the CPU's default generator draw from device `index`'s for as long as it lives: for kernels that take no
/// generator. One at a time; a thread that draws on the CPU meanwhile draws from the device's.
class BorrowedDefaultGenerator {
 public:
  explicit BorrowedDefaultGenerator(c10::DeviceIndex index);
  ~BorrowedDefaultGenerator();
  BorrowedDefaultGenerator(BorrowedDefaultGenerator const&) = delete;
  BorrowedDefaultGenerator& operator=(BorrowedDefaultGenerator const&) = delete;

 private:
  std::unique_lock<std::mutex> turn_;
  at::CPUGeneratorImpl& host_;
  at::CPUGeneratorImpl& device_;
};

}  // namespace noria::simtorch
