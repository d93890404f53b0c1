// A program as an offloader runs it: weights arrive on one stream, are used on another, and every other group is
// changed and written back on a third, through two slots of device memory. Every wait in it is needed; the checker must
// say so, whatever the timing, and must keep quiet when they are all there.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>

#include "sim/runtime/test_machine.h"

namespace noria::sim {
namespace {

constexpr Bytes kGroup = 256;
constexpr std::size_t kSlots = 2;

enum class Wait {
  kNone,
  kLoadAfterUse,        ///< copy stream: until the slot's last, clean, group was used
  kLoadAfterWriteBack,  ///< copy stream: until the slot's last, changed, group was written back
  kUseAfterLoad,        ///< compute stream: until the group has arrived
  kWriteBackAfterUse,   ///< write-back stream: until the group was changed
  kReadAfterWriteBack,  ///< host: until the last group was written back
};

constexpr std::array kEveryWait = {Wait::kLoadAfterUse, Wait::kLoadAfterWriteBack, Wait::kUseAfterLoad,
                                   Wait::kWriteBackAfterUse, Wait::kReadAfterWriteBack};

struct Outcome {
  std::size_t races = 0;
  bool right_values = true;
};

class Pipeline {
 public:
  Pipeline(unsigned seed, Wait removed) : random_(seed), removed_(removed), runtime_(jittered(seed)) {
    groups_ = 3 + random_() % 4;
    for (std::size_t i = 0; i < groups_; ++i) {
      homes_.push_back(std::make_unique<PinnedBytes>(runtime_, kGroup, static_cast<unsigned char>(i)));
    }
    for (std::size_t i = 0; i < kSlots; ++i) {
      freed_.push_back(runtime_.create_event(0));
    }
  }

  Outcome run_passes() {
    std::vector<unsigned char> expected(groups_);
    for (std::size_t i = 0; i < groups_; ++i) {
      expected[i] = static_cast<unsigned char>(i);
    }
    std::size_t const passes = 2 + random_() % 2;
    for (std::size_t use = 0; use < passes * groups_; ++use) {
      std::size_t const group = use % groups_;
      process(use, group);
      expected[group] = static_cast<unsigned char>(expected[group] + (changes(group) ? 1 : 0));
    }
    if (removed_ != Wait::kReadAfterWriteBack) {
      runtime_.synchronize_stream(back_);
    }
    Outcome outcome;
    for (std::size_t i = 0; i < groups_; ++i) {
      runtime_.host_read(homes_[i]->data(), kGroup);
      outcome.right_values &= (*homes_[i])[0] == expected[i] && (*homes_[i])[kGroup - 1] == expected[i];
    }
    runtime_.synchronize_device(0);
    outcome.races = runtime_.races().size();
    runtime_.clear_reports();
    return outcome;
  }

 private:
  static Config jittered(unsigned seed) {
    Config jittered = config(CheckerMode::kRecord);
    jittered.copy_engines = 1 + static_cast<int>(seed % 2);
    return jittered;
  }

  /// Host time passes and now and then the host polls something, as it would between the lines of a real program.
  void dawdle(EventId event) {
    runtime_.advance_host(static_cast<Nanoseconds>(random_() % 3000));
    if (random_() % 7 == 0 && runtime_.event_generation(event) > 0 && removed_ == Wait::kNone) {
      runtime_.query_event(event);
    }
    if (random_() % 5 == 0) {
      Injection slow;
      slow.kind = FaultKind::kSlowCopy;
      slow.factor = static_cast<double>(random_() % 20);
      runtime_.inject(slow);
    }
  }

  void wait(Wait which, EventId event, StreamRef stream) {
    if (which != removed_ && runtime_.event_generation(event) > 0) {
      runtime_.wait_event(event, stream);
    }
  }

  static bool changes(std::size_t group) { return group % 2 == 1; }

  void process(std::size_t use, std::size_t group) {
    std::size_t const slot = use % kSlots;
    unsigned char* const bytes = arena_.data() + slot * kGroup;
    wait(changed_[slot] ? Wait::kLoadAfterWriteBack : Wait::kLoadAfterUse, freed_[slot], in_);
    runtime_.copy_async(bytes, homes_[group]->data(), kGroup, CopyKind::kHostToDevice, in_, "load");
    EventId const ready = runtime_.create_event(0);
    runtime_.record_event(ready, in_);
    dawdle(ready);
    wait(Wait::kUseAfterLoad, ready, compute_);
    Range const range{bytes, kGroup};
    KernelCost cost;
    cost.duration = static_cast<Nanoseconds>(random_() % 4000);
    KernelScope const kernel = runtime_.begin_kernel(compute_, "compute", {&range, 1}, {&range, 1});
    for (Bytes i = 0; i < kGroup; ++i) {
      bytes[i] = static_cast<unsigned char>(bytes[i] + 1);
    }
    runtime_.end_kernel(kernel, cost);
    EventId const done = runtime_.create_event(0);
    runtime_.record_event(done, compute_);
    runtime_.record_event(freed_[slot], compute_);
    dawdle(done);
    changed_[slot] = changes(group);
    if (changes(group)) {
      wait(Wait::kWriteBackAfterUse, done, back_);
      runtime_.copy_async(homes_[group]->data(), bytes, kGroup, CopyKind::kDeviceToHost, back_, "write back");
      runtime_.record_event(freed_[slot], back_);
      dawdle(freed_[slot]);
    }
    runtime_.destroy_event(ready);
    runtime_.destroy_event(done);
  }

  std::mt19937 random_;
  Wait removed_;
  Runtime runtime_;
  StreamRef compute_{};
  StreamRef in_ = runtime_.create_stream(0);
  StreamRef back_ = runtime_.create_stream(0);
  DeviceBytes arena_{runtime_, kSlots* kGroup};
  std::size_t groups_ = 0;
  std::vector<std::unique_ptr<PinnedBytes>> homes_;
  std::vector<EventId> freed_;
  std::array<bool, kSlots> changed_{};  ///< whether the slot's last group was written back
};

unsigned schedules() { return std::getenv("NORIA_LONG") != nullptr ? 1000 : 100; }

TEST(PipelineOrder, CorrectProgramIsSilentAndRight) {
  for (unsigned seed = 0; seed < schedules(); ++seed) {
    Outcome const outcome = Pipeline(seed, Wait::kNone).run_passes();
    ASSERT_EQ(outcome.races, 0U) << "seed " << seed;
    ASSERT_TRUE(outcome.right_values) << "seed " << seed;
  }
}

TEST(PipelineOrder, EveryMissingWaitIsReportedInEverySchedule) {
  for (Wait const removed : kEveryWait) {
    for (unsigned seed = 0; seed < schedules(); ++seed) {
      ASSERT_GT(Pipeline(seed, removed).run_passes().races, 0U)
          << "wait " << static_cast<int>(removed) << " seed " << seed;
    }
  }
}

TEST(PipelineOrder, MissingWaitForTheCopyShowsInTheValues) {
  for (unsigned seed = 0; seed < schedules(); ++seed) {
    ASSERT_FALSE(Pipeline(seed, Wait::kUseAfterLoad).run_passes().right_values) << "seed " << seed;
  }
}

}  // namespace
}  // namespace noria::sim
