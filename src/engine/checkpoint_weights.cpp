#include "engine/checkpoint_weights.h"

#include <c10/core/GradMode.h>
#include <noria/error.h>
#include <noria/weights.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/page.h"

namespace noria {
namespace {

template <typename Sizes>
std::string in_brackets(Sizes const& sizes) {
  std::ostringstream out;
  char const* separator = "";
  out << '[';
  for (auto const size : sizes) {
    out << std::exchange(separator, ", ") << size;
  }
  out << ']';
  return out.str();
}

void check_fits(ModelTree::Tensor const& weight, TensorEntry const& entry) {
  at::Tensor const& tensor = weight.tensor;
  auto const differs = [&](std::string const& what) { throw IntegrityError("'" + weight.name + "' is " + what); };
  bool const same_shape = std::ranges::equal(tensor.sizes(), entry.shape, [](int64_t size, std::uint64_t other) {
    return static_cast<std::uint64_t>(size) == other;
  });
  if (!same_shape) {
    differs(in_brackets(tensor.sizes()) + " in the model and " + in_brackets(entry.shape) + " in the checkpoint");
  }
  if (!can_become(entry.dtype, tensor.scalar_type())) {
    differs(std::string(c10::toString(tensor.scalar_type())) + " in the model and " + std::string(entry.dtype) +
            " in the checkpoint, and only floating-point types are converted; build the model with the checkpoint's "
            "dtype");
  }
  if (!tensor.is_contiguous()) {
    differs(
        "not contiguous in the model, and checkpoints hold contiguous tensors; build the model without a memory "
        "format, or offload it from memory");
  }
}

void emptied_storage_died(void* /*none*/) {}

void empty(ModelTree::Tensor const& weight) {
  if (weight.tensor.is_meta() || has_no_values(weight.tensor)) {
    return;
  }
  c10::StorageImpl* const storage = weight.tensor.storage().unsafeGetStorageImpl();
  NORIA_CHECK(Page::of(storage) == nullptr, std::invalid_argument,
              "'" + weight.name + "' is offloaded; call remove() on its handle first");
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, nullptr, &emptied_storage_died, storage->device()));
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "the values of '" + weight.name +
      "' were dropped by noria::empty_weights; give a checkpoint to noria::load_weights or noria::Offload");
}

/// Memory for a weight that has none.
void give_memory(at::Tensor const& tensor) {
  if (tensor.is_meta()) {
    // Not through set_data, which refuses: the tensor must be itself afterwards, since the module's members are it too.
    at::Tensor const made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
    tensor.unsafeGetTensorImpl()->shallow_copy_from(made.getIntrusivePtr());
    return;
  }
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetAllocator(storage->device_type())->allocate(storage->nbytes()));
  storage->clear_data_ptr_access_error_msg_();
}

/// The part of its file that a tensor of the model is made from.
FileExtent extent_of(ShardSet const& shards, ShardTensor const& source, at::Tensor const& target) {
  return {.file = shards.files()[source.file],
          .file_offset = source.entry->begin,
          .bytes = target.nbytes(),
          .conversion = Conversion::between(source.entry->dtype, target.scalar_type())};
}

void read(FileExtent const& extent, at::Tensor const& target) {
  bool const direct = target.is_cpu() && Page::of(target.storage().unsafeGetStorageImpl()) == nullptr;
  at::Tensor const host = direct ? target : at::empty_like(target, target.options().device(at::kCPU));
  extent.read_exact(static_cast<std::byte*>(host.mutable_data_ptr()));
  if (!direct) {
    target.copy_(host);
  }
}

}  // namespace

bool has_no_values(at::Tensor const& tensor) {
  if (tensor.is_meta() || !tensor.has_storage()) {
    return tensor.is_meta();
  }
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  return storage->_mutable_data_ptr_no_checks().get_deleter() == &emptied_storage_died;
}

CheckpointWeights::CheckpointWeights(Checkpoint const& checkpoint, ModelTree const& model, TensorTable const& table)
    : shards_(checkpoint.shards()), pages_(table.pages().size()) {
  std::vector<bool> optional(pages_.size(), true);
  std::vector<std::size_t> first(pages_.size());
  for (std::size_t i = model.tensors.size(); i-- > 0;) {
    plan::PageIndex const page = table.page_of(i);
    if (page == TensorTable::kNoPage) {
      continue;
    }
    ModelTree::Tensor const& weight = model.tensors[i];
    first[page] = i;
    optional[page] = optional[page] && weight.buffer && !has_no_values(weight.tensor);
    if (ShardTensor const source = shards_->find(weight.name); source.entry != nullptr) {
      pages_[page] = {.tensor = i, .source = source};
    }
  }
  std::string missing;
  std::size_t missing_count = 0;
  constexpr std::size_t kShown = 5;
  for (plan::PageIndex page = 0; page < pages_.size(); ++page) {
    Found const& found = pages_[page];
    if (found.source.entry != nullptr) {
      check_fits(model.tensors[found.tensor], *found.source.entry);
      NORIA_CHECK(model.tensors[found.tensor].tensor.nbytes() == table.pages()[page].bytes, IntegrityError,
                  "'" + model.tensors[found.tensor].name +
                      "' is a part of a larger tensor of the model; offload it from memory");
    } else if (!optional[page] && missing_count++ < kShown) {
      missing += (missing.empty() ? "" : ", ") + model.tensors[first[page]].name;
    }
  }
  if (missing_count > kShown) {
    missing += " and " + std::to_string(missing_count - kShown) + " more";
  }
  NORIA_CHECK(missing_count == 0, IntegrityError, "the checkpoint has no " + missing);
}

bool CheckpointWeights::give_home(Engine& engine, ModelTree const& model, TensorTable& table,
                                  plan::GroupIndex group) const {
  std::vector<std::pair<plan::PageIndex, FileExtent>> extents;
  for (plan::PageIndex page : engine.group_pages(group)) {
    if (ShardTensor const& source = pages_[page].source; source.entry != nullptr) {
      extents.emplace_back(page, extent_of(*shards_, source, model.tensors[pages_[page].tensor].tensor));
      table.leave_home(page);
    }
  }
  if (extents.empty()) {
    return false;
  }
  engine.give_file_home(group, std::move(extents));
  return true;
}

void empty_weights(torch::nn::Module const& module) {
  for (ModelTree::Tensor const& weight : ModelTree::of(module).tensors) {
    if (!weight.buffer) {
      empty(weight);
    }
  }
}

void load_weights(torch::nn::Module const& module, Checkpoint const& checkpoint) {
  ModelTree const model = ModelTree::of(module);
  CheckpointWeights const weights(checkpoint, model, model.table());
  c10::NoGradGuard const no_grad;
  for (CheckpointWeights::Found const& found : weights.pages()) {
    if (found.source.entry == nullptr) {
      continue;
    }
    at::Tensor const& target = model.tensors[found.tensor].tensor;
    if (has_no_values(target)) {
      give_memory(target);
    }
    read(extent_of(weights.shards(), found.source, target), target);
  }
}

}  // namespace noria
