#pragma once
// The one thread per rank that drives all communication. MPI moves nothing by itself, so a thread
// must keep calling it while the rank computes. The threads backend uses the same worker, so both
// backends have the same timing, watchdog and error paths.
//
// Protocol: submit() hands over an Operation. The worker starts operations in the order submitted.
// An operation that has to wait (OpContext::after, ready, prepare), or that does not let the next
// one start, holds up only later operations of its own channel. The worker tests the started
// operations in turn and ends their Requests. After a turn without progress it sleeps; it never
// spins. Some operations tell when a peer has moved them (is_woken(), Doorbell). The worker asks
// all others again after a short pause.
//
// Failures: an operation that throws, or that waits longer than the timeout, fails all operations
// that the worker holds (in flight and still queued) and all later ones with the same error. A
// CommError names rank, peers, bucket and round of the operation that failed. From then on the
// worker receives nothing more. The owners of operations that were in flight stay alive until the
// worker is destroyed. Time in which the whole process was stopped does not count as waiting. For a
// letter only the time counts in which somebody waits for its request, or drains the worker. An
// operation that waits for ranks which have all left the world (Attendance) fails much sooner.
//
// The timeout holds for peers and for this rank's device: for the event `ready`, and for the work
// that prepare() and finish() have given to a stream (DeviceError). That work may stand on the
// device behind other operations, which have a time limit of their own. So only the time counts in
// which this worker has started and ended no operation.
//
// Stopping the worker fails the operations that it still holds. A caller never waits for ever: a
// worker that hangs in a call lets waiting callers go after timeout_s + margin_s (WorkerPulse).
//
// Thread safety: submit(), drain(), check() and cpu_s() from any thread; hooks run on the worker.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/attendance.hpp"
#include "comm/communicator.hpp"
#include "comm/doorbell.hpp"
#include "comm/worker_pulse.hpp"

namespace gossamer {

/// One thing on the wire. All calls come from the worker.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual void start() = 0;
  /// Moves it on without blocking; true when it is over.
  virtual bool test() = 0;
  /// Asked after start(): whether the next operation of the same channel may start before this one
  /// is over.
  [[nodiscard]] virtual bool lets_next_start() const { return true; }
  /// A letter may wait for any time while nobody waits for it.
  [[nodiscard]] virtual bool is_letter() const { return false; }
  /// Whether a peer that moves it on tells the worker's bell.
  [[nodiscard]] virtual bool is_woken() const { return false; }
  /// World ranks that have not done their part yet, as far as this rank can tell. Before start():
  /// all others that take part.
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
    /// Seconds beyond the timeout after which callers take a worker for stuck; a diagnosis must fit
    /// in.
    double margin_s = 30.0;
    /// The longest sleep after a turn without progress while the worker must ask. Short enough that
    /// a wait costs little, long enough that a rank which shares its core loses well under one
    /// percent.
    std::chrono::microseconds short_pause{50};
    /// The same while the worker holds no operation, or only those that wake it.
    std::chrono::microseconds long_pause{20'000};
    /// Who has left; null: nobody leaves before the others.
    std::shared_ptr<const Attendance> attendance = {};
    /// True: a rank that has left, or that is late beyond the timeout, is a PeerLost.
    bool survives = false;
    /// Seconds in which what a rank has sent before it left may still arrive.
    double grace_s = 0.1;
    /// LaunchOptions::while_waiting.
    std::function<void()> while_waiting = {};
    /// What wakes the worker; null: a bell that nobody else knows.
    std::shared_ptr<Doorbell> bell = {};
    /// Called once per turn, and every few milliseconds when idle; may throw CommError.
    std::function<void()> service = {};
    /// Called when the worker has failed, before anybody learns of it. From then on nothing may be
    /// received into blocks, or sent from them. Must not throw.
    std::function<void(const std::exception_ptr& error)> failed = {};
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
  /// Blocks until nothing is in flight. Throws the error that the worker failed with.
  void drain();
  /// Throws the error that the worker failed with. Never blocks.
  void check();
  /// Seconds of processor time that the worker has used so far. Not after stop().
  [[nodiscard]] double cpu_s();
  /// Ends the thread, fails everything that the worker still holds, and everything submitted later.
  /// Called by the destructor.
  void stop();

 private:
  enum class Wait : std::uint8_t { kNone, kDevice, kPeers };
  struct Active {
    /// First, so that it goes last: nobody learns of the end while owners are still in use.
    Completion completion;
    OpContext context;
    const void* channel = nullptr;
    /// Whom it waits for, and for how long; set by wait_for().
    Wait wait = Wait::kNone;
    double waited_s = 0.0;
    /// For how long all those have left; empty: not all have.
    std::optional<double> left_s = {};
    /// The end of the work that prepare() or finish() has given to a stream.
    EventPtr under_way = {};
    /// Last, so that it goes first: while it ends it may still touch what the context owns.
    std::unique_ptr<Operation> operation;
  };

  void run();
  /// Returns false when it is time to end.
  bool take_submitted();
  /// Returns whether an operation has started.
  bool start_submitted();
  static void start(Active& entry);
  /// Whether this operation, which is under way, keeps later ones of its channel from starting.
  static bool is_holding(const Active& entry);
  /// Whether any operation under way keeps those of this channel from starting.
  [[nodiscard]] bool is_held_up(const void* channel) const;
  /// Whether nothing of its own keeps it from starting. Throws when `after` has failed.
  static bool is_ready(Active& entry);
  /// Returns whether an operation has ended, or lets the next one start from now on.
  bool test_active();
  /// Moves an operation on; true when it is over.
  static bool test(Active& entry);
  /// Runs `step`. Adds rank, peers and label of `entry` to errors that lack them.
  template <class Step>
  auto explained(const Active& entry, const Step& step);
  static void wait_for(Active& entry, Wait wait);
  /// Counts the time that operations wait. `progressed`: one has started or ended.
  void watch(double elapsed_s, bool progressed);
  /// Whether the time that passes now counts as waiting.
  [[nodiscard]] bool is_awaited(const Active& entry) const;
  [[noreturn]] void give_up(const Active& late);
  /// Throws CommError if an operation has waited long enough for ranks that have left.
  void check_attendance(Active& entry, double elapsed_s) const;
  void fail_everything(const std::exception_ptr& error);
  /// Whether something of which no bell tells may move an operation on.
  [[nodiscard]] bool must_ask() const;
  void pause(bool progressed);

  Config config_;
  std::shared_ptr<Doorbell> bell_;
  std::shared_ptr<WorkerPulse> pulse_;
  std::mutex mutex_;
  std::condition_variable drained_;
  std::deque<Active> submitted_;  // guarded by mutex_
  std::size_t in_flight_ = 0;     // guarded by mutex_; submitted and active ones
  bool stopping_ = false;         // guarded by mutex_
  std::exception_ptr failure_;    // guarded by mutex_
  std::atomic<bool> is_draining_ = false;
  std::deque<Active> starting_;  // the worker's own; in the order submitted
  std::vector<Active> active_;   // the worker's own
  /// Owners of failed operations: MPI cannot withdraw a receive that a network card knows of.
  std::vector<std::shared_ptr<void>> abandoned_;  // the worker's own
  std::thread thread_;
};

}  // namespace gossamer
