/// The errors of a simulated device.
#pragma once

#include <noria/bytes.h>
#include <noria/error.h>

#include <string>
#include <utility>

#include "sim/runtime/report.h"

namespace noria::sim {

/// What an allocation that fails knows. Bytes throughout.
struct OutOfMemoryFigures {
  int device = 0;
  Bytes asked = 0;
  Bytes total = 0;      ///< capacity of the device
  Bytes free = 0;       ///< capacity that nobody holds
  Bytes allocated = 0;  ///< in live blocks
  Bytes reserved = 0;   ///< in live blocks and in the allocator's cache
};

/// The device's memory does not suffice; what() reads as CUDA's message does.
class SimOutOfMemory : public Error {
 public:
  explicit SimOutOfMemory(OutOfMemoryFigures const& figures);
  [[nodiscard]] OutOfMemoryFigures const& figures() const noexcept { return figures_; }

 private:
  OutOfMemoryFigures figures_;
};

/// Two accesses that nothing puts in order, thrown by the second in checker mode kRaise.
class SimRace : public Error {
 public:
  explicit SimRace(Race race) : Error(describe(race)), race_(std::move(race)) {}
  [[nodiscard]] Race const& race() const noexcept { return race_; }

 private:
  Race race_;
};

/// Use after free, double free and the like, in checker mode kRaise.
class SimMisuse : public Error {
 public:
  explicit SimMisuse(Finding finding) : Error(finding.text), finding_(std::move(finding)) {}
  [[nodiscard]] Finding const& finding() const noexcept { return finding_; }

 private:
  Finding finding_;
};

/// A copy failed on the device; asynchronous, so it surfaces at a later synchronisation.
class SimDeviceError : public Error {
 public:
  using Error::Error;
};

/// Host memory could not be page-locked.
class SimPinFailure : public Error {
 public:
  using Error::Error;
};

}  // namespace noria::sim
