#include "engine/tensor_table.h"

#include <noria/error.h>

#include <algorithm>
#include <numeric>

#include "engine/net.h"

namespace noria {

at::Tensor tensor_over(c10::intrusive_ptr<c10::StorageImpl> storage, c10::Device device, at::Tensor const& like,
                       int64_t offset) {
  // Not inside inference mode: a weight made there could never be saved for backward.
  c10::InferenceMode const no_inference(false);
  at::Tensor const pattern = at::empty({0}, like.options().device(device).requires_grad(false));
  at::Tensor out =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), pattern.key_set(), pattern.dtype());
  out.unsafeGetTensorImpl()->set_storage_offset(offset);
  out.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.is_conj()) {
    out._set_conj(true);
  }
  if (like.is_neg()) {
    out._set_neg(true);
  }
  return out;
}

std::size_t TensorTable::add(at::Tensor tensor, std::string name) {
  if (tensor.is_nested() || !tensor.has_storage() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw std::invalid_argument("'" + name + "' cannot be offloaded: its layout has no plain storage");
  }
  Entry entry{.tensor = std::move(tensor), .name = std::move(name)};
  at::Tensor const& t = entry.tensor;
  if (t.numel() > 0) {
    int64_t elements = 1;
    for (int64_t d = 0; d < t.dim(); ++d) {
      elements += (t.size(d) - 1) * t.stride(d);
    }
    entry.begin = static_cast<Bytes>(t.storage_offset()) * static_cast<Bytes>(t.element_size());
    entry.end = entry.begin + static_cast<Bytes>(elements) * static_cast<Bytes>(t.element_size());
  }
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

void TensorTable::find_pages() {
  std::vector<std::size_t> order(entries_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto const storage_of = [this](std::size_t i) { return entries_[i].tensor.storage().unsafeGetStorageImpl(); };
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return std::pair(storage_of(a), entries_[a].begin) < std::pair(storage_of(b), entries_[b].begin);
  });
  std::vector<std::vector<std::size_t>> members;
  c10::StorageImpl* storage = nullptr;
  for (std::size_t i : order) {
    Entry const& entry = entries_[i];
    if (entry.begin == entry.end) {
      continue;
    }
    if (members.empty() || storage != storage_of(i) || entry.begin >= spans_.back().end) {
      storage = storage_of(i);
      spans_.push_back({.begin = entry.begin, .end = entry.end, .managed = {}});
      members.emplace_back();
    }
    spans_.back().end = std::max(spans_.back().end, entry.end);
    members.back().push_back(i);
  }
  // In the order in which the model names them, so that neighbours in a group are neighbours in memory.
  std::vector<std::size_t> first(members.size());
  std::vector<std::size_t> rank(members.size());
  for (std::size_t p = 0; p < members.size(); ++p) {
    first[p] = *std::ranges::min_element(members[p]);
    rank[p] = p;
  }
  std::ranges::sort(rank, {}, [&](std::size_t p) { return first[p]; });
  std::vector<Span> spans = std::exchange(spans_, {});
  for (std::size_t p : rank) {
    Span span = std::move(spans[p]);
    at::Tensor const& t = entries_[first[p]].tensor;
    span.first = first[p];
    span.whole_storage = span.begin == 0 && span.end == t.storage().nbytes();
    for (std::size_t i : members[p]) {
      entries_[i].page = static_cast<plan::PageIndex>(spans_.size());
    }
    specs_.push_back({.name = entries_[first[p]].name, .bytes = span.end - span.begin});
    spans_.push_back(std::move(span));
  }
}

std::span<std::byte const> TensorTable::bytes_of(plan::PageIndex page) const {
  Span const& span = spans_[page];
  at::Tensor const& tensor = entries_[span.first].tensor;
  if (!tensor.defined() || !tensor.device().is_cpu()) {
    throw std::invalid_argument("'" + specs_[page].name + "' is not on the cpu");
  }
  return {static_cast<std::byte const*>(tensor.storage().data()) + span.begin, span.end - span.begin};
}

std::vector<StoredTensor> TensorTable::stored_tensors() const {
  std::vector<StoredTensor> out;
  std::map<std::string, int> seen;
  for (Entry const& entry : entries_) {
    // The inner tensors of one wrapper share its name.
    int const number = seen[entry.name]++;
    StoredTensor stored{.name = number == 0 ? entry.name : entry.name + "#" + std::to_string(number),
                        .dtype = c10::toString(entry.tensor.scalar_type()),
                        .shape = {},
                        .strides = {}};
    for (int64_t size : entry.tensor.sizes()) {
      stored.shape.push_back(static_cast<std::uint64_t>(size));
    }
    stored.strides.assign(entry.tensor.strides().begin(), entry.tensor.strides().end());
    stored.offset = entry.page == kNoPage ? 0 : entry.begin - spans_[entry.page].begin;
    stored.bytes = entry.end - entry.begin;
    out.push_back(std::move(stored));
  }
  return out;
}

at::Tensor TensorTable::manage(Engine& engine, std::size_t index) {
  OperatorNet::Pause const pause;
  Entry& entry = entries_[index];
  at::Tensor tensor = std::exchange(entry.tensor, {});
  Span& span = spans_[entry.page];
  Page& page = engine.page(entry.page);
  if (!std::exchange(span.filled, true) && engine.home_of(entry.page) != nullptr && !tensor.is_meta()) {
    auto const* source = static_cast<std::byte const*>(tensor.storage().data()) + span.begin;
    if (tensor.device().is_cpu()) {
      engine.fill_home(entry.page, source);
    } else {
      DeviceBackend& from = DeviceBackend::get(tensor.device());
      from.copy_to_host(engine.home_of(entry.page), source, page.bytes(), from.current_stream());
      from.synchronize(from.current_stream());
    }
  }
  c10::Device const device = engine.options().device;
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (page.storage() == storage) {
    return tensor;  // taken over through another tensor of the same storage
  }
  if (!page.alive() && span.whole_storage && tensor.device() == device) {
    page.adopt(storage, engine.shared_from_this());
    return tensor;
  }
  if (!page.alive()) {
    span.managed = page.make_storage(device, engine.shared_from_this());
  }
  return tensor_over(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(page.storage()), device, tensor,
                     static_cast<int64_t>((entry.begin - span.begin) / static_cast<Bytes>(tensor.element_size())));
}

}  // namespace noria
