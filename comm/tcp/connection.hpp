#pragma once
// A connection that is open: waits for its socket and calls what reads and writes.
//
// Protocol: make one as a shared_ptr, and start() it. receive() is called whenever bytes are here,
// and transmit() after send_soon() whenever the socket takes some. After close(), or after ended(),
// nothing is called any more.
//
// Thread safety: one thread, which runs the io_context. The virtual functions may throw
// ConnectionEnded, which leads to ended(), and other exceptions, which lead to failed().

#include <cstddef>
#include <memory>
#include <string>

#include "comm/tcp/byte_stream.hpp"

namespace gossamer::tcp {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(ByteStream stream) : stream_(std::move(stream)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  virtual ~Connection() = default;

  void start();
  /// There is something to write.
  void send_soon();
  [[nodiscard]] bool is_open() const { return is_open_; }
  /// The connection takes no more bytes at the moment.
  [[nodiscard]] bool is_busy() const { return waits_to_write_; }
  [[nodiscard]] TcpFigures figures() { return stream_.figures(); }
  /// Ends the connection. The last written bytes may not reach the peer.
  void close();

 protected:
  /// Reads. Returns whether there may be more to read at once.
  virtual bool receive() = 0;
  /// Writes. Returns whether all has been written.
  virtual bool transmit() = 0;
  /// The connection has come to its end.
  virtual void ended(const std::string& reason) = 0;
  /// Called when the bytes that arrived make no sense or could not be handled; the connection is
  /// closed.
  virtual void failed(const std::string& reason) { ended(reason); }
  [[nodiscard]] ByteStream& stream() { return stream_; }

 private:
  template <class Step>
  void guarded(const Step& step);
  void wait_to_read();
  void on_readable();

  ByteStream stream_;
  bool is_open_ = true;
  bool waits_to_write_ = false;
};

}  // namespace gossamer::tcp
