/// What a call says when it fails.
#pragma once

#include <exception>
#include <string>

namespace noria::testing {

template <typename Work>
std::string message_of(Work const& work) {
  try {
    work();
  } catch (std::exception const& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace noria::testing
