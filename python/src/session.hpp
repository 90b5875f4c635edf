#pragma once
// A rank's session as Python holds it.
//
// Thread safety: one thread uses a session. No worker calls Python: while_waiting() runs on the
// thread that waits.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include "comm/session.hpp"

namespace gossamer::python {

class PySession {
 public:
  /// `timeout_s`: seconds that an operation may wait for its peers.
  PySession(std::unique_ptr<Session> session, double timeout_s)
      : session_(std::move(session)), timeout_s_(timeout_s) {}

  /// Throws std::logic_error after close() and abort(), and in a child process.
  [[nodiscard]] Communicator& communicator() const { return open().communicator(); }
  [[nodiscard]] const World& world() const { return open().world(); }
  [[nodiscard]] double timeout_s() const { return timeout_s_; }
  [[nodiscard]] bool is_open() const { return is_open_; }
  void close();
  bool abort(int code, const std::string& reason);
  /// In a child process that has been forked: the parent's threads are not there, so nothing of the
  /// session can be used or destroyed.
  void leave_to_parent();

 private:
  [[nodiscard]] Session& open() const;

  /// Stays to the end, also when it has been closed: engines refer to its communicator.
  std::unique_ptr<Session> session_;
  double timeout_s_;
  bool is_open_ = true;
};

/// Options of a world whose waits Ctrl-C ends.
LaunchOptions waiting_options(double timeout_s);

/// Adds the class Session and the functions that open sessions.
void add_session(nanobind::module_& module);

}  // namespace gossamer::python
