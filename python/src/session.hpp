#pragma once
// A rank's session as Python holds it.
//
// The session of a rank that joins a run enters it by join(). Before that it has the rank -1, and
// no communicator.
//
// Where ranks may be lost (is_elastic()), the world changes in reconfigure() alone.
//
// part() makes the session of some of the ranks. A part has a world of its own, and lives and fails
// with the whole: only the whole session is closed or aborted.
//
// Thread safety: one thread uses a session. No worker calls Python: while_waiting() runs on the
// thread that waits.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/types.hpp"
#include "comm/device/device_transport.hpp"
#include "comm/options.hpp"
#include "comm/session.hpp"

namespace gossamer::python {

/// Lets go of the interpreter's lock in a destructor, whether the thread has it or not.
class WithoutLock {
 public:
  WithoutLock() {
    // An interpreter that has ended has no lock any more.
    if (!nanobind::is_alive()) return;
    held_.emplace();
    free_.emplace();
  }

 private:
  std::optional<nanobind::gil_scoped_acquire> held_;
  std::optional<nanobind::gil_scoped_release> free_;
};

class PySession : public std::enable_shared_from_this<PySession> {
 public:
  /// `timeout_s`: seconds that an operation may wait for its peers.
  PySession(std::unique_ptr<Session> session, double timeout_s)
      : session_(std::move(session)), timeout_s_(timeout_s) {}

  /// The session of a rank that joins a run by `open`.
  PySession(std::function<std::unique_ptr<Session>()> open, double timeout_s)
      : join_(std::move(open)), timeout_s_(timeout_s) {}

  /// The session of a part of the ranks of `whole`, whose communicator `part` has.
  PySession(std::shared_ptr<PySession> whole, std::unique_ptr<Session> part)
      : whole_(std::move(whole)), session_(std::move(part)), timeout_s_(whole_->timeout_s_) {}

  /// The session of a part of the ranks of `whole`, a session that joins a run, by `open`.
  PySession(std::shared_ptr<PySession> whole, std::function<std::unique_ptr<Session>()> open)
      : whole_(std::move(whole)), join_(std::move(open)), timeout_s_(whole_->timeout_s_) {}

  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;
  /// May wait for a worker, and so holds no lock of Python's.
  ~PySession();

  /// Throws std::logic_error after close() and abort(), and in a child of fork().
  [[nodiscard]] Communicator& communicator() const { return open().communicator(); }
  /// The communicator, for a collective call of the user's. Throws PeerLost while refuse_calls().
  [[nodiscard]] Communicator& called() const;
  /// While true, a rank that joins takes no part in collective calls of the user's, so they throw.
  void refuse_calls(bool refuses) { (whole_ ? *whole_ : *this).refuses_calls_ = refuses; }
  /// How the ranks exchange the memory of a device. Collective with a device and a choice that the
  /// session has not had before. Throws as DeviceTransport.
  DeviceTransport& transport(Device device, const TransportChoice& choice, const Logger& logger);
  /// Before join(): a world without ranks, in which this rank is -1.
  [[nodiscard]] const World& world() const;
  [[nodiscard]] bool is_open() const {
    return is_open_ && home_.is_here() && (!whole_ || whole_->is_open());
  }
  /// Collective. The session of the ranks that give the same color, in their order. Where ranks may
  /// be lost, the ranks of one place of all nodes have a part, once, which follows the members of
  /// the run. Throws ConfigError for a negative color, and for others where ranks may be lost.
  std::shared_ptr<PySession> part(int color);
  /// This rank's node is a member of a run that may lose nodes, and the rank has this place in it.
  void set_place(int place) { place_ = place; }
  /// The place of this rank in its node; -1: nodes are no members of the run.
  [[nodiscard]] int place() const { return whole_ ? whole_->place_ : place_; }
  /// The session of which this one is a part; this one, unless it is a part.
  [[nodiscard]] std::shared_ptr<PySession> whole() { return whole_ ? whole_ : shared_from_this(); }
  /// Whether ranks of one host may read each other's memory.
  [[nodiscard]] bool shares_memory() const { return shares_memory_; }
  void set_shares_memory(bool shares) { shares_memory_ = shares; }
  /// This rank has done its work: it waits without a limit for ranks that are alive. Call it before
  /// the communicator's users end, and before close().
  void lift_timeout();

  /// True: this rank joins a run, or has joined one.
  [[nodiscard]] bool joins() const { return join_ != nullptr; }
  /// This rank begins a step. `num_steps`: those that it has made by the count of the run, where
  /// ranks may be lost; elsewhere the session counts.
  void begin_step(std::int64_t num_steps);
  /// Tells the others the steps that this rank has begun so far.
  void tell_steps() const;

  /// Enters the run, unless this rank has entered it. The members of the run change the world at
  /// that moment. Throws CommError.
  void join();
  /// Whether ranks may be lost, and others join.
  [[nodiscard]] bool is_elastic() const { return joins() || communicator().is_elastic(); }
  /// The world of a run whose members change; without members in other runs and before join().
  [[nodiscard]] Membership membership() const;
  /// From now on this rank lets in processes that ask it to join, or has them wait.
  void admit(bool admits) const;
  /// Elastic::reconfigure().
  void reconfigure(std::int64_t step) const;
  /// Has `callback` called with a change of the members, by Python's part, until close().
  void on_change(nanobind::callable callback);
  [[nodiscard]] const std::vector<nanobind::object>& listeners() const {
    return whole_ ? whole_->listeners_ : listeners_;
  }
  /// Adds seconds without a step, because members were lost or joined.
  void add_recovery(double seconds) { (whole_ ? *whole_ : *this).recovery_s_ += seconds; }
  /// The share of the time since this rank began in which it has not waited for a change of the
  /// members; between 0 and 1.
  [[nodiscard]] double goodput() const;
  /// Called at close() by rank 0.
  void set_at_end(std::function<void()> at_end) { at_end_ = std::move(at_end); }

  /// Does nothing for a part.
  void close();
  bool abort(int code, const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Session& open() const;
  /// part() where ranks may be lost.
  std::shared_ptr<PySession> part_of_places(int color);
  /// Collective.
  void close_transports();

  /// The session of which this one is a part; null unless it is a part.
  std::shared_ptr<PySession> whole_;
  /// The parts in the order in which they were made, which is the same on all ranks.
  std::vector<std::weak_ptr<PySession>> parts_;
  /// Stays to the end, also when it has been closed: engines refer to its communicator.
  std::unique_ptr<Session> session_;
  /// Opens the session of a rank that joins a run; null on other ranks.
  std::function<std::unique_ptr<Session>()> join_;
  std::function<void()> at_end_;
  std::vector<nanobind::object> listeners_;
  Clock::time_point begin_ = Clock::now();
  double recovery_s_ = 0.0;
  /// The device transports, by their settings. They stay to the end as well.
  std::map<std::string, DeviceTransport> transports_;
  double timeout_s_;
  bool is_open_ = true;
  /// The place of this rank in its node; -1: nodes are no members of the run.
  int place_ = -1;
  bool refuses_calls_ = false;
  /// The steps of all wrappers together that this rank has begun.
  std::int64_t num_begun_ = 0;
  bool shares_memory_ = true;
  /// A child of fork() lacks the parent's threads, so it can neither use nor destroy the session.
  HomeProcess home_;
};

/// Options of a world whose waits Ctrl-C ends.
LaunchOptions waiting_options(double timeout_s);

/// Adds the class Session and the functions that open sessions.
void add_session(nanobind::module_& module);

}  // namespace gossamer::python
