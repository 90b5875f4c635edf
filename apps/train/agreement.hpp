#pragma once
// Work that may fail on one rank alone (a file that only one host has). All ranks learn of it and
// leave together, and one of them says why.

#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

/// Thrown on every rank when one has failed, or when all end for one reason.
class JointFailure : public std::exception {
 public:
  JointFailure(std::string text, ExitCode code) : text_(std::move(text)), code_(code) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  std::string text_;
  ExitCode code_;
};

/// The exit code that an error leads to, JointFailure included.
ExitCode exit_code_at_end(const std::exception& error);
/// A signal has ended the run.
bool is_stop(const std::exception& error);

/// Collective. `error` is what this rank failed with, if it did. Throws JointFailure with the first
/// rank's error; names the rank unless rank 0 has failed.
void agree_on_success(Communicator& communicator, const std::exception* error);
/// Collective. The same for work that goes on elsewhere. Ranks whose work has ended meet the others
/// again and again until all have ended, so nobody waits for long without a sign of life.
void agree_on_end(Communicator& communicator, const std::shared_future<void>& work);

/// Collective. Runs `work`, which must not communicate, and returns its result unless it failed
/// anywhere; then throws JointFailure everywhere. For work that is quick: a rank that waits longer
/// than comm.timeout_s for the others gives up.
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

/// Collective. As jointly(), and `work` may take as long as it likes, on a slow disk for example.
/// It runs on a thread of its own.
template <class Work>
auto jointly_slow(Communicator& communicator, const Work& work) {
  std::optional<decltype(work())> result;
  agree_on_end(communicator,
               std::async(std::launch::async, [&] { result.emplace(work()); }).share());
  return std::move(*result);
}

/// Runs one rank's `body`, which returns an exit code. Errors that every rank has alike
/// (JointFailure, ConfigError: after the start-up those come from comparisons between ranks, or
/// from what all were given) are said once, by rank 0, and turned into their exit code; all ranks
/// then leave in the ordinary way.
int leaving_together(const World& world, const std::function<int()>& body);

}  // namespace gossamer::apps
