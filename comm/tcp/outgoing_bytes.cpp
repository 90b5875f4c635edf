#include "comm/tcp/outgoing_bytes.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/text.hpp"

namespace gossamer::tcp {

void OutgoingBytes::Piece::release() {
  if (!message) return;
  copy.assign(from, from + length);
  from = copy.data();
  message.reset();
}

void OutgoingBytes::append(const MessagePtr& message, const Frame& piece) {
  pieces_.push_back({.begin = position_,
                     .header = encode(piece),
                     .message = message,
                     .from = message->from + piece.offset,
                     .length = piece.length});
}

ByteStream::Parts OutgoingBytes::rest() const {
  const Piece& piece = pieces_.at(next_);
  const auto done = static_cast<std::size_t>(position_ - piece.begin);
  const std::span<const std::byte> header(piece.header);
  const std::span<const std::byte> payload(piece.from, static_cast<std::size_t>(piece.length));
  if (done < kHeaderBytes) return {header.subspan(done), payload};
  return {header.subspan(kHeaderBytes), payload.subspan(done - kHeaderBytes)};
}

OutgoingBytes::Step OutgoingBytes::advance(std::size_t count) {
  position_ += count;
  Step step{.is_new = position_ > first_new_};
  first_new_ = std::max(first_new_, position_);
  Piece& piece = pieces_.at(next_);
  if (position_ < piece.end()) return step;
  ++next_;
  if (std::exchange(piece.has_left, true)) return step;
  step.message = piece.message;
  step.bytes = static_cast<std::int64_t>(piece.length);
  // This piece is the whole message, so no other piece refers to the block.
  if (step.bytes == step.message->bytes) piece.release();
  return step;
}

void OutgoingBytes::release(const Message& message) {
  for (Piece& piece : pieces_) {
    if (piece.message.get() == &message) piece.release();
  }
}

void OutgoingBytes::acknowledge(std::uint64_t position) {
  if (position > position_) {
    throw FrameError(
        concat("it has read ", position, " bytes of a connection that has carried ", position_));
  }
  first_unread_ = std::max(first_unread_, position);
  while (!pieces_.empty() && pieces_.front().has_left && pieces_.front().end() <= position) {
    pieces_.pop_front();
    --next_;
  }
}

void OutgoingBytes::go_back_to(std::uint64_t position) {
  if (position < first_unread_ || position > first_new_) {
    throw FrameError(concat("it goes on at byte ", position,
                            " of a connection, allowed: ", first_unread_, " to ", first_new_));
  }
  position_ = first_new_;
  next_ = pieces_.size();
  acknowledge(position);
  position_ = position;
  const auto present = std::ranges::find_if(
      pieces_, [position](const Piece& piece) { return position < piece.end(); });
  next_ = static_cast<std::size_t>(present - pieces_.begin());
}

void OutgoingBytes::clear() {
  pieces_.clear();
  next_ = 0;
  position_ = first_new_;
}

}  // namespace gossamer::tcp
