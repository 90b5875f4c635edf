#pragma once
// Turns the exception of a call into text.

#include <string>
#include <string_view>

namespace gossamer {

/// The message of the Error that `call` throws; empty if `call` returns. Other exceptions leave
/// this function, so that the test fails with their text.
template <class Error, class Call>
std::string what_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace gossamer
