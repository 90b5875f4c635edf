#pragma once
// A session is the stay of one rank in a world, from meeting the other ranks to leaving them.
// launch() opens sessions and runs a function on each. A program that has threads of its own, such
// as an interpreter of Python, opens sessions itself.
//
// Protocol: open_sessions() returns the sessions of this process: one for each rank that is a
// thread, or one alone where ranks are processes. Use the communicator, then call either close() or
// abort() once. All objects that use the communicator must be gone before close(). A session that
// goes without either has failed for the other ranks.
//
// No rank waits without end for a rank that has left. A rank that waits only for ranks that have
// closed their sessions soon fails with a CommError. So does every rank that uses a communicator
// after another rank's abort().
//
// Thread safety: one thread uses a session and its communicator. Destructors do not communicate.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

class Session {
 public:
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  virtual ~Session() = default;

  /// Belongs to the session.
  [[nodiscard]] virtual Communicator& communicator() = 0;
  [[nodiscard]] virtual const World& world() const = 0;
  /// This rank has begun so many steps. A rank that waits for others says how many steps they are
  /// behind, where all ranks tell their steps.
  virtual void tell_steps(std::int64_t num_steps) = 0;
  /// Lets operations wait without a time limit for ranks that are alive, from now on. This rank has
  /// done its work, and other ranks may write their results for a long time. close() calls it.
  virtual void lift_timeout() = 0;
  /// Waits until no operation of this rank is under way, and leaves. Where ranks are processes,
  /// waits for all ranks to leave as well. Throws CommError.
  virtual void close() = 0;
  /// Tells the other ranks that this one has failed, and why. Their operations then fail with a
  /// CommError that has this exit code. Logs the reason and returns true, unless another rank has
  /// failed before. Under MPI ends this process and the job, with the exit code.
  virtual bool abort(ExitCode code, std::string_view reason) = 0;
};

using Sessions = std::vector<std::unique_ptr<Session>>;

}  // namespace gossamer
