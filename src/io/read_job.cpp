#include "io/read_job.h"

#include <fmt/format.h>
#include <noria/error.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace noria {
namespace {

// Below this, one bounced read is cheaper than a straight one with separate edges.
constexpr Bytes kStraightWorthwhile = Bytes{256} << 10U;

Bytes align_down(Bytes value, Bytes alignment) { return value & ~(alignment - 1); }

// A bounced, direct read of the blocks from `begin` to `end`; the file may end inside the last one.
PendingRead bounced(std::shared_ptr<ReadJob> const& job, ReadExtent const& extent, Bytes begin, Bytes end) {
  PendingRead read{.job = job, .extent = &extent, .direct = true, .offset = begin, .length = end - begin};
  read.needed = std::min(end, read.source().file().size()) - begin;
  read.bounced = true;
  return read;
}

std::vector<PendingRead> direct_reads(std::shared_ptr<ReadJob> const& job, ReadExtent const& extent) {
  DioCaps const& caps = job->request.files[extent.file]->caps();
  Bytes const block = caps.offset_alignment;
  Bytes const outer_begin = align_down(extent.begin, block);
  Bytes const outer_end = align_up(extent.end, block);
  Bytes const inner_begin = align_up(extent.begin, block);
  Bytes const inner_end = align_down(extent.end, block);
  auto const copies = job->request.plan->copies(extent);
  bool const straight = !job->request.deliver && copies.size() == 1;
  if (straight && inner_end > inner_begin && inner_end - inner_begin >= kStraightWorthwhile) {
    // One copy that covers the extent: the plan has no bytes outside its copies at either end.
    auto const place =
        job->request.destination.subspan(copies[0].destination + (inner_begin - extent.begin), inner_end - inner_begin);
    if (reinterpret_cast<std::uintptr_t>(place.data()) % caps.memory_alignment == 0) {
      std::vector<PendingRead> reads;
      if (outer_begin < inner_begin) {
        reads.push_back(bounced(job, extent, outer_begin, inner_begin));
      }
      reads.push_back({.job = job,
                       .extent = &extent,
                       .direct = true,
                       .offset = inner_begin,
                       .memory = place,
                       .length = place.size(),
                       .needed = place.size()});
      if (inner_end < outer_end) {
        reads.push_back(bounced(job, extent, inner_end, outer_end));
      }
      return reads;
    }
  }
  return {bounced(job, extent, outer_begin, outer_end)};
}

}  // namespace

void ReadJob::publish() {
  {
    std::lock_guard const lock(mutex);
    finished = std::chrono::steady_clock::now();
    done = true;
  }
  changed.notify_all();
}

std::vector<PendingRead> reads_of(std::shared_ptr<ReadJob> const& job, ReadExtent const& extent, bool direct) {
  if (direct) {
    return direct_reads(job, extent);
  }
  bool const bounced = static_cast<bool>(job->request.deliver);
  std::vector<PendingRead> reads;
  for (ReadCopy const& copy : job->request.plan->copies(extent)) {
    reads.push_back({.job = job,
                     .extent = &extent,
                     .offset = extent.begin + copy.source,
                     .length = copy.length,
                     .needed = copy.length,
                     .bounced = bounced});
    if (!bounced) {
      reads.back().memory = job->request.destination.subspan(copy.destination, copy.length);
    }
  }
  return reads;
}

Bytes copy_out(PendingRead const& read) {
  Bytes copied = 0;
  Bytes const read_end = read.offset + read.needed;
  for (ReadCopy const& copy : read.job->request.plan->copies(*read.extent)) {
    Bytes const copy_begin = read.extent->begin + copy.source;
    Bytes const begin = std::max(copy_begin, read.offset);
    Bytes const end = std::min(copy_begin + copy.length, read_end);
    if (begin < end) {
      Bytes const place = copy.destination + (begin - copy_begin);
      std::span<std::byte const> const bytes = read.memory.subspan(begin - read.offset, end - begin);
      if (auto const& deliver = read.job->request.deliver) {
        deliver(place, bytes);
      } else {
        std::memcpy(read.job->request.destination.data() + place, bytes.data(), bytes.size());
      }
      copied += bytes.size();
    }
  }
  return copied;
}

ReadFailure storage_error(PendingRead const& read, int error) {
  std::string const& path = read.source().file().path();
  Bytes const at = read.offset + read.arrived;
  return ReadFailure::of(
      StorageError(fmt::format("reading {} bytes at offset {} of '{}' ({}) failed: {}", read.needed - read.arrived, at,
                               path, read.direct ? "direct" : "buffered", std::strerror(error)),
                   path, error, at));
}

ReadFailure truncated(PendingRead const& read) {
  File const& file = read.source().file();
  return ReadFailure::of(IntegrityError(
      IntegrityCode::kFileTruncated, file.path(),
      fmt::format(
          "the file ends at {} or before; it had {} bytes when it was opened. Restore it and open the model again",
          read.offset + read.arrived, file.size())));
}

bool ended_early(PendingRead const& read) {
  try {
    return read.source().file().identity_now().size < read.offset + read.needed;
  } catch (StorageError const&) {
    return false;  // then the read itself will say what is wrong
  }
}

void check_files(ReadJob const& job) {
  std::set<std::uint32_t> seen;
  for (ReadExtent const& extent : job.request.plan->extents()) {
    if (seen.insert(extent.file).second) {
      job.request.files[extent.file]->file().check_unchanged();
    }
  }
}

}  // namespace noria
