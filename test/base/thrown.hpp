#pragma once
// What a call throws, as text.

#include <string>

namespace gossamer {

/// The message of the Error that `call` throws; empty when it returns. Other exceptions pass, so
/// that a test fails with their text.
template <class Error, class Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace gossamer
