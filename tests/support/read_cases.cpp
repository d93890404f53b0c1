#include "support/read_cases.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cerrno>

#include "io/source_file.h"
#include "support/temp_dir.h"

namespace noria::testing {

std::string ReadCase::name() const {
  std::string text = faulty ? "faulty_" : "";
  text += engine == EngineKind::kUring ? "uring" : "threads";
  text += direct ? "_direct" : "_buffered";
  return text + (memory ? "_tmpfs" : "_disk");
}

std::vector<ReadCase> all_read_cases() {
  std::vector<ReadCase> cases;
  for (EngineKind const engine : {EngineKind::kUring, EngineKind::kThreads}) {
    for (bool const faulty : {false, true}) {
      for (bool const direct : {true, false}) {
        for (bool const memory : {false, true}) {
          cases.push_back({.engine = engine, .faulty = faulty, .direct = direct, .memory = memory});
        }
      }
    }
  }
  return cases;
}

std::optional<std::filesystem::path> place_of(ReadCase const& read_case) {
  for (std::filesystem::path const& place :
       {std::filesystem::temp_directory_path(), std::filesystem::path("/dev/shm"), std::filesystem::path("/var/tmp")}) {
    struct statfs status{};
    if (::statfs(place.c_str(), &status) == 0 && (status.f_type == TMPFS_MAGIC) == read_case.memory) {
      return place;
    }
  }
  return std::nullopt;
}

std::string skip_reason(ReadCase const& read_case) {
  if (read_case.engine == EngineKind::kUring && !uring_unusable_reason().empty()) {
    return "no io_uring here: " + uring_unusable_reason();
  }
  std::optional<std::filesystem::path> const place = place_of(read_case);
  if (!place) {
    return read_case.memory ? "no tmpfs here" : "no folder on a disk here";
  }
  if (read_case.direct) {
    TempDir const folder(*place);
    write_file(folder / "probe", std::string(8192, 'x'));
    SourceFile const probe(File::open(folder / "probe"));
    if (!probe.direct_usable()) {
      return "no direct reads in " + place->string() + ": " + probe.caps().how;
    }
  }
  return {};
}

FaultScript everyday_faults() {
  using enum Fault::Kind;
  return {.faults = {{.kind = kError, .value = EINTR, .first = 2, .every = 5},
                     {.kind = kShort, .value = -1, .first = 3, .every = 7},
                     {.kind = kShort, .value = 512, .first = 4, .every = 11},
                     {.kind = kError, .value = EAGAIN, .first = 5, .every = 13},
                     {.kind = kDelay, .value = 3, .first = 1, .every = 3}},
          .reorder_seed = 42};
}

std::unique_ptr<ReadEngine> make_engine(ReadCase const& read_case, std::size_t depth) {
  std::unique_ptr<ReadEngine> engine = make_read_engine({.kind = read_case.engine, .depth = depth});
  if (read_case.faulty) {
    engine = std::make_unique<FaultyEngine>(std::move(engine), everyday_faults());
  }
  return engine;
}

ReaderOptions reader_options(ReadCase const& read_case, std::optional<FaultScript> script) {
  ReaderOptions options{.engine = {.kind = read_case.engine, .depth = 4},
                        .mode = read_case.direct ? ReadMode::kDirect : ReadMode::kBuffered,
                        .chunk_bytes = Bytes{1} << 20U};
  if (!script && read_case.faulty) {
    script = everyday_faults();
  }
  if (script) {
    options.wrap = [script = *script](std::unique_ptr<ReadEngine> engine) -> std::unique_ptr<ReadEngine> {
      return std::make_unique<FaultyEngine>(std::move(engine), script);
    };
  }
  return options;
}

std::string pattern(std::size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  std::uint64_t state = seed + 1;
  for (char& c : text) {
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth, MMIX
    c = static_cast<char>(state >> 56U);
  }
  return text;
}

}  // namespace noria::testing
