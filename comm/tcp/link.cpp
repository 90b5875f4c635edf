#include "comm/tcp/link.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/text.hpp"
#include "comm/tcp/connection.hpp"

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
/// Seconds in which the control connection says why a data connection has ended.
constexpr double kExplanation = 0.5;

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

/// Pieces in both directions.
class Link::Data : public Connection {
 public:
  Data(ByteStream stream, Link& link) : Connection(std::move(stream)), link_(link) {}

 private:
  bool receive() override {
    std::int64_t budget = kReadBudget;
    while (budget > 0) {
      const std::size_t count = read_more();
      if (count == 0) return false;
      link_.silent_s_ = 0.0;
      link_.idle_s_ = 0.0;
      budget -= static_cast<std::int64_t>(count);
      if (num_header_ < kHeaderBytes) {
        num_header_ += count;
        if (num_header_ == kHeaderBytes) begin_piece();
      } else {
        in_place_ = in_place_.subspan(count);
      }
      if (num_header_ == kHeaderBytes && in_place_.empty()) {
        num_header_ = 0;
        const MessagePtr message = std::exchange(in_, nullptr);
        link_.messages_.count_arrived(message, in_bytes_);
      }
    }
    return true;
  }

  bool transmit() override {
    while (true) {
      if (!out_) {
        Frame piece;
        out_ = link_.messages_.next_piece(link_.num_open_, piece);
        if (!out_) return true;
        out_header_ = encode(piece);
        out_bytes_ = static_cast<std::int64_t>(piece.length);
        rest_ = {out_header_, {out_->from + piece.offset, static_cast<std::size_t>(piece.length)}};
      }
      std::size_t count = stream().write(rest_);
      if (count == 0) return false;
      link_.num_written_ += static_cast<std::int64_t>(count);
      link_.idle_s_ = 0.0;
      for (auto& part : rest_) {
        const std::size_t taken = std::min(count, part.size());
        part = part.subspan(taken);
        count -= taken;
      }
      if (!rest_[0].empty() || !rest_[1].empty()) continue;
      link_.messages_.count_sent(std::exchange(out_, nullptr), out_bytes_);
    }
  }

  void ended(const std::string& reason) override {
    if (link_.broken_.empty() && !link_.is_abandoned_) link_.broken_ = reason;
  }

  std::size_t read_more() {
    return stream().read(num_header_ < kHeaderBytes ? std::span(header_).subspan(num_header_)
                                                    : in_place_);
  }

  void begin_piece() {
    const Frame piece = decode(header_);
    in_ = link_.messages_.arriving(piece);
    in_bytes_ = static_cast<std::int64_t>(piece.length);
    in_place_ = {in_->to + piece.offset, static_cast<std::size_t>(piece.length)};
  }

  Link& link_;
  Header header_ = {};
  std::size_t num_header_ = 0;
  /// The message that the present piece belongs to, and where the rest of the piece shall lie.
  MessagePtr in_;
  std::span<std::byte> in_place_;
  std::int64_t in_bytes_ = 0;
  /// The message whose piece is on its way, and what of it has not been written.
  MessagePtr out_;
  Header out_header_ = {};
  ByteStream::Parts rest_;
  std::int64_t out_bytes_ = 0;
};

Link::Link(const Config& config, Hooks hooks)
    : epoch_(config.epoch),
      connects_(config.connects),
      hooks_(std::move(hooks)),
      messages_({.epoch = config.epoch, .memory = config.memory, .max_early = config.max_early},
                {.moved = [this] { hooks_.moved(); },
                 .send = [this](const Frame& frame) { send_frame(frame); },
                 .sendable = [this] { wake_data(); }}),
      data_(StreamCount::kMax),
      count_(config.num_streams) {
  if (!connects_) return;
  hooks_.connect(0);
  want_streams(count_.wanted());
}

Link::~Link() { close(); }

void Link::wake_data() {
  for (const auto& connection : data_) {
    if (!messages_.has_pieces()) return;
    if (connection) connection->send_soon();
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
  if (frame.kind != FrameKind::kBeat) idle_s_ = 0.0;
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
    case FrameKind::kBeat:
      return;
    case FrameKind::kHello:
    case FrameKind::kPiece:
      break;
  }
  throw FrameError("a frame that does not belong on a control connection");
}

void Link::adopt(ByteStream stream, const Frame& hello) {
  if (hello.key.part == 0) return adopt_control(std::move(stream), hello.reads_memory);
  adopt_data(std::move(stream), static_cast<int>(hello.key.part));
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

void Link::adopt_data(ByteStream stream, int index) {
  if (StreamCount::is_far(stream.figures().round_trip_s)) {
    stream.limit_unsent(kUnsentWhenFar);
    stream.pace();
  }
  const auto connection = std::make_shared<Data>(std::move(stream), *this);
  data_.at(static_cast<std::size_t>(index) - 1) = connection;
  ++num_open_;
  num_asked_for_ = std::max(num_asked_for_, index);
  count_.raise_to(index);
  connection->start();
  connection->send_soon();
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
      num_open_ == num_asked_for_ && std::ranges::any_of(data_, [](const auto& connection) {
        return connection && connection->is_busy();
      });
  const std::int64_t written = std::exchange(num_written_, 0);
  if (!is_busy) return;
  if (!count_.add(elapsed_s, written)) return;
  count_.judge(was_held_back());
  want_streams(count_.wanted());
}

bool Link::was_held_back() {
  TcpFigures total;
  for (const auto& connection : data_) {
    if (!connection) continue;
    const TcpFigures figures = connection->figures();
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

bool Link::has_connection(int index) const {
  return index == 0 ? control_ != nullptr
                    : data_.at(static_cast<std::size_t>(index) - 1) != nullptr;
}

bool Link::has_ended() const { return !control_ || !control_->is_open(); }

bool Link::fetch() {
  if (!messages_.fetch()) return false;
  idle_s_ = 0.0;
  return true;
}

void Link::tick(double elapsed_s, double beat_s, double timeout_s) {
  idle_s_ += elapsed_s;
  if (!is_open() || has_left_) return;
  silent_s_ += elapsed_s;
  quiet_s_ += elapsed_s;
  if (quiet_s_ >= beat_s && outbox_.empty()) {
    quiet_s_ = 0.0;
    send_frame({.kind = FrameKind::kBeat, .epoch = epoch_});
  }
  measure_streams(elapsed_s);
  if (!broken_.empty()) {
    broken_s_ += elapsed_s;
    if (broken_s_ > kExplanation) return hooks_.lost(broken_);
  }
  if (silent_s_ > timeout_s) {
    hooks_.lost(concat("no sign of life for ", shortest(timeout_s),
                       " s (comm.timeout_s): it is stopped, or its host or network is gone"));
  }
}

void Link::abandon() {
  is_abandoned_ = true;
  for (const auto& connection : data_) {
    if (connection) connection->close();
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
