#pragma once
// Takes connections from other ranks, and keeps strangers from doing harm: at most kMaxGuests
// connections that have not introduced themselves, each for a limited time. Of more, the oldest
// goes of the address that has most. One warning for each address and minute.
//
// Handshakes take the time of the thread that moves the messages of training. So a connection that
// fails the greeting costs its address a part of an allowance (StrangerAllowance). Connections from
// an address without allowance are closed at once, and ranks try again.
//
// Protocol: make it, publish port(), then start(). Thread safety: one thread, which runs the
// io_context. Errors: CommError when no port can be had.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/log.hpp"
#include "comm/tcp/byte_stream.hpp"
#include "comm/tcp/greeting.hpp"
#include "comm/tcp/stranger_allowance.hpp"

namespace gossamer::tcp {

class Listener {
 public:
  static constexpr std::size_t kMaxGuests = 256;

  /// Listens on `address`, on a port that the system chooses. `patience`: how long a connection may
  /// take to introduce itself.
  Listener(asio::io_context& io, const asio::ip::address& address,
           std::chrono::milliseconds patience = std::chrono::seconds(10));
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() = default;

  [[nodiscard]] std::uint16_t port() const { return port_; }

  struct Hooks {
    /// Greeting::Hooks.
    std::function<Frame(const Frame& theirs)> judge;
    std::function<void(ByteStream stream, const Frame& theirs)> welcome;
  };
  /// `tls` may be null, and must outlive this listener.
  void start(const TlsContext* tls, Logger logger, Hooks hooks);
  /// Takes no more connections.
  void close();

 private:
  struct Guest {
    std::string address;
    std::weak_ptr<Greeting> greeting;
  };

  void accept();
  void accept_after(std::chrono::milliseconds pause);
  /// Sends a guest away if there are too many.
  void make_room();
  void greet(asio::ip::tcp::socket socket, const std::string& address);
  void warn(const std::string& address, const std::string& reason);

  asio::io_context& io_;
  asio::ip::tcp::acceptor acceptor_;
  /// Ends before the acceptor does.
  ClosedInChildren closed_in_children_;
  asio::steady_timer pause_;
  std::uint16_t port_ = 0;
  Logger logger_;
  std::chrono::milliseconds patience_;
  const TlsContext* tls_ = nullptr;
  Hooks hooks_;
  std::deque<Guest> guests_;
  StrangerAllowance allowance_;
  /// When each address has last been warned of.
  std::map<std::string, std::chrono::steady_clock::time_point> warned_;
};

}  // namespace gossamer::tcp
