#pragma once
// The first moments of a connection, until each end knows the other:
//
// 1. The two ends make the handshake of TLS.
// 2. The end that connects sends a kHello.
// 3. The end that accepts answers with a kHello.
// 4. The end that connects sends a kBeat, which says that the answer has arrived.
//
// So the end that accepts gets no connection that the other end has given up.
//
// Protocol: make one as a shared_ptr, and start() it. Then either `welcome` or `refuse` is called
// once, unless the greeting is dropped with its io_context. A peer that is slow or silent is
// refused after `limit`. Before that it holds 56 bytes of memory and a socket.
//
// Thread safety: one thread, which runs the io_context. Hooks do not throw, except `judge`.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/tcp/byte_stream.hpp"
#include "comm/tcp/frame.hpp"

namespace gossamer::tcp {

class Greeting : public std::enable_shared_from_this<Greeting> {
 public:
  struct Hooks {
    /// Checks the other end's kHello and returns this end's kHello. The end that connects has sent
    /// its kHello already and ignores the result. Throws FrameError to refuse the other end.
    std::function<Frame(const Frame& theirs)> judge;
    std::function<void(ByteStream stream, const Frame& theirs)> welcome;
    std::function<void(const std::string& reason)> refuse;
  };

  Greeting(asio::io_context& io, ByteStream stream, Role role, const Frame& hello, Hooks hooks);
  void start(std::chrono::milliseconds limit);
  /// Ends it; `refuse` is called if nothing else has been.
  void cancel(const std::string& reason);

 private:
  enum class Phase : std::uint8_t { kShakesHands, kWrites, kReads, kOver };

  void go_on();
  /// One phase after the other, until the connection has no more at the moment.
  void step();
  void wait();
  void read_frame();
  void write_frame();
  /// The frame has come, or has gone.
  void on_read();
  void on_written();
  void begin(Phase phase);
  void finish();

  asio::steady_timer timer_;
  ByteStream stream_;
  Role role_;
  Phase phase_ = Phase::kShakesHands;
  /// The frame that is being written, and the one that is being read.
  Header ours_;
  Header theirs_ = {};
  /// Bytes of the present header that have been moved.
  std::size_t num_moved_ = 0;
  /// The hello of the other end, once it has come.
  std::optional<Frame> hello_;
  bool waits_ = false;
  Hooks hooks_;
};

}  // namespace gossamer::tcp
