#include "comm/tcp/peer_messages.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::tcp {
namespace {

/// What is read from another process before others have their turn.
constexpr std::int64_t kFetchBudget = std::int64_t{4} << 20;
/// A message goes over many connections in so many pieces for each, of at least so many bytes. The
/// connections are not equally fast, and the last piece to arrive ends the message.
constexpr std::int64_t kPiecesPerStream = 4;
constexpr std::int64_t kMinPieceBytes = std::int64_t{16} << 10;

}  // namespace

bool Message::check() const {
  if (!fault.empty()) throw CommError({}, fault);
  return is_over;
}

PeerMessages::PeerMessages(const Config& config, Hooks hooks)
    : epoch_(config.epoch),
      max_early_(config.max_early),
      memory_(config.memory),
      hooks_(std::move(hooks)) {}

MessagePtr PeerMessages::post_send(const MessageKey& key, const ConstBlock& block,
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

MessagePtr PeerMessages::post_receive(const MessageKey& key, const Block& block,
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

void PeerMessages::say_ready(const Message& message) {
  hooks_.send({.kind = FrameKind::kReady,
               .epoch = epoch_,
               .key = message.key,
               .offset = static_cast<std::uint64_t>(message.bytes)});
}

void PeerMessages::offer(const Message& message) {
  hooks_.send({.kind = FrameKind::kOffer,
               .epoch = epoch_,
               .key = message.key,
               .offset = static_cast<std::uint64_t>(message.bytes),
               .address = reinterpret_cast<std::uintptr_t>(message.from)});
}

void PeerMessages::make_sendable(const MessagePtr& message, const Frame& ready) {
  if (!has_size(*message, ready)) return;
  sendable_.push_back(message);
  hooks_.sendable();
}

bool PeerMessages::has_size(Message& message, const Frame& theirs) {
  if (theirs.offset == static_cast<std::uint64_t>(message.bytes)) return true;
  message.fault = concat("this rank's block has ", message.bytes, " bytes, and that one's ",
                         theirs.offset, "; both must exchange blocks of the same size");
  hooks_.moved();
  return false;
}

void PeerMessages::take_offer(const MessagePtr& message, const Frame& offer) {
  if (!has_size(*message, offer)) return;
  offered_.push_back({message, offer.address});
  hooks_.moved();
}

MessagePtr PeerMessages::next_piece(int num_connections, Frame& piece) {
  if (sendable_.empty()) return nullptr;
  const MessagePtr message = sendable_.front();
  const std::int64_t num_pieces = num_connections == 1 ? 1 : kPiecesPerStream * num_connections;
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

bool PeerMessages::fetch() {
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
      hooks_.send({.kind = FrameKind::kTaken, .epoch = epoch_, .key = message->key});
    }
    count_arrived(message, length);
  }
  return has_moved;
}

void PeerMessages::count_sent(const MessagePtr& message, std::int64_t bytes) {
  message->num_moved += bytes;
  if (message->num_moved == message->bytes) finish(*message);
}

void PeerMessages::count_arrived(const MessagePtr& message, std::int64_t bytes) {
  message->num_moved += bytes;
  if (message->num_moved < message->bytes) return;
  receives_.erase(message->key);
  finish(*message);
}

void PeerMessages::finish(Message& message) {
  message.is_over = true;
  hooks_.moved();
}

MessagePtr PeerMessages::arriving(const Frame& piece) {
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

void PeerMessages::handle_ready(const Frame& frame) {
  const auto found = sends_.extract(frame.key);
  found.empty() ? keep(early_ready_, frame) : make_sendable(found.mapped(), frame);
}

void PeerMessages::handle_offer(const Frame& frame) {
  // Otherwise the peer knows, or will know, that this rank waits for pieces.
  if (!reads_memory()) return;
  const auto found = receives_.find(frame.key);
  found == receives_.end() ? keep(early_offers_, frame) : take_offer(found->second, frame);
}

void PeerMessages::handle_taken(const Frame& frame) {
  const auto found = sends_.extract(frame.key);
  if (found.empty()) throw FrameError("it has taken a message that nobody has offered");
  finish(*found.mapped());
}

void PeerMessages::keep(std::map<MessageKey, Frame>& early, const Frame& frame) const {
  if (early.size() >= max_early_) {
    throw FrameError(concat("it is ahead by more than ", max_early_, " messages"));
  }
  early[frame.key] = frame;
}

void PeerMessages::set_peer_reads_memory(bool reads) {
  peer_reads_memory_ = reads;
  if (!reads) return;
  for (const auto& [key, message] : sends_) offer(*message);
}

std::optional<MessageUse> PeerMessages::other_use_of_peer() const {
  const auto is_tagged = [](const MessageKey& key) {
    return static_cast<MessageUse>(key.use) >= MessageUse::kTagged;
  };
  const auto is_of_operation = [](const MessageKey& theirs) {
    return [&theirs](const auto& ours) {
      const MessageKey& key = ours.first;
      return key.group == theirs.group && key.use == theirs.use && key.number == theirs.number;
    };
  };
  // A peer that has come to all operations of this rank has only begun the next one already.
  if (std::ranges::all_of(sends_, [&](const auto& ours) { return is_tagged(ours.first); })) {
    return std::nullopt;
  }
  for (const auto* early : {&early_ready_, &early_offers_}) {
    for (const auto& [key, frame] : *early) {
      const auto same = is_of_operation(key);
      if (!is_tagged(key) && std::ranges::none_of(sends_, same) &&
          std::ranges::none_of(receives_, same)) {
        return static_cast<MessageUse>(key.use);
      }
    }
  }
  return std::nullopt;
}

void PeerMessages::clear() {
  sends_.clear();
  receives_.clear();
  early_ready_.clear();
  early_offers_.clear();
  sendable_.clear();
  offered_.clear();
}

}  // namespace gossamer::tcp
