#pragma once
// Turns the exception of a call into text, and looks for a part of a text.

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
/// Expects a part in a text. A failure shows both. For files that include gtest.
#define EXPECT_CONTAINS(text, part) EXPECT_PRED2(contains, text, std::string_view(part))

}  // namespace gossamer
