#include "sim/runtime/access_map.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace noria::sim {

std::vector<AccessMap::Entry>::iterator AccessMap::first_after(std::uintptr_t begin) {
  if (entries_.size() == 1) {
    return entries_.front().end > begin ? entries_.begin() : entries_.end();
  }
  return std::ranges::upper_bound(entries_, begin, {}, &Entry::end);
}

std::optional<Conflict> AccessMap::find_conflict(std::uintptr_t begin, std::uintptr_t end, bool write,
                                                 VectorClock const& known) const {
  auto entry = const_cast<AccessMap*>(this)->first_after(begin);
  for (; entry != entries_.end() && entry->begin < end; ++entry) {
    auto const conflict = [&](Stamp const& earlier) {
      return Conflict{earlier, std::max(begin, entry->begin), std::min(end, entry->end)};
    };
    if (!known.knows(entry->write.actor, entry->write.epoch)) {
      return conflict(entry->write);
    }
    if (write) {
      for (Stamp const& read : entry->reads) {
        if (!known.knows(read.actor, read.epoch)) {
          return conflict(read);
        }
      }
    }
  }
  return std::nullopt;
}

void AccessMap::add(std::uintptr_t begin, std::uintptr_t end, Stamp stamp, VectorClock const& known) {
  if (stamp.write) {
    add_write(begin, end, stamp);
  } else {
    add_read(begin, end, stamp, known);
  }
}

void AccessMap::add_write(std::uintptr_t begin, std::uintptr_t end, Stamp stamp) {
  auto first = first_after(begin);
  if (first != entries_.end() && first->begin >= begin && first->end <= end &&
      (std::next(first) == entries_.end() || std::next(first)->begin >= end)) {
    // The usual case: one entry, overwritten in full. Its vector keeps its room.
    first->begin = begin;
    first->end = end;
    first->write = stamp;
    first->reads.clear();
    return;
  }
  cut(begin);
  cut(end);
  first = first_after(begin);
  auto const last = std::ranges::lower_bound(first, entries_.end(), end, {}, &Entry::begin);
  if (first == last) {
    entries_.insert(first, Entry{begin, end, stamp, {}});
    return;
  }
  first->begin = begin;
  first->end = end;
  first->write = stamp;
  first->reads.clear();
  entries_.erase(std::next(first), last);
}

void AccessMap::note_read(Entry& entry, Stamp stamp, VectorClock const& known) {
  std::size_t kept = 0;
  for (Stamp const& read : entry.reads) {
    if (!known.knows(read.actor, read.epoch)) {
      entry.reads[kept++] = read;
    }
  }
  entry.reads.resize(kept);
  entry.reads.push_back(stamp);
}

void AccessMap::add_read(std::uintptr_t begin, std::uintptr_t end, Stamp stamp, VectorClock const& known) {
  auto first = first_after(begin);
  if (first != entries_.end() && first->begin == begin && first->end == end) {
    note_read(*first, stamp, known);
    return;
  }
  cut(begin);
  cut(end);
  std::uintptr_t covered = begin;
  auto entry = first_after(begin);
  while (covered < end) {
    if (entry == entries_.end() || entry->begin > covered) {
      std::uintptr_t const gap_end = entry == entries_.end() ? end : std::min(end, entry->begin);
      entry = entries_.insert(entry, Entry{covered, gap_end, {}, {stamp}});
    } else {
      note_read(*entry, stamp, known);
    }
    covered = entry->end;
    ++entry;
  }
}

void AccessMap::cut(std::uintptr_t boundary) {
  auto entry = first_after(boundary);
  if (entry == entries_.end() || entry->begin >= boundary) {
    return;
  }
  Entry upper = *entry;
  upper.begin = boundary;
  entry->end = boundary;
  entries_.insert(std::next(entry), std::move(upper));
}

AccessMap AccessMap::split(std::uintptr_t boundary) {
  AccessMap upper;
  cut(boundary);
  auto const first = first_after(boundary);
  upper.entries_.assign(std::make_move_iterator(first), std::make_move_iterator(entries_.end()));
  entries_.erase(first, entries_.end());
  return upper;
}

void AccessMap::append(AccessMap&& above) {
  entries_.insert(entries_.end(), std::make_move_iterator(above.entries_.begin()),
                  std::make_move_iterator(above.entries_.end()));
  above.entries_.clear();
}

void AccessMap::forget_known(VectorClock const& known) {
  std::erase_if(entries_, [&](Entry& entry) {
    if (known.knows(entry.write.actor, entry.write.epoch)) {
      entry.write = {};
    }
    std::erase_if(entry.reads, [&](Stamp const& read) { return known.knows(read.actor, read.epoch); });
    return entry.write.epoch == 0 && entry.reads.empty();
  });
}

}  // namespace noria::sim
