#pragma once
// A rank's session as Python holds it.
//
// Thread safety: one thread uses a session. No worker calls Python: while_waiting() runs on the
// thread that waits.

#include <cstdint>
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

class PySession {
 public:
  /// `timeout_s`: seconds that an operation may wait for its peers.
  PySession(std::unique_ptr<Session> session, double timeout_s)
      : session_(std::move(session)), timeout_s_(timeout_s) {}

  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;
  /// May wait for a worker, and so holds no lock of Python's.
  ~PySession();

  /// Throws std::logic_error after close() and abort(), and in a child of fork().
  [[nodiscard]] Communicator& communicator() const { return open().communicator(); }
  /// How the ranks exchange the memory of a device. Collective with a device and a choice that the
  /// session has not had before. Throws as DeviceTransport.
  DeviceTransport& wires(Device device, const TransportChoice& choice, const Logger& logger);
  [[nodiscard]] const World& world() const { return open().world(); }
  [[nodiscard]] bool is_open() const { return is_open_ && home_.is_here(); }
  /// Whether ranks of one host may read each other's memory.
  [[nodiscard]] bool shares_memory() const { return shares_memory_; }
  void set_shares_memory(bool shares) { shares_memory_ = shares; }
  /// This rank has done its work: it waits without a limit for ranks that are alive. Call it before
  /// the communicator's users end, and before close().
  void lift_timeout();
  void close();
  bool abort(int code, const std::string& reason);

 private:
  [[nodiscard]] Session& open() const;

  /// Stays to the end, also when it has been closed: engines refer to its communicator.
  std::unique_ptr<Session> session_;
  /// The device transports, by their settings. They stay to the end as well.
  std::map<std::string, DeviceTransport> wires_;
  double timeout_s_;
  bool is_open_ = true;
  bool shares_memory_ = true;
  /// A child of fork() lacks the parent's threads, so it can neither use nor destroy the session.
  HomeProcess home_;
};

/// Options of a world whose waits Ctrl-C ends.
LaunchOptions waiting_options(double timeout_s);

/// Adds the class Session and the functions that open sessions.
void add_session(nanobind::module_& module);

}  // namespace gossamer::python
