/// PyTorch's own event behind an Event, and the short form of PyTorch's error texts.
#pragma once

#include <c10/core/Event.h>
#include <noria/device_backend.h>

namespace noria {

class TorchEvent final : public Event::Handle {
 public:
  TorchEvent(c10::DeviceType type, bool timing)
      : event_(type, timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT) {}
  void record(c10::Stream stream) override { event_.record(stream); }
  void block(c10::Stream stream) const override { event_.block(stream); }
  bool query() const override { return event_.query(); }
  void synchronize() const override { event_.synchronize(); }
  double elapsed_seconds(Handle const& later) const override {
    constexpr double kSecondsPerMillisecond = 1e-3;
    return event_.elapsedTime(dynamic_cast<TorchEvent const&>(later).event_) * kSecondsPerMillisecond;
  }

 private:
  c10::Event event_;
};

/// The text of an error without the C++ stack that PyTorch appends.
inline std::string first_line(std::exception const& error) {
  std::string const text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace noria
