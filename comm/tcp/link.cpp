#include "comm/tcp/link.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/text.hpp"
#include "comm/tcp/connection.hpp"
#include "comm/tcp/outgoing_bytes.hpp"

namespace gossamer::tcp {
namespace {

/// What one connection reads before others have their turn.
constexpr std::int64_t kReadBudget = std::int64_t{4} << 20;
/// The kernel's own queue for a connection between far hosts.
constexpr int kUnsentWhenFar = 16 * 1024;
/// A queue is full if packets take so many times as long as without one.
constexpr double kFullQueue = 1.3;
/// Seconds in a window by which buffers may hold a connection back.
constexpr double kHeldBack = 0.1;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

/// Whole frames in both directions.
class Link::Control : public Connection {
 public:
  Control(ByteStream stream, Link& link) : Connection(std::move(stream)), link_(link) {}

 private:
  bool receive() override {
    while (const std::size_t count = read_more()) {
      num_read_ += count;
      link_.silent_s_ = 0.0;
      if (num_read_ < wanted()) continue;
      if (num_read_ == kHeaderBytes) {
        frame_ = decode(header_);
        text_.resize(static_cast<std::size_t>(frame_.length));
        if (!text_.empty()) continue;
      }
      num_read_ = 0;
      link_.handle(frame_, text_);
      text_.clear();
      if (!is_open()) break;
    }
    return false;
  }

  bool transmit() override {
    while (!link_.outbox_.empty()) {
      const std::size_t count = write_some();
      if (count == 0) return false;
      link_.outbox_.erase(0, count);
      link_.quiet_s_ = 0.0;
    }
    if (link_.ends_writing_) stream().end_writing();
    return true;
  }

  void ended(const std::string& reason) override {
    if (!link_.has_left_ && !link_.is_abandoned_) link_.hooks_.lost(reason);
  }

  std::size_t write_some() {
    try {
      return stream().write({bytes_of(link_.outbox_), {}});
    } catch (const ConnectionEnded&) {
      // The peer's last words may be here: why it has gone.
      receive();
      throw;
    }
  }

  [[nodiscard]] std::size_t wanted() const { return kHeaderBytes + text_.size(); }

  std::size_t read_more() {
    if (num_read_ < kHeaderBytes) return stream().read(std::span(header_).subspan(num_read_));
    const auto place = std::span(text_).subspan(num_read_ - kHeaderBytes);
    return stream().read(std::as_writable_bytes(place));
  }

  Link& link_;
  Header header_ = {};
  Frame frame_ = {};
  std::string text_;
  /// Bytes of the present frame.
  std::size_t num_read_ = 0;
};

struct Link::Channel {
  int index = 0;
  /// Null: there is none at present.
  std::shared_ptr<Data> connection = {};
  /// The number of the latest attempt to make the connection.
  std::uint32_t attempt = 0;
  /// Why the last connection has ended; empty: it has not, or there has been none.
  std::string broken = {};
  OutgoingBytes out = {};
  /// What has been read, and how much of it the peer knows.
  std::uint64_t num_read = 0;
  std::uint64_t num_told = 0;
  /// The header of the piece that is being read.
  Header header = {};
  std::size_t num_header = 0;
  /// The message that the present piece belongs to, and where the rest of the piece shall lie.
  MessagePtr in = {};
  std::span<std::byte> in_place = {};
  std::int64_t in_bytes = 0;
};

/// Pieces in both directions.
class Link::Data : public Connection {
 public:
  Data(ByteStream stream, Link& link, Channel& channel)
      : Connection(std::move(stream)), link_(link), channel_(channel) {}

 private:
  bool receive() override {
    std::int64_t budget = kReadBudget;
    while (budget > 0) {
      const std::size_t count = read_more();
      if (count == 0) return false;
      link_.silent_s_ = 0.0;
      link_.idle_s_ = 0.0;
      budget -= static_cast<std::int64_t>(count);
      channel_.num_read += count;
      if (channel_.num_header < kHeaderBytes) {
        channel_.num_header += count;
        if (channel_.num_header == kHeaderBytes) begin_piece();
      } else {
        channel_.in_place = channel_.in_place.subspan(count);
      }
      if (channel_.num_header == kHeaderBytes && channel_.in_place.empty()) end_piece();
      if (channel_.num_read - channel_.num_told >= OutgoingBytes::kAckBytes) {
        link_.tell_read(channel_);
      }
    }
    return true;
  }

