#pragma once
// The ranks of a run as processes of this program on this machine. Each is started with the
// arguments of this process, and with variables of its own.
//
// Protocol: construct before any other thread runs, then call wait() once. Signals that end a run
// (SIGINT, SIGTERM, SIGHUP, SIGUSR1) go on to all processes. When a process has failed, the others
// learn of it from their backend, and have ten seconds to end; after such a signal a minute. Not
// thread safe. Errors: std::system_error when the system starts no process; those that run are then
// killed.

#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <vector>

#include <sys/types.h>

#include "comm/start/start.hpp"

namespace gossamer::apps {

class LocalProcesses {
 public:
  /// Starts `count` processes. `variables` gives the variables of a rank, beside the environment of
  /// this process. `survives`: the others go on when one has failed (fault.mode).
  LocalProcesses(int count, const std::function<Variables(int rank)>& variables,
                 bool survives = false);
  /// Kills what still runs.
  ~LocalProcesses();
  LocalProcesses(const LocalProcesses&) = delete;
  LocalProcesses& operator=(const LocalProcesses&) = delete;

  /// Waits until all have ended. Returns the exit code of the first that has failed, else 0. A
  /// process that a signal has ended counts as 128 and the number of the signal. Where the others
  /// go on, returns 0 if one of them has come to the end of the run.
  int wait();
  /// After wait(): a sentence, where a signal that asked the run to end has ended a process that
  /// did not listen yet; empty otherwise.
  [[nodiscard]] std::string end_before_begin() const;

 private:
  struct Process {
    int rank = 0;
    pid_t pid = 0;
  };

  struct Failure {
    int rank = 0;
    /// 0: none.
    int code = 0;
    /// A signal has ended the process, which did not listen yet.
    bool is_by_signal = false;
  };

  void start(int rank, const Variables& variables);
  void pass_on(int signal);
  /// Takes processes that have ended from `running_`.
  void collect();
  void kill_late();
  [[nodiscard]] std::chrono::seconds patience() const;
  void clear_away();

  bool survives_;
  /// One of the processes has come to the end of the run.
  bool is_done_ = false;
  sigset_t signals_{};
  sigset_t blocked_before_{};
  std::vector<Process> running_;
  Failure first_failure_;
  std::chrono::steady_clock::time_point end_of_patience_{};
  /// The last signal that was passed on to the processes; 0: none. Its sender knows why the
  /// processes end.
  int passed_on_ = 0;
  /// The first signal that asked the run to end; 0: none.
  int stopped_by_ = 0;
};

/// Starts the ranks of a `start` with `num_processes`, serves their store, and waits for them.
/// Returns their exit code. For any other start returns nothing,
/// and this process goes on; if it has a parent, the system kills it when the parent ends. Errors:
/// as LocalProcesses, and CommError. `listens`: the ranks catch signals once they have begun, so a
/// rank that a signal has ended had not begun, and the user is told so.
std::optional<int> run_processes(const Start& start, bool listens = false);

}  // namespace gossamer::apps
