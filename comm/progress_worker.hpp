#pragma once
// The one thread per rank that drives all communication. MPI moves nothing by itself, so somebody
// must keep calling it while the rank computes; the threads backend uses the same worker, so both
// have the same timing, watchdog and error paths.
//
// Protocol: submit() hands over an Operation; the worker starts operations in the order submitted,
// except that one which has to wait (OpContext::after, ready, prepare) holds up those of its own
// channel only. It tests what it has started in turn, and ends their Requests.
// Between turns without progress it sleeps; it never spins. An operation that waits longer than the
// timeout, or throws, fails every operation in flight and every later one with the same CommError,
// and ends all service: nothing is received any more, and the owners of what was in flight stay
// until the worker goes. Time in which the whole process was stopped does not count as waiting.
//
// Thread safety: submit() and drain() from any thread; hooks run on the worker.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.hpp"

namespace gossamer {

/// One thing on the wire. All calls come from the worker.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual void start() = 0;
  /// Moves it on without blocking; true when it is over.
  virtual bool test() = 0;
  /// World ranks that have not done their part yet, as far as this rank can tell.
  [[nodiscard]] virtual std::vector<int> waiting_for() const = 0;
};

class ProgressWorker {
 public:
  /// What a timeout turns into: the ranks to name, and the sentence about them.
  struct Diagnosis {
    std::vector<int> peers;
    std::string text;
  };
  struct Config {
    /// The world rank that errors name.
    int rank = 0;
    /// Seconds that an operation may wait.
    double timeout_s = 300.0;
    /// Called once per turn, and every few milliseconds when idle; may throw CommError.
    std::function<void()> service = {};
    /// Finds out why `peers` keep this rank waiting; may take seconds.
    std::function<Diagnosis(const std::vector<int>& peers)> diagnose = {};
  };

  explicit ProgressWorker(Config config);
  ~ProgressWorker();
  ProgressWorker(const ProgressWorker&) = delete;
  ProgressWorker& operator=(const ProgressWorker&) = delete;

  /// Operations of one channel start in the order submitted; null: a channel of its own.
  Request submit(std::unique_ptr<Operation> operation, OpContext context,
                 const void* channel = nullptr);
  /// Blocks until nothing is in flight. Throws what the worker failed with.
  void drain();
  /// Throws what the worker failed with. Never blocks.
  void check();
  /// Ends the thread; what is still in flight is dropped. Called by the destructor.
  void stop();

 private:
  struct Active {
    std::shared_ptr<RequestState> state;
    OpContext context;
    const void* channel = nullptr;
    double waited_s = 0.0;
    /// What prepare() or finish() has begun.
    EventPtr under_way = {};
    /// Last, so that it goes first: while it ends it may still touch what the context owns.
    std::unique_ptr<Operation> operation;
  };

  void run();
  /// Returns false when it is time to end.
  bool take_submitted();
  void start_submitted();
  /// Whether it may start, as far as it itself is concerned.
  static bool is_ready(Active& entry);
  bool test_active();
  /// Moves it on; true when it is over.
  static bool test(Active& entry);
  /// Runs `step`; errors that do not know what they belong to learn it here.
  template <class Step>
  auto explained(const Active& entry, const Step& step);
  void watch(double elapsed_s);
  [[noreturn]] void give_up(const Active& late);
  void fail_everything(const std::exception_ptr& error);
  void pause(bool progressed);

  Config config_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable drained_;
  std::deque<Active> submitted_;  // guarded by mutex_
  std::size_t in_flight_ = 0;     // guarded by mutex_; submitted and active ones
  bool stopping_ = false;         // guarded by mutex_
  std::exception_ptr failure_;    // guarded by mutex_
  std::deque<Active> starting_;   // the worker's own; in the order submitted
  std::vector<Active> active_;    // the worker's own
  /// Of what has been given up: MPI has no way to take back what a network card has been told.
  std::vector<std::shared_ptr<void>> abandoned_;  // the worker's own
  std::thread thread_;
};

}  // namespace gossamer
