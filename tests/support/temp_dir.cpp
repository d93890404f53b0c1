#include "support/temp_dir.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

namespace noria::testing {

TempDir::TempDir(std::filesystem::path const& parent) {
  std::string pattern = (parent / "noria-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error("cannot make a folder in " + parent.string());
  }
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(std::filesystem::path const& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) {
    throw std::runtime_error("cannot write " + path.string());
  }
}

void write_file(std::filesystem::path const& path, std::span<std::byte const> bytes) {
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): a span of bytes, not a string
  write_file(path, std::string_view(reinterpret_cast<char const*>(bytes.data()), bytes.size()));
}

std::string read_file(std::filesystem::path const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace noria::testing
