/// The combinations that every read engine must serve: engine x mode x file system.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "io/faulty_engine.h"
#include "io/read_engine.h"
#include "io/reader.h"

namespace noria::testing {

struct ReadCase {
  EngineKind engine = EngineKind::kThreads;
  bool faulty = false;  ///< wrapped, with shorts, interruptions, delays and another order
  bool direct = false;
  bool memory = false;  ///< the file lives on tmpfs
  [[nodiscard]] std::string name() const;
  friend std::ostream& operator<<(std::ostream& out, ReadCase const& read_case) { return out << read_case.name(); }
};

std::vector<ReadCase> all_read_cases();

/// Where files of this case live; empty when this machine has no such place.
std::optional<std::filesystem::path> place_of(ReadCase const& read_case);

/// Why the case cannot run here, empty when it can.
std::string skip_reason(ReadCase const& read_case);

/// The faults of a `faulty` case.
FaultScript everyday_faults();

std::unique_ptr<ReadEngine> make_engine(ReadCase const& read_case, std::size_t depth);
/// A reader of this case, its engine wrapped by `script` when given, else by the everyday faults when faulty.
ReaderOptions reader_options(ReadCase const& read_case, std::optional<FaultScript> script = {});

/// Bytes that tell their own position.
std::string pattern(std::size_t bytes, unsigned seed = 0);

}  // namespace noria::testing
