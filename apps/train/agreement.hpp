#pragma once
// Work that may fail on one rank alone, for example because only one host has a file. All ranks
// learn of the failure and leave together, and rank 0 prints the reason.
//
// Thread safety: each rank calls from the thread that uses its communicator. Errors: JointFailure
// for failed work, CommError.

#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

/// Thrown on every rank when one rank has failed, or when all ranks end for one reason.
class JointFailure : public std::exception {
 public:
  JointFailure(std::string text, ExitCode code) : text_(std::move(text)), code_(code) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  std::string text_;
  ExitCode code_;
};

/// The exit code of a run that ends with `error`. A JointFailure has its own code.
ExitCode exit_code_at_end(const std::exception& error);
/// True if a signal has ended the run.
bool is_stop(const std::exception& error);

/// Collective. `error` is the error of this rank; null: it has none. Throws JointFailure with the
/// error of the first rank that has one. The message names the rank, unless it is rank 0.
void agree_on_success(Communicator& communicator, const std::exception* error);
/// Collective. Like agree_on_success(), for work that runs on another thread. All ranks meet again
/// and again until the work of every rank has ended, so that a slow rank does not look like a lost
/// one.
void agree_on_end(Communicator& communicator, const std::shared_future<void>& work);

/// Collective. Runs `work`, which must not communicate, and returns its result. If it fails on any
/// rank, every rank throws JointFailure. Only for quick work: a rank that waits longer than
/// comm.timeout_s for the others gives up.
template <class Work>
auto all_or_none(Communicator& communicator, const Work& work) {
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

/// Collective. Like all_or_none(), but `work` may take any time, for example on a slow disk. It
/// runs on a thread of its own.
template <class Work>
auto all_or_none_slow(Communicator& communicator, const Work& work) {
  std::optional<decltype(work())> result;
  agree_on_end(communicator,
               std::async(std::launch::async, [&] { result.emplace(work()); }).share());
  return std::move(*result);
}

/// A ConfigError that this rank may have alone: a model's own code has refused the rank's batch.
class RankLocalError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Runs `work`, in which ranks compute on values of their own. A ConfigError becomes a
/// RankLocalError.
template <class Work>
auto rank_local(const Work& work) {
  try {
    return work();
  } catch (const ConfigError& error) {
    throw RankLocalError(error.what());
  }
}

/// Runs one rank's `body`, which returns an exit code. A JointFailure occurs on all ranks together,
/// and so does a ConfigError outside rank_local(), because all ranks compare or read the same
/// values. For these two errors rank 0 prints the message, every rank returns the exit code, and
/// all ranks leave in the ordinary way. Other errors pass through, and end the job at once
/// (launch()).
int exit_together(const World& world, const std::function<int()>& body);

}  // namespace gossamer::apps
