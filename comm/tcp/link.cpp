#include "comm/tcp/link.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/tcp/connection.hpp"

namespace gossamer::tcp {
namespace {

/// What one connection reads before others have their turn.
constexpr std::int64_t kReadBudget = std::int64_t{4} << 20;
/// What is read from another process before others have their turn.
constexpr std::int64_t kFetchBudget = std::int64_t{4} << 20;
/// A message goes over many connections in so many pieces for each, of at least so many bytes. The
/// connections are not equally fast, and the last piece to arrive ends the message.
constexpr std::int64_t kPiecesPerStream = 4;
constexpr std::int64_t kMinPieceBytes = std::int64_t{16} << 10;
/// The kernel's own queue for a connection between far hosts.
constexpr int kUnsentWhenFar = 16 * 1024;
/// Seconds in a window by which buffers may hold a connection back.
constexpr double kHeldBack = 0.1;
/// Seconds in which the control connection says why a data connection has ended.
constexpr double kExplanation = 0.5;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

bool Message::check() const {
  if (!fault.empty()) throw CommError({}, fault);
  return is_over;
}

/// Whole frames in both directions.
class Link::Control : public Connection {
 public:
  Control(ByteStream stream, Link& link) : Connection(std::move(stream)), link_(link) {}

 private:
  bool receive() override {
    while (const std::size_t count = read_more()) {
      num_read_ += count;
      link_.silent_s_ = 0.0;
      has_begun_ = true;
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
    if (link_.has_left_ || link_.is_abandoned_) return;
    has_begun_ ? link_.hooks_.lost(reason) : link_.forget_control();
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
  bool has_begun_ = false;
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
      has_begun_ = true;
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
        link_.count_arrived(message, in_bytes_);
      }
    }
    return true;
  }

  bool transmit() override {
    while (true) {
      if (!out_) {
        Frame piece;
        out_ = link_.next_piece(piece);
        if (!out_) return true;
        has_begun_ = true;
        out_header_ = encode(piece);
        out_bytes_ = static_cast<std::int64_t>(piece.length);
        rest_ = {out_header_, {out_->from + piece.offset, static_cast<std::size_t>(piece.length)}};
      }
      std::size_t count = stream().write(rest_);
      if (count == 0) return false;
      link_.num_written_ += static_cast<std::int64_t>(count);
      for (auto& part : rest_) {
        const std::size_t taken = std::min(count, part.size());
        part = part.subspan(taken);
        count -= taken;
      }
      if (!rest_[0].empty() || !rest_[1].empty()) continue;
      link_.count_sent(std::exchange(out_, nullptr), out_bytes_);
    }
  }

  void ended(const std::string& reason) override {
    if (link_.is_abandoned_) return;
    if (!has_begun_) return link_.forget_data(*this);
    if (link_.broken_.empty()) link_.broken_ = reason;
  }

  std::size_t read_more() {
    return stream().read(num_header_ < kHeaderBytes ? std::span(header_).subspan(num_header_)
                                                    : in_place_);
  }

