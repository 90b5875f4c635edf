#pragma once
// The exception types, one per kind of failure, and the exit code of the program for each. A broken
// invariant of gossamer itself is a std::logic_error; it ends with kInternal.

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gossamer {

/// Exit codes of the program; part of its interface.
enum class ExitCode : int {
  kDone = 0,
  kCheckFailed = 1,
  kConfig = 2,
  kData = 3,
  kCheckpoint = 4,
  kInternal = 70,
  kPeerLost = 74,
  /// A signal has ended the run, and its checkpoint is saved; or the other ranks have gone on
  /// without this one.
  kPreempted = 75,
  kNonFinite = 76,
  // 128 and the number of the signal, as shells have it: SIGINT, SIGTERM.
  kInterrupted = 130,
  kTerminated = 143,
};

/// A configuration file, an override or a command line cannot be used. The message reads
/// `where: key: what is wrong, what is allowed`; `where` is `file:line:column` or `command line`.
class ConfigError : public std::runtime_error {
 public:
  ConfigError(std::string_view where, std::string_view key, std::string_view what);
  /// An error in a value that code has set, so there is no file and no key to name.
  explicit ConfigError(const std::string& what) : std::runtime_error(what) {}
};

/// A data file is missing, truncated or corrupt. Messages name the file and the offset in bytes.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A saved model or state cannot be written or read.
class CheckpointError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The loss or a gradient is not finite.
class NonFiniteError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A GPU or its driver has failed. No exit code of its own: ends with kInternal.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Names an operation on the wire in messages. -1 where it belongs to no bucket or round. `what` is
/// a text that lives as long as the program.
struct OpLabel {
  std::string_view what = "exchange";
  std::int64_t bucket = -1;
  std::int64_t round = -1;
};

/// `exchange of bucket 2, round 7`.
std::string to_string(const OpLabel& label);

/// A peer is lost, has failed, is late beyond the timeout, or runs another operation than this
/// rank.
class CommError : public std::runtime_error {
 public:
  struct Context {
    /// The rank that throws; -1 when it is unknown.
    int rank = -1;
    /// World ranks that this rank was waiting for; empty when unknown.
    std::vector<int> peers = {};
    OpLabel label = {};
    /// The exit code of a program that this error ends. A peer that has failed tells its own.
    ExitCode code = ExitCode::kPeerLost;
  };
  CommError(Context context, std::string_view what);
  [[nodiscard]] const Context& context() const { return context_; }
  /// The reason of the error, without the context.
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  Context context_;
  std::string reason_;
};

/// A peer is lost, or the members of the run change, and the run can go on with the others
/// (Elastic::reconfigure()).
class PeerLost : public CommError {
 public:
  /// `is_own`: this rank itself has lost the peers that the context names. Otherwise another rank
  /// has told it.
  PeerLost(Context context, std::string_view what, bool is_own = false)
      : CommError(std::move(context), what), is_own_(is_own) {}
  [[nodiscard]] bool is_own() const { return is_own_; }

 private:
  bool is_own_;
};

/// The exit code of the program that ends with `error`; kInternal for types not named above.
ExitCode exit_code_of(const std::exception& error);

}  // namespace gossamer
