#include "sim/torch/dry_run.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include "sim/torch/backend.h"
#include "sim/torch/tensor_alias.h"

namespace noria::simtorch::dry {
namespace {

std::atomic<bool> is_active{false};

// Disjoint intervals of addresses.
class Intervals {
 public:
  void add(std::uintptr_t begin, std::uintptr_t end) {
    remove(begin, end);
    auto next = ends_.lower_bound(begin);
    if (next != ends_.end() && next->first == end) {
      end = next->second;
      next = ends_.erase(next);
    }
    if (next != ends_.begin()) {
      if (auto const previous = std::prev(next); previous->second == begin) {
        previous->second = end;
        return;
      }
    }
    ends_.emplace_hint(next, begin, end);
  }

  void remove(std::uintptr_t begin, std::uintptr_t end) {
    auto entry = ends_.upper_bound(begin);
    if (entry != ends_.begin() && std::prev(entry)->second > begin) {
      --entry;
    }
    while (entry != ends_.end() && entry->first < end) {
      auto const [old_begin, old_end] = *entry;
      entry = ends_.erase(entry);
      if (old_begin < begin) {
        ends_.emplace(old_begin, begin);
      }
      if (old_end > end) {
        entry = ends_.emplace(end, old_end).first;
      }
    }
  }

  [[nodiscard]] bool contains(std::uintptr_t begin, std::uintptr_t end) const {
    auto const after = ends_.upper_bound(begin);
    return after != ends_.begin() && std::prev(after)->second >= end;
  }

  void clear() { ends_.clear(); }

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_;
};

std::mutex mutex;

Intervals& known_bytes() {
  static auto& intervals = *new Intervals();
  return intervals;
}

std::uintptr_t address(void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

bool has_memory(ByteRange range) {
  return range.size() <= sim::kSmallBlock &&
         runtime().is_real(reinterpret_cast<void const*>(range.begin));  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

bool active() noexcept { return is_active.load(std::memory_order_relaxed); }

void configure(bool dry) {
  std::lock_guard const lock(mutex);
  known_bytes().clear();
  is_active.store(dry, std::memory_order_relaxed);
}

bool known(at::Tensor const& tensor) {
  if (!active() || !on_sim(tensor) || tensor.numel() == 0) {
    return true;
  }
  ByteRange const range = byte_range(tensor);
  std::lock_guard const lock(mutex);
  return known_bytes().contains(range.begin, range.end);
}

void learn(at::Tensor const& tensor) {
  if (!active() || !on_sim(tensor) || tensor.numel() == 0 || !tensor.is_non_overlapping_and_dense()) {
    return;
  }
  ByteRange const range = byte_range(tensor);
  if (!has_memory(range)) {
    return;
  }
  std::lock_guard const lock(mutex);
  known_bytes().add(range.begin, range.end);
}

void forget(void const* data, std::size_t bytes) {
  if (!active() || data == nullptr || bytes == 0) {
    return;
  }
  std::lock_guard const lock(mutex);
  known_bytes().remove(address(data), address(data) + bytes);
}

void copy_knowledge(void const* to, void const* from, std::size_t bytes) {
  if (!active() || bytes == 0) {
    return;
  }
  bool const real = bytes <= sim::kSmallBlock && runtime().is_real(to) && runtime().is_real(from);
  std::lock_guard const lock(mutex);
  if (real && known_bytes().contains(address(from), address(from) + bytes)) {
    known_bytes().add(address(to), address(to) + bytes);
  } else {
    known_bytes().remove(address(to), address(to) + bytes);
  }
}

void refuse(std::string_view operation) {
  TORCH_CHECK(
      false, operation,
      " needs the values of a tensor that this dry run of the simulator did not compute. A dry run knows shapes, "
      "and values only of tensors up to 1 MiB made from known ones. Run without dry=True, or keep this step on "
      "the host");
}

}  // namespace noria::simtorch::dry
