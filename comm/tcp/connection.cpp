#include "comm/tcp/connection.hpp"

#include <exception>

#include "comm/tcp/frame.hpp"

namespace gossamer::tcp {

template <class Step>
void Connection::guarded(const Step& step) {
  if (!is_open_) return;
  // What is called may let go of this connection.
  const auto self = shared_from_this();
  try {
    step();
  } catch (const ConnectionEnded& error) {
    close();
    ended(error.what());
  } catch (const std::exception& error) {
    close();
    failed(error.what());
  }
}

void Connection::start() {
  // Bytes may lie in TLS already, of which the socket tells nothing.
  on_readable();
}

void Connection::wait_to_read() {
  stream_.socket().async_wait(asio::socket_base::wait_read,
                              [self = shared_from_this()](const asio::error_code& error) {
                                if (!error) self->on_readable();
                              });
}

void Connection::on_readable() {
  guarded([this] {
    const bool has_more = receive();
    if (!is_open_) return;
    if (!has_more) return wait_to_read();
    // Others have their turn.
    asio::post(stream_.socket().get_executor(),
               [self = shared_from_this()] { self->on_readable(); });
  });
}

void Connection::send_soon() {
  if (waits_to_write_) return;
  guarded([this] {
    if (transmit() || !is_open_) return;
    waits_to_write_ = true;
    stream_.socket().async_wait(asio::socket_base::wait_write,
                                [self = shared_from_this()](const asio::error_code& error) {
                                  self->waits_to_write_ = false;
                                  if (!error) self->send_soon();
                                });
  });
}

void Connection::close() {
  is_open_ = false;
  stream_.close();
}

}  // namespace gossamer::tcp