  bool transmit() override {
    OutgoingBytes& out = channel_.out;
    while (true) {
      if (out.is_at_end()) {
        Frame piece;
        const MessagePtr message = link_.messages_.next_piece(link_.num_open_, piece);
        if (!message) return true;
        out.append(message, piece);
      }
      const std::size_t count = stream().write(out.rest());
      if (count == 0) return false;
      link_.num_written_ += static_cast<std::int64_t>(count);
      const OutgoingBytes::Step step = out.advance(count);
      // What has left once before may be lost again: only the peer's answer is progress then.
      if (step.is_new) link_.idle_s_ = 0.0;
      if (step.message) link_.count_sent(step.message, step.bytes);
    }
  }

  void ended(const std::string& reason) override { link_.lose_data(channel_, reason); }

  void failed(const std::string& reason) override {
    if (!link_.has_left_ && !link_.is_abandoned_) link_.hooks_.lost(reason);
  }

  std::size_t read_more() {
    return stream().read(channel_.num_header < kHeaderBytes
                             ? std::span(channel_.header).subspan(channel_.num_header)
                             : channel_.in_place);
  }

  void begin_piece() {
    const Frame piece = decode(channel_.header);
    channel_.in = link_.messages_.arriving(piece);
    channel_.in_bytes = static_cast<std::int64_t>(piece.length);
    channel_.in_place = {channel_.in->to + piece.offset, static_cast<std::size_t>(piece.length)};
  }

  void end_piece() {
    channel_.num_header = 0;
    link_.messages_.count_arrived(std::exchange(channel_.in, nullptr), channel_.in_bytes);
  }

