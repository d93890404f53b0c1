/// Page-aligned memory that the kernel can always pin for direct I/O.
#pragma once

#include <noria/bytes.h>

#include <cstddef>
#include <span>

namespace noria {

/// Owns a block of anonymous memory that begins on a page. Movable; the pages are given back on destruction, so every
/// read into them must have completed by then. Pages cost memory only once touched.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  /// Throws std::bad_alloc. `bytes` is rounded up to whole pages; 0 gives an empty buffer.
  explicit AlignedBuffer(Bytes bytes);
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(AlignedBuffer const&) = delete;
  AlignedBuffer& operator=(AlignedBuffer const&) = delete;
  ~AlignedBuffer() { release(); }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  void release() noexcept;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace noria
