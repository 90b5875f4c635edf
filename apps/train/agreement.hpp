#pragma once
// Steps of the start-up that may fail on one rank alone (a file that only one host has). All ranks
// learn of it and leave together, and one of them says why.

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

/// Thrown on every rank when one has failed.
class JointFailure : public std::exception {
 public:
  JointFailure(std::string text, ExitCode code) : text_(std::move(text)), code_(code) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  std::string text_;
  ExitCode code_;
};

/// Collective. `error` is what this rank failed with, if it did. Throws JointFailure with the first
/// rank's error; names the rank unless rank 0 has the same error.
void agree_on_success(Communicator& communicator, const std::exception* error);

/// Collective. Runs `work`, which must not communicate, and returns its result unless it failed
/// anywhere; then throws JointFailure everywhere.
template <class Work>
auto jointly(Communicator& communicator, const Work& work) {
  std::optional<decltype(work())> result;
  try {
    result.emplace(work());
  } catch (const std::exception& error) {
    agree_on_success(communicator, &error);
    throw;
  }
  agree_on_success(communicator, nullptr);
  return std::move(*result);
}

/// Runs one rank's `body`, which returns an exit code. Errors that every rank has alike
/// (JointFailure, ConfigError: after the start-up those come from comparisons between ranks, or
/// from what all were given) are said once, by rank 0, and turned into their exit code; all ranks
/// then leave in the ordinary way.
int leaving_together(const World& world, const std::function<int()>& body);

}  // namespace gossamer::apps
