#pragma once
// The one thread per rank that drives all communication. MPI moves nothing by itself, so a thread
// must keep calling it while the rank computes. The threads backend uses the same worker, so both
// backends have the same timing, watchdog and error paths.
//
// Protocol: submit() hands over an Operation. The worker starts operations in the order submitted.
// An operation that has to wait (OpContext::after, ready, prepare), or that does not let the next
// operation start, holds up only later operations of its own channel. The worker tests the started
// operations in turn and ends their Requests. After a turn without progress it sleeps; it never
// spins. Some operations wake the worker when a peer has moved them (is_woken(), Doorbell). The
// worker tests all other operations again after a short pause.
//
// Failures: an operation fails if it throws, or makes no progress for the timeout. All operations
// that the worker holds (in flight and still queued) and all later operations then fail with the
// same error. A CommError names rank, peers, bucket and round of the operation that failed. From
// then on the worker receives nothing more. The owners of operations that were in flight stay alive
// until the worker is destroyed. Time in which the whole process was stopped does not count as
// waiting. For a tagged message only the time counts in which a thread waits for its request, or
// drains the worker. An operation that waits for ranks which have all left the world (Attendance)
// fails much sooner.
//
// An operation makes progress when its Progress changes. It also does when anything but a sign of
// life moves on the connections with the ranks that it is linked_with(), in either direction
// (Config::idle_s). All buckets of a model share these connections, so an operation whose turn has
// not come makes progress as well. Traffic with other ranks is no progress.
//
// The timeout holds for peers and for this rank's device: for the event `ready`, and for the work
// that prepare() and finish() have given to a stream (DeviceError). That work may stand on the
// device behind other operations, which have a time limit of their own. So only the time counts in
// which this worker has started and ended no operation.
//
// Before an operation gives up, the worker warns once, after Config::notice_s. The warning names
// the peers, and the reason where Config::hint knows it. So a user finds a rank that has left out a
// batch without the whole wait. Where the time limit is shorter, there is no warning.
//
// Steps: where Config::attendance knows the steps of the ranks, the worker warns earlier if a rank
// is behind another one:
//
// 1. It warns after Config::patience_s.
// 2. The warning, and the error at the time limit, say which rank is how many steps behind.
// 3. Each warning doubles the patience, up to Config::notice_s. So a rank that is slow now and
//    then, for an evaluation, causes few warnings.
//
// A rank that has done its work waits for the others, which may write their results for long. After
// lift_timeout() an operation gives up only where the diagnosis finds a rank that is not alive.
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
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "comm/communicator.hpp"
#include "comm/worker/attendance.hpp"
#include "comm/worker/doorbell.hpp"
#include "comm/worker_pulse.hpp"

namespace gossamer {

/// How far an operation has come. Every change of it shows that the operation moves on.
struct Progress {
  /// Bytes that have been given to the network or have come from it.
  std::int64_t moved = 0;
  /// Bytes that the operation sends and receives, as far as it knows. 0: its backend does not tell
  /// how many have moved.
  std::int64_t total = 0;
  /// Other signs, such as members that have come.
  std::int64_t num_events = 0;

  Progress& operator+=(const Progress& other) {
    moved += other.moved;
    total += other.total;
    num_events += other.num_events;
    return *this;
  }
  bool operator==(const Progress&) const = default;
};

/// One operation on the wire. All calls come from the worker.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual void start() = 0;
  /// Moves it on without blocking; true when it is over.
  virtual bool test() = 0;
  /// Asked after start(): whether the next operation of the same channel may start before this one
  /// is over.
  [[nodiscard]] virtual bool lets_next_start() const { return true; }
  /// A tagged message may take any time while no thread waits for it.
  [[nodiscard]] virtual bool is_tagged() const { return false; }
  /// Whether a peer that moves it on tells the worker's bell.
  [[nodiscard]] virtual bool is_woken() const { return false; }
  /// World ranks that have not done their part yet, as far as this rank can tell. Before start():
  /// all others that take part.
  [[nodiscard]] virtual std::vector<int> waiting_for() const = 0;
  /// Asked after start(): the world ranks whose connections carry its messages at present.
  [[nodiscard]] virtual std::vector<int> linked_with() const { return waiting_for(); }
  [[nodiscard]] virtual Progress progress() const { return {}; }
};

