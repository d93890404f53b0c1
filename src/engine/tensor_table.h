/// From the tensors of a model to pages, and back to managed tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "io/manifest.h"

namespace noria {

/// Collects tensors, finds which of them share bytes, and turns each into a managed tensor once an engine exists.
/// Tensors that overlap in memory (tied weights, views) share a page; tensors that merely lie in one storage, as those
/// of a mapped checkpoint do, do not. Holds the tensors only until they are managed.
class TensorTable {
 public:
  static constexpr plan::PageIndex kNoPage = ~plan::PageIndex{0};

  /// Returns the tensor's index. Throws std::invalid_argument for a layout that has no plain storage.
  std::size_t add(at::Tensor tensor, std::string name);
  /// After the last add().
  void find_pages();
  [[nodiscard]] std::vector<Engine::PageSpec> const& pages() const { return specs_; }
  /// kNoPage for a tensor without bytes: there is nothing to manage.
  [[nodiscard]] plan::PageIndex page_of(std::size_t index) const { return entries_[index].page; }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

  /// The bytes of a page, while its tensors are on the cpu and not managed. Throws std::invalid_argument for others.
  [[nodiscard]] std::span<std::byte const> bytes_of(plan::PageIndex page) const;
  /// Every tensor as an offload folder describes it; offsets are from the start of the tensor's page.
  [[nodiscard]] std::vector<StoredTensor> stored_tensors() const;

  /// The page's home has its bytes already: manage() brings none.
  void leave_home(plan::PageIndex page) { spans_[page].filled = true; }
  /// Copies the bytes of the tensor's page to its home, the first time, and returns the managed tensor in its place:
  /// same sizes and strides, on the engine's device. The same tensor when it could be taken over as it is. A tensor on
  /// meta brings no bytes. Forgets the tensor.
  at::Tensor manage(Engine& engine, std::size_t index);

 private:
  struct Entry {
    at::Tensor tensor;
    std::string name;
    Bytes begin = 0;  // in its storage
    Bytes end = 0;
    plan::PageIndex page = kNoPage;
  };
  struct Span {
    Bytes begin = 0;
    Bytes end = 0;
    bool whole_storage = false;
    bool filled = false;
    std::size_t first = 0;  // entry
    c10::intrusive_ptr<c10::StorageImpl> managed;
  };

  std::vector<Entry> entries_;
  std::vector<Engine::PageSpec> specs_;
  std::vector<Span> spans_;
};

/// A tensor of `device` with the geometry of `like` over `storage`; `offset` in elements.
at::Tensor tensor_over(c10::intrusive_ptr<c10::StorageImpl> storage, c10::Device device, at::Tensor const& like,
                       int64_t offset);

}  // namespace noria
