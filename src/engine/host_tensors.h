/// Managed tensors as cpu tensors over their host homes.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>

#include "engine/engine.h"

namespace noria {

/// The page of a managed tensor and its engine. Throws Error when the tensor is not one.
std::pair<Engine*, plan::PageIndex> managed(at::Tensor const& tensor);

/// Tensors of one page get one storage, so what is tied stays tied.
class HostTensors {
 public:
  /// The managed tensor's bytes as a cpu tensor over its host home, current as of now; a copy where the home is a file.
  at::Tensor of(at::Tensor const& tensor);

 private:
  std::map<std::pair<Engine*, plan::PageIndex>, c10::intrusive_ptr<c10::StorageImpl>> storages_;
};

}  // namespace noria
