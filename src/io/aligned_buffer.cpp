#include "io/aligned_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace noria {
namespace {

// From this size on huge pages save page faults and pinning work; below it they would only waste memory.
constexpr Bytes kHugePageWorthwhile = Bytes{2} << 20U;

}  // namespace

AlignedBuffer::AlignedBuffer(Bytes bytes) {
  if (bytes == 0) {
    return;
  }
  auto const page = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
  Bytes const rounded = align_up(bytes, page);
  if (rounded < bytes) {
    throw std::bad_alloc();
  }
  void* const block = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) {
    throw std::bad_alloc();
  }
  data_ = static_cast<std::byte*>(block);
  size_ = rounded;
  if (rounded >= kHugePageWorthwhile) {
    ::madvise(data_, size_, MADV_HUGEPAGE);
  }
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void AlignedBuffer::release() noexcept {
  if (data_ != nullptr) {
    ::munmap(std::exchange(data_, nullptr), std::exchange(size_, 0));
  }
}

}  // namespace noria
