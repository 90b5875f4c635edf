#pragma once
// What a call throws, as text.

#include <string>
#include <string_view>

namespace gossamer {

/// The message of the Error that `call` throws; empty when it returns. Other exceptions pass, so
/// that a test fails with their text.
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
