/// The operator net: weights that are used without a hooked forward.
#pragma once

namespace noria {

/// Note [Net]
/// A RecordFunction callback sees every operator before it runs, with its inputs. An evicted page among them is brought
/// in and held until the operator has ended; a page that the operator writes is marked. So a weight may be read
/// directly, a model entered by `decode`, TorchScript run, a gradient computed, with no hook anywhere. PyTorch swallows
/// what a callback throws: when a page cannot be brought in it stays evicted, its text says why, and the access itself
/// raises. Pure views load nothing: they read no bytes, and the operator that does is seen too.
class OperatorNet {
 public:
  /// Counts the engines that need the net; the callback is there while there is one.
  static void add_engine();
  static void remove_engine() noexcept;
  /// Whether the calling thread computes gradients.
  static bool in_backward();
  /// Engines that it watches for; the callback is switched off while there are none.
  static int engines();

  /// Off on the calling thread while one is alive: for work of our own.
  class Pause {
   public:
    Pause();
    Pause(Pause const&) = delete;
    Pause& operator=(Pause const&) = delete;
    ~Pause();
  };
};

}  // namespace noria
