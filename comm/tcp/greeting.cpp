#include "comm/tcp/greeting.hpp"

#include <span>
#include <utility>

namespace gossamer::tcp {

Greeting::Greeting(asio::io_context& io, ByteStream stream, Role role, const Frame& hello,
                   Hooks hooks)
    : timer_(io),
      stream_(std::move(stream)),
      role_(role),
      ours_(encode(hello)),
      hooks_(std::move(hooks)) {}

void Greeting::start(std::chrono::milliseconds limit) {
  timer_.expires_after(limit);
  timer_.async_wait([weak = weak_from_this()](const asio::error_code& error) {
    if (error) return;
    if (const auto self = weak.lock()) self->cancel("it has not introduced itself in time");
  });
  go_on();
}

void Greeting::cancel(const std::string& reason) {
  if (phase_ == Phase::kOver) return;
  phase_ = Phase::kOver;
  timer_.cancel();
  stream_.close();
  // The hooks may hold what holds this greeting.
  const Hooks hooks = std::exchange(hooks_, {});
  hooks.refuse(reason);
}

void Greeting::go_on() {
  if (phase_ == Phase::kOver) return;
  try {
    step();
  } catch (const std::exception& error) {
    cancel(error.what());
  }
}

void Greeting::step() {
  waits_ = false;
  if (phase_ == Phase::kShakesHands) {
    if (!stream_.shake_hands()) return wait();
    phase_ = role_ == Role::kConnects ? Phase::kWrites : Phase::kReads;
  }
  while (!waits_ && phase_ != Phase::kOver) phase_ == Phase::kWrites ? write_hello() : read_hello();
}

void Greeting::wait() {
  waits_ = true;
  const bool writes =
      phase_ == Phase::kWrites || (phase_ == Phase::kShakesHands && stream_.waits_to_write());
  stream_.socket().async_wait(writes ? asio::socket_base::wait_write : asio::socket_base::wait_read,
                              [self = shared_from_this()](const asio::error_code& error) {
                                error ? self->cancel(error.message()) : self->go_on();
                              });
}

void Greeting::write_hello() {
  num_written_ += stream_.write({std::span<const std::byte>(ours_).subspan(num_written_), {}});
  if (num_written_ < ours_.size()) return wait();
  if (role_ == Role::kAccepts) return finish();
  phase_ = Phase::kReads;
}

void Greeting::read_hello() {
  // No byte more, for what follows belongs to whoever gets the connection.
  const std::size_t count = stream_.read(std::span(theirs_).subspan(num_read_));
  if (count == 0) return wait();
  num_read_ += count;
  if (num_read_ < theirs_.size()) return;
  const Frame hello = decode(theirs_);
  if (hello.kind != FrameKind::kHello) throw FrameError("it begins with another frame than hello");
  ours_ = encode(hooks_.judge(hello));
  if (role_ == Role::kConnects) return finish();
  num_written_ = 0;
  phase_ = Phase::kWrites;
}

void Greeting::finish() {
  phase_ = Phase::kOver;
  timer_.cancel();
  const Hooks hooks = std::exchange(hooks_, {});
  hooks.welcome(std::move(stream_), decode(theirs_));
}

}  // namespace gossamer::tcp
