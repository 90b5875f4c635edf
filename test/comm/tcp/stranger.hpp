#pragma once
// Somebody who connects to a rank and does not keep to the protocol. Blocking; for tests.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "comm/tcp/asio.hpp"
#include "comm/tcp/frame.hpp"

namespace gossamer::tcp {

class Stranger {
 public:
  explicit Stranger(std::uint16_t port) : socket_(io_) {
    socket_.connect({asio::ip::address_v4::loopback(), port});
  }

  void send(std::span<const std::byte> bytes) {
    asio::error_code ignored;
    asio::write(socket_, asio::buffer(bytes.data(), bytes.size()), ignored);
  }
  void send(std::string_view text) { send(std::as_bytes(std::span(text))); }
  void send(const Frame& frame) { send(encode(frame)); }

  /// What the other end sends until it closes the connection, or for `longest`.
  std::string receive(std::chrono::milliseconds longest) {
    std::string all;
    const auto end = std::chrono::steady_clock::now() + longest;
    while (!is_closed_ && std::chrono::steady_clock::now() < end) {
      pollfd wait{socket_.native_handle(), POLLIN, 0};
      if (poll(&wait, 1, 5) != 1) continue;
      std::array<char, 4096> some{};
      const ssize_t count = recv(socket_.native_handle(), some.data(), some.size(), 0);
      is_closed_ = count <= 0;
      if (count > 0) all.append(some.data(), static_cast<std::size_t>(count));
    }
    return all;
  }

  /// Whether the other end closes the connection within `longest`.
  bool is_refused(std::chrono::milliseconds longest = std::chrono::seconds(20)) {
    receive(longest);
    return is_closed_;
  }

 private:
  asio::io_context io_;
  asio::ip::tcp::socket socket_;
  bool is_closed_ = false;
};

}  // namespace gossamer::tcp
