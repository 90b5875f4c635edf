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
    begin(role_ == Role::kConnects ? Phase::kWrites : Phase::kReads);
  }
  while (!waits_ && phase_ != Phase::kOver) phase_ == Phase::kWrites ? write_frame() : read_frame();
}

void Greeting::begin(Phase phase) {
  phase_ = phase;
  num_moved_ = 0;
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

void Greeting::write_frame() {
  num_moved_ += stream_.write({std::span<const std::byte>(ours_).subspan(num_moved_), {}});
  num_moved_ < ours_.size() ? wait() : on_written();
}

void Greeting::read_frame() {
  // No byte more, for what follows belongs to the next owner of the connection.
  const std::size_t count = stream_.read(std::span(theirs_).subspan(num_moved_));
  if (count == 0) return wait();
  num_moved_ += count;
  if (num_moved_ == theirs_.size()) on_read();
}

void Greeting::on_written() {
  // The end that connects has written its hello, or at last its kBeat.
  role_ == Role::kConnects&& hello_ ? finish() : begin(Phase::kReads);
}

void Greeting::on_read() {
  const Frame frame = decode(theirs_);
  if (role_ == Role::kAccepts && hello_) {
    if (frame.kind != FrameKind::kBeat)
      throw FrameError("it does not say that the answer has come");
    return finish();
  }
  if (frame.kind != FrameKind::kHello) throw FrameError("it begins with another frame than hello");
  const Frame answer = hooks_.judge(frame);
  hello_ = frame;
  ours_ = encode(role_ == Role::kAccepts ? answer
                                         : Frame{.kind = FrameKind::kBeat, .epoch = frame.epoch});
  begin(Phase::kWrites);
}

void Greeting::finish() {
  phase_ = Phase::kOver;
  timer_.cancel();
  const Hooks hooks = std::exchange(hooks_, {});
  try {
    hooks.welcome(std::move(stream_), *hello_);
  } catch (const std::exception& error) {
    hooks.refuse(error.what());
  }
}

}  // namespace gossamer::tcp