  Link& link_;
  Channel& channel_;
};

Link::Link(const Config& config, Hooks hooks)
    : epoch_(config.epoch),
      connects_(config.connects),
      unacknowledged_s_(config.unacknowledged_s),
      hooks_(std::move(hooks)),
      messages_({.epoch = config.epoch, .memory = config.memory, .max_early = config.max_early},
                {.moved = hooks_.moved,
                 .send = [this](const Frame& frame) { send_frame(frame); },
                 .sendable = [this] { wake_data(); }}),
      count_(config.num_streams) {
  if (!connects_) return;
  hooks_.connect(0);
  want_streams(count_.wanted());
}

Link::~Link() { close(); }

void Link::wake_data() {
  for (const auto& channel : channels_) {
    if (!messages_.has_pieces()) return;
    if (channel->connection) channel->connection->send_soon();
  }
}

void Link::send_frame(const Frame& frame, std::string_view payload) {
  const Header header = encode(frame);
  outbox_.append(reinterpret_cast<const char*>(header.data()), header.size());
  outbox_.append(payload);
  if (control_) control_->send_soon();
}

void Link::send_news(Frame frame, std::string_view text) {
  text = text.substr(0, kMaxNewsBytes);
  frame.kind = FrameKind::kNews;
  frame.epoch = epoch_;
  frame.length = text.size();
  send_frame(frame, text);
}

void Link::send_goodbye() { send_frame({.kind = FrameKind::kGoodbye, .epoch = epoch_}); }

void Link::handle(const Frame& frame, const std::string& text) {
  if (frame.epoch != epoch_) {
    throw FrameError(concat("a frame of epoch ", frame.epoch, ", and this one is ", epoch_));
  }
  if (is_abandoned_ && frame.kind != FrameKind::kNews) return;
  if (frame.kind != FrameKind::kBeat && frame.kind != FrameKind::kBroken) {
    idle_s_ = 0.0;
    if (frame.kind != FrameKind::kNews) hooks_.stepped(-1);
  }
  switch (frame.kind) {
    case FrameKind::kReady:
      return messages_.handle_ready(frame);
    case FrameKind::kOffer:
      return messages_.handle_offer(frame);
    case FrameKind::kTaken:
      return messages_.handle_taken(frame);
    case FrameKind::kNews:
      return hooks_.news(frame, text);
    case FrameKind::kGoodbye:
      has_left_ = true;
      return;
    case FrameKind::kStreams:
      if (connects_ && !count_.is_fixed()) {
        count_.raise_to(static_cast<int>(std::min<std::uint64_t>(frame.offset, StreamCount::kMax)));
        want_streams(count_.wanted());
      }
      return;
    case FrameKind::kRead:
      return channel(frame.key.part).out.acknowledge(frame.offset);
    case FrameKind::kBroken:
      if (!connects_) break;
      if (Channel& theirs = channel(frame.key.part); theirs.attempt == frame.key.group) {
        lose_data(theirs, "the other end of it has broken");
      }
      return;
    case FrameKind::kBeat:
      if (frame.offset > 0) hooks_.stepped(static_cast<std::int64_t>(frame.offset - 1));
      return;
    case FrameKind::kHello:
    case FrameKind::kPiece:
      break;
  }
  throw FrameError("a frame that does not belong on a control connection");
}

Link::Channel& Link::channel(std::uint32_t index) {
  if (index < 1 || index > std::uint32_t{StreamCount::kMax}) {
    throw FrameError(concat("there is no data connection ", index));
  }
  while (channels_.size() < index) {
    channels_.push_back(
        std::make_unique<Channel>(Channel{.index = static_cast<int>(channels_.size()) + 1}));
  }
  return *channels_[index - 1];
}

void Link::meet(int index, const Frame* theirs, Frame& ours) {
  if (index == 0) {
    if (control_) throw FrameError("this rank has that connection already");
    return;
  }
  Channel& channel = this->channel(static_cast<std::uint32_t>(index));
  if (channel.connection) channel.broken = "the other end has lost it";
  close_data(channel);
  channel.attempt = theirs == nullptr ? channel.attempt + 1 : theirs->key.group;
  ours.key.group = channel.attempt;
  ours.offset = channel.num_read;
}

void Link::adopt(ByteStream stream, const Frame& hello) {
  if (hello.key.part > 0) return adopt_data(std::move(stream), hello);
  if (!control_) adopt_control(std::move(stream), hello.reads_memory);
}

void Link::adopt_control(ByteStream stream, bool peer_reads_memory) {
  count_.set_round_trip(stream.figures().round_trip_s);
  silent_s_ = 0.0;
  // Into the outbox, before anything can be read that changes the messages.
  messages_.set_peer_reads_memory(peer_reads_memory);
  const auto control = std::make_shared<Control>(std::move(stream), *this);
  control_ = control;
  control->start();
  control->send_soon();
  want_streams(count_.wanted());
}

void Link::adopt_data(ByteStream stream, const Frame& hello) {
  Channel& channel = this->channel(hello.key.part);
  if (is_abandoned_ || channel.connection || hello.key.group != channel.attempt) return;
  channel.out.go_back_to(hello.offset);
  stream.limit_unacknowledged(unacknowledged_s_);
  if (StreamCount::is_far(stream.figures().round_trip_s)) {
    stream.limit_unsent(kUnsentWhenFar);
    stream.pace();
  }
  channel.broken.clear();
  const auto connection = std::make_shared<Data>(std::move(stream), *this, channel);
  channel.connection = connection;
  ++num_open_;
  num_asked_for_ = std::max(num_asked_for_, channel.index);
  count_.raise_to(channel.index);
  connection->start();
  connection->send_soon();
}

void Link::close_data(Channel& channel) {
  if (!channel.connection) return;
  channel.connection->close();
  channel.connection.reset();
  --num_open_;
}

void Link::lose_data(Channel& channel, const std::string& reason) {
  if (is_abandoned_ || has_left_ || !channel.connection) return;
  close_data(channel);
  channel.broken = reason;
  if (connects_) return hooks_.broken(channel.index);
  send_frame(
      {.kind = FrameKind::kBroken,
       .epoch = epoch_,
       .key = {.group = channel.attempt, .part = static_cast<std::uint32_t>(channel.index)}});
}

std::string Link::broken() const {
  for (const auto& channel : channels_) {
    if (!channel->broken.empty()) return channel->broken;
  }
  return "";
}

void Link::count_sent(const MessagePtr& message, std::int64_t bytes) {
  if (bytes < message->bytes && message->num_moved + bytes == message->bytes) {
    for (const auto& channel : channels_) channel->out.release(*message);
  }
  messages_.count_sent(message, bytes);
}

void Link::tell_read(Channel& channel) {
  channel.num_told = channel.num_read;
  send_frame({.kind = FrameKind::kRead,
              .epoch = epoch_,
              .key = {.part = static_cast<std::uint32_t>(channel.index)},
              .offset = channel.num_read});
}

void Link::want_streams(int number) {
  // Through memory, messages need none.
  if (number <= num_asked_for_ || (messages_.peer_reads_memory() && messages_.reads_memory()))
    return;
  if (!connects_) {
    num_asked_for_ = number;
    if (number > 1) {
      send_frame({.kind = FrameKind::kStreams,
                  .epoch = epoch_,
                  .offset = static_cast<std::uint64_t>(number)});
    }
    return;
  }
  while (num_asked_for_ < number) hooks_.connect(++num_asked_for_);
}

void Link::measure_streams(double elapsed_s) {
  const bool is_busy =
      num_open_ == num_asked_for_ && std::ranges::any_of(channels_, [](const auto& channel) {
        return channel->connection && channel->connection->is_busy();
      });
  const std::int64_t written = std::exchange(num_written_, 0);
  if (!is_busy) return;
  if (!count_.add(elapsed_s, written)) return;
  count_.judge(was_held_back());
  want_streams(count_.wanted());
}

bool Link::was_held_back() {
  TcpFigures total;
  for (const auto& channel : channels_) {
    if (!channel->connection) continue;
    const TcpFigures figures = channel->connection->figures();
    total.round_trip_s += figures.round_trip_s;
    total.num_resent += figures.num_resent;
    total.held_back_s += figures.held_back_s;
  }
  const TcpFigures last = std::exchange(last_figures_, total);
  // A full queue makes the round trip long, and loses packets of any number of connections.
  const bool is_queue_full = total.round_trip_s > kFullQueue * count_.round_trip_s() * num_open_;
  return (total.num_resent > last.num_resent && !is_queue_full) ||
         total.held_back_s > last.held_back_s + kHeldBack * num_open_;
}

bool Link::has_ended() const { return !control_ || !control_->is_open(); }

bool Link::fetch() {
  if (!messages_.fetch()) return false;
  idle_s_ = 0.0;
  return true;
}

void Link::tick(double elapsed_s, double beat_s, double timeout_s, std::int64_t num_steps) {
  idle_s_ += elapsed_s;
  if (!is_open() || has_left_) return;
  silent_s_ += elapsed_s;
  quiet_s_ += elapsed_s;
  if (quiet_s_ >= beat_s && outbox_.empty()) {
    quiet_s_ = 0.0;
    send_frame({.kind = FrameKind::kBeat,
                .epoch = epoch_,
                .offset = static_cast<std::uint64_t>(num_steps + 1)});
    for (const auto& channel : channels_) {
      if (channel->num_told < channel->num_read) tell_read(*channel);
    }
  }
  measure_streams(elapsed_s);
  if (silent_s_ > timeout_s) {
    hooks_.lost(concat("no sign of life for ", shortest(timeout_s),
                       " s (comm.timeout_s): it is stopped, or its host or network is gone"));
  }
}

void Link::abandon() {
  is_abandoned_ = true;
  for (const auto& channel : channels_) {
    close_data(*channel);
    channel->out.clear();
    channel->in.reset();
  }
  messages_.clear();
}

void Link::close() {
  abandon();
  if (control_) control_->close();
}

void Link::end_writing() {
  ends_writing_ = true;
  if (control_) control_->send_soon();
}

}  // namespace gossamer::tcp
