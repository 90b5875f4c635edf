#pragma once
// The bell of a progress worker that waits for sockets as well: it sleeps in the io_context, so
// whatever happens on a connection ends the sleep.
//
// Thread safety: as Doorbell.

#include <atomic>
#include <chrono>

#include "comm/tcp/asio.hpp"
#include "comm/worker/doorbell.hpp"

namespace gossamer::tcp {

class SocketBell : public Doorbell {
 public:
  [[nodiscard]] asio::io_context& io() { return io_; }

  void ring() override {
    if (has_rung_.exchange(true)) return;
    Doorbell::ring();
    // Ends run_one_for() on the worker's thread.
    asio::post(io_, [] {});
  }
  void sleep(std::chrono::microseconds longest) override {
    // The io_context counts in milliseconds. Who sleeps less looks at the sockets often enough.
    if (longest < std::chrono::milliseconds(1)) {
      Doorbell::sleep(longest);
    } else if (!has_rung_.load()) {
      io_.run_one_for(longest);
    }
    has_rung_.store(false);
  }

 private:
  // The io context, which one thread at a time runs.
  asio::io_context io_{1};
  // Keeps the io context running, even when no operation waits for a socket.
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::atomic<bool> has_rung_ = false;
};

}  // namespace gossamer::tcp