  void begin_piece() {
    const Frame piece = decode(header_);
    in_ = link_.arriving(piece);
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
  bool has_begun_ = false;
};

Link::Link(const Config& config, Hooks hooks)
    : epoch_(config.epoch),
      connects_(config.connects),
      max_early_(config.max_early),
      memory_(config.memory),
      hooks_(std::move(hooks)),
      data_(StreamCount::kMax),
      count_(config.num_streams) {
  if (!connects_) return;
  hooks_.connect(0);
  want_streams(count_.wanted());
}

Link::~Link() { close(); }

MessagePtr Link::post_send(const MessageKey& key, const ConstBlock& block,
                           std::shared_ptr<void> owner) {
  auto message = std::make_shared<Message>();
  message->key = key;
  message->bytes = block.bytes();
  message->from = static_cast<const std::byte*>(block.data);
  message->owner = std::move(owner);
  const auto ready = early_ready_.extract(key);
  if (ready.empty()) {
    sends_[key] = message;
    if (peer_reads_memory_) offer(*message);
    return message;
  }
  make_sendable(message, ready.mapped());
  return message;
}

MessagePtr Link::post_receive(const MessageKey& key, const Block& block,
                              std::shared_ptr<void> owner) {
  auto message = std::make_shared<Message>();
  message->key = key;
  message->bytes = block.bytes();
  message->to = static_cast<std::byte*>(block.data);
  message->owner = std::move(owner);
  receives_[key] = message;
  const auto offer = early_offers_.extract(key);
  if (!reads_memory()) {
    say_ready(*message);
  } else if (!offer.empty()) {
    take_offer(message, offer.mapped());
  }
  return message;
}

void Link::say_ready(const Message& message) {
  send_frame({.kind = FrameKind::kReady,
              .epoch = epoch_,
              .key = message.key,
              .offset = static_cast<std::uint64_t>(message.bytes)});
}

void Link::offer(const Message& message) {
  send_frame({.kind = FrameKind::kOffer,
              .epoch = epoch_,
              .key = message.key,
              .offset = static_cast<std::uint64_t>(message.bytes),
              .address = reinterpret_cast<std::uintptr_t>(message.from)});
}

void Link::make_sendable(const MessagePtr& message, const Frame& ready) {
  if (!has_size(*message, ready)) return;
  sendable_.push_back(message);
  wake_data();
}

bool Link::has_size(Message& message, const Frame& theirs) {
  if (theirs.offset == static_cast<std::uint64_t>(message.bytes)) return true;
  message.fault = concat("this rank's block has ", message.bytes, " bytes, and that one's ",
                         theirs.offset, "; both must exchange blocks of the same size");
  hooks_.moved();
  return false;
}

void Link::take_offer(const MessagePtr& message, const Frame& offer) {
  if (!has_size(*message, offer)) return;
  offered_.push_back({message, offer.address});
  hooks_.moved();
}

void Link::wake_data() {
  for (const auto& connection : data_) {
    if (sendable_.empty()) return;
    if (connection) connection->send_soon();
  }
}

MessagePtr Link::next_piece(Frame& piece) {
  if (sendable_.empty()) return nullptr;
  const MessagePtr message = sendable_.front();
  const std::int64_t num_pieces = num_open_ == 1 ? 1 : kPiecesPerStream * num_open_;
  const std::int64_t share = (message->bytes + num_pieces - 1) / num_pieces;
  const std::int64_t most =
      std::clamp(share, kMinPieceBytes, static_cast<std::int64_t>(kMaxPieceBytes));
  const std::int64_t length = std::min(most, message->bytes - message->num_dealt);
  piece = {.kind = FrameKind::kPiece,
           .epoch = epoch_,
           .key = message->key,
           .offset = static_cast<std::uint64_t>(message->num_dealt),
           .length = static_cast<std::uint64_t>(length)};
  message->num_dealt += length;
  if (message->num_dealt == message->bytes) sendable_.pop_front();
  return message;
}

bool Link::fetch_messages() {
  std::int64_t budget = kFetchBudget;
  bool has_moved = false;
  while (!offered_.empty() && budget > 0) {
    const auto [message, address] = offered_.front();
    const std::int64_t length = std::min(budget, message->bytes - message->num_moved);
    const ProcessMemory::Result result =
        memory_.read(address + static_cast<std::uint64_t>(message->num_moved),
                     message->to + message->num_moved, static_cast<std::size_t>(length));
    if (result == ProcessMemory::Result::kGone) {
      // The peer has failed. The control connection says why.
      offered_.clear();
      return has_moved;
    }
    if (result == ProcessMemory::Result::kRefused) {
      // The system has changed its mind. The connections still carry everything.
      memory_ = {};
      for (const auto& [key, waiting] : receives_) {
        waiting->num_moved = 0;
        say_ready(*waiting);
      }
      offered_.clear();
      early_offers_.clear();
      return true;
    }
    budget -= std::max<std::int64_t>(length, 1);
    has_moved = true;
    if (message->num_moved + length == message->bytes) {
      offered_.pop_front();
      send_frame({.kind = FrameKind::kTaken, .epoch = epoch_, .key = message->key});
    }
    count_arrived(message, length);
  }
  return has_moved;
}

void Link::count_sent(const MessagePtr& message, std::int64_t bytes) {
  message->num_moved += bytes;
  quiet_s_ = 0.0;
  if (message->num_moved == message->bytes) finish(*message);
}

void Link::count_arrived(const MessagePtr& message, std::int64_t bytes) {
  message->num_moved += bytes;
  if (message->num_moved < message->bytes) return;
  receives_.erase(message->key);
  finish(*message);
}

void Link::finish(Message& message) {
  message.is_over = true;
  hooks_.moved();
}

MessagePtr Link::arriving(const Frame& piece) {
  if (piece.kind != FrameKind::kPiece || piece.epoch != epoch_) {
    throw FrameError("a data connection brings something else than a piece of this epoch");
  }
  const auto found = receives_.find(piece.key);
  if (found == receives_.end()) throw FrameError("a piece of a message that nobody has asked for");
  const auto bytes = static_cast<std::uint64_t>(found->second->bytes);
  const auto begun = static_cast<std::uint64_t>(found->second->num_dealt);
  if (piece.length > bytes - begun || piece.offset > bytes || piece.length > bytes - piece.offset ||
      (piece.length == 0 && bytes > 0)) {
    throw FrameError(concat("a piece of ", piece.length, " bytes at ", piece.offset,
                            " of a message of ", bytes, " bytes"));
  }
  found->second->num_dealt += static_cast<std::int64_t>(piece.length);
  return found->second;
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
  switch (frame.kind) {
    case FrameKind::kReady:
      return handle_ready(frame);
    case FrameKind::kOffer:
      return handle_offer(frame);
    case FrameKind::kTaken:
      return handle_taken(frame);
    case FrameKind::kNews:
      return hooks_.news(frame, text);
    case FrameKind::kGoodbye:
      has_left_ = true;
      return;
    case FrameKind::kStreams:
      if (connects_ && !count_.is_fixed()) {
        want_streams(static_cast<int>(std::min<std::uint64_t>(frame.offset, StreamCount::kMax)));
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

void Link::handle_ready(const Frame& frame) {
  const auto found = sends_.extract(frame.key);
  found.empty() ? keep(early_ready_, frame) : make_sendable(found.mapped(), frame);
}

void Link::handle_offer(const Frame& frame) {
  // Otherwise the peer knows, or will know, that this rank waits for pieces.
  if (!reads_memory()) return;
  const auto found = receives_.find(frame.key);
  found == receives_.end() ? keep(early_offers_, frame) : take_offer(found->second, frame);
}

void Link::handle_taken(const Frame& frame) {
  const auto found = sends_.extract(frame.key);
  if (found.empty()) throw FrameError("it has taken a message that nobody has offered");
  finish(*found.mapped());
}

void Link::keep(std::map<MessageKey, Frame>& early, const Frame& frame) const {
  if (early.size() >= max_early_) {
    throw FrameError(concat("it is ahead by more than ", max_early_, " messages"));
  }
  early[frame.key] = frame;
}

void Link::adopt(ByteStream stream, const Frame& hello) {
  if (hello.key.part == 0) return adopt_control(std::move(stream), hello.reads_memory);
  adopt_data(std::move(stream), static_cast<int>(hello.key.part));
}

void Link::adopt_control(ByteStream stream, bool peer_reads_memory) {
  count_.set_round_trip(stream.figures().round_trip_s);
  silent_s_ = 0.0;
  peer_reads_memory_ = peer_reads_memory;
  // Into the outbox: while there is no connection, nothing can change the messages.
  if (peer_reads_memory_) {
    for (const auto& [key, message] : sends_) offer(*message);
  }
  // At once, so that the peer knows that this connection is alive.
  send_frame({.kind = FrameKind::kBeat, .epoch = epoch_});
  control_ = std::make_shared<Control>(std::move(stream), *this);
  control_->start();
  control_->send_soon();
  want_streams(count_.wanted());
}

void Link::adopt_data(ByteStream stream, int index) {
  if (count_.is_far()) stream.limit_unsent(kUnsentWhenFar);
  auto& place = data_.at(static_cast<std::size_t>(index) - 1);
  place = std::make_shared<Data>(std::move(stream), *this);
  ++num_open_;
  place->start();
  place->send_soon();
}

void Link::want_streams(int number) {
  // Through memory, messages need none.
  if (number <= num_asked_for_ || (peer_reads_memory_ && reads_memory())) return;
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
  const bool is_busy = num_open_ == num_asked_for_ && num_open_ > 0 &&
                       std::ranges::all_of(data_, [](const auto& connection) {
                         return !connection || connection->is_busy();
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
    total.num_sent_again += figures.num_sent_again;
    total.held_back_s += figures.held_back_s;
  }
  const TcpFigures last = std::exchange(last_figures_, total);
  return total.num_sent_again > last.num_sent_again ||
         total.held_back_s > last.held_back_s + kHeldBack * num_open_;
}

bool Link::has_connection(int index) const {
  return index == 0 ? control_ != nullptr
                    : data_.at(static_cast<std::size_t>(index) - 1) != nullptr;
}

bool Link::has_ended() const { return !control_ || !control_->is_open(); }

void Link::tick(double elapsed_s, double beat_s, double timeout_s) {
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
  sends_.clear();
  receives_.clear();
  early_ready_.clear();
  early_offers_.clear();
  sendable_.clear();
  offered_.clear();
}

void Link::close() {
  abandon();
  if (control_) control_->close();
}

void Link::forget_control() {
  control_.reset();
  if (connects_) hooks_.connect(0);
}

void Link::forget_data(const Connection& connection) {
  const auto place =
      std::ranges::find(data_, &connection, [](const auto& each) { return each.get(); });
  place->reset();
  --num_open_;
  if (connects_) hooks_.connect(static_cast<int>(place - data_.begin()) + 1);
}

void Link::end_writing() {
  ends_writing_ = true;
  if (control_) control_->send_soon();
}

}  // namespace gossamer::tcp