class ProgressWorker {
 public:
  /// The content of the error after a timeout: the ranks to name, and the sentence about them.
  struct Diagnosis {
    std::vector<int> peers;
    std::string text;
    /// Whether every rank gives signs of life.
    bool are_alive = false;
  };
  /// The sentence where every rank gives signs of life.
  static constexpr std::string_view kAllAlive =
      "all ranks are alive, but the named peers have not come to this point, wait for another rank "
      "themselves, or do not get through to this rank; if that is normal (a long evaluation, a "
      "slow "
      "disk), set a larger comm.timeout_s";
  struct Config {
    /// The world rank that errors name.
    int rank = 0;
    /// Seconds that an operation may wait without progress.
    double timeout_s = 300.0;
    /// Seconds without progress after which the worker warns.
    double notice_s = 60.0;
    /// Seconds without progress after which the worker warns where a rank is behind.
    double patience_s = 8.0;
    /// Seconds beyond the timeout after which callers take a worker for stuck; a diagnosis must fit
    /// in.
    double margin_s = 30.0;
    /// The longest sleep after a turn without progress while the worker must ask. Short enough that
    /// a wait costs little, long enough that a rank which shares its core loses well under one
    /// percent.
    std::chrono::microseconds short_pause{50};
    /// The pause while the worker holds no operation, or only operations that wake it.
    std::chrono::microseconds long_pause{20'000};
    /// Which ranks have left, and the steps of all; null: no rank leaves before the others.
    std::shared_ptr<const Attendance> attendance = {};
    /// True: a rank that has left, or that is late beyond the timeout, is a PeerLost.
    bool survives = false;
    /// Seconds in which what a rank has sent before it left may still arrive.
    double grace_s = 0.1;
    /// LaunchOptions::while_waiting.
    std::function<void()> while_waiting = {};
    /// What wakes the worker; null: a bell of its own.
    std::shared_ptr<Doorbell> bell = {};
    /// Called once per turn, and every few milliseconds when idle; may throw CommError.
    std::function<void()> service = {};
    /// Called when the worker has failed, before anybody learns of it. From then on nothing may be
    /// received into blocks, or sent from them. Must not throw.
    std::function<void(const std::exception_ptr& error)> failed = {};
    /// Finds out why `peers` keep this rank waiting; may take seconds. `so_far` says how long the
    /// rank has waited, and how far the operation has come.
    std::function<Diagnosis(const std::vector<int>& peers, const std::string& so_far)> diagnose =
        {};
    /// Seconds since anything but a sign of life has moved between this rank and one of `peers`.
    /// Null: only the operations tell.
    std::function<double(const std::vector<int>& peers)> idle_s = {};
    /// A sentence that tells why `peers` may keep this rank waiting; empty: nothing is known. Must
    /// not block. Null: nothing is ever known.
    std::function<std::string(const std::vector<int>& peers)> hint = {};
    /// Asks all ranks for their steps, which come to `attendance`; must not block. Null: the ranks
    /// tell them without being asked.
    std::function<void()> ask = {};
    /// Where warnings go.
    Logger logger = {};
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
  /// Lets operations wait without a time limit for peers that are alive, from now on. Any thread
  /// may call it.
  void lift_timeout() { has_limit_ = false; }
  /// Throws the error that the worker failed with. Never blocks.
  void check();
  /// Whether an operation has made no progress for the timeout, and no operation of its kind and
  /// bucket has ever ended on this worker. Any thread may ask.
  [[nodiscard]] bool has_stalled() const { return has_stalled_; }
  /// Seconds of processor time that the worker has used so far. Not after stop().
  [[nodiscard]] double cpu_s();
  /// Ends the thread, fails everything that the worker still holds, and everything submitted later.
  /// Called by the destructor.
  void stop();

 private:
  enum class Wait : std::uint8_t { kNone, kDevice, kPeers };
  struct Active {
    /// The first member, so that it is destroyed last: no thread learns of the end while owners are
    /// in use.
    Completion completion;
    OpContext context;
    const void* channel = nullptr;
    /// The condition for which the operation waits; set by wait_for().
    Wait wait = Wait::kNone;
    double waited_s = 0.0;
    /// How far the operation had come when the worker last asked it.
    Progress progress = {};
    /// Seconds since all peers that the operation waits for have left; empty: not all have.
    std::optional<double> left_s = {};
    /// The end of the work that prepare() or finish() has given to a stream.
    EventPtr under_way = {};
    /// The last member, so that it is destroyed first: at its end it may touch what the context
    /// owns.
    std::unique_ptr<Operation> operation;
  };

  /// What the worker knows of its warnings about ranks that are late.
  struct Warnings {
    /// Whether the worker has warned since an operation last ended.
    bool has_noticed = false;
    /// Whether the worker has asked all ranks for their steps since an operation last ended.
    bool has_asked = false;
    /// Config::patience_s, after the warnings so far.
    double patience_s = 0.0;
  };

  void run();
  /// Returns false when it is time to end.
  bool take_submitted();
  /// Returns whether an operation has started.
  bool start_submitted();
  static void start(Active& entry);
  /// Whether this operation, which is under way, keeps later ones of its channel from starting.
  static bool is_holding(const Active& entry);
  /// Whether an operation under way keeps the operations of this channel from starting.
  [[nodiscard]] bool is_held_up(const void* channel) const;
  /// Whether nothing of its own keeps it from starting. Throws when `after` has failed.
  static bool is_ready(Active& entry);
  /// Returns whether an operation has ended, or lets the next operation start from now on.
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
  /// Whether the operation has made no progress for longer than `limit_s`. Counts the time since
  /// the last progress anew.
  bool is_late(Active& entry, double limit_s) const;
  /// Warns of an operation that waits long for its peers, if it is time.
  void notice(const Active& late);
  [[nodiscard]] std::string behind(const std::vector<int>& peers) const {
    return config_.attendance ? config_.attendance->behind(peers) : "";
  }
  /// Throws, unless the timeout has been lifted and all ranks are alive: then the operation waits
  /// on.
  void give_up(Active& late);
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
  std::atomic<int> num_draining_ = 0;
  std::atomic<bool> has_stalled_ = false;
  std::atomic<bool> has_limit_ = true;
  Warnings warnings_;  // the worker's own
  /// The kinds and buckets of the operations that have ended.
  std::set<std::pair<std::string_view, std::int64_t>> ended_;  // the worker's own
  std::deque<Active> starting_;  // the worker's own; in the order submitted
  std::vector<Active> active_;   // the worker's own
  /// Owners of failed operations: MPI cannot withdraw a receive that a network card knows of.
  std::vector<std::shared_ptr<void>> abandoned_;  // the worker's own
  std::thread thread_;
};

}  // namespace gossamer
