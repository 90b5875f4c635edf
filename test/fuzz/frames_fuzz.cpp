// Fuzzes what a rank does with the frames of a peer (comm/tcp/frame.hpp). Whatever bytes a peer
// sends, they are taken, or refused by a FrameError; no payload lies outside of a message that this
// rank waits for, and what this rank keeps stays bounded. scripts/fuzz.sh builds and runs it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "comm/tcp/frame.hpp"
#include "comm/tcp/peer_messages.hpp"

namespace {

using namespace gossamer;
using namespace gossamer::tcp;

constexpr std::size_t kMaxEarly = 64;

class Peer {
 public:
  Peer() {
    for (std::size_t i = 0; i < received_.size(); ++i) {
      const MessageKey key{.number = i};
      messages_.post_receive(key, block_of(std::span(received_[i])));
      messages_.post_send(key, block_of(std::span(sent_)));
    }
  }

  /// Returns the bytes of the payload that follows.
  std::size_t take(const Frame& frame) {
    switch (frame.kind) {
      case FrameKind::kReady:
        messages_.handle_ready(frame);
        break;
      case FrameKind::kOffer:
        messages_.handle_offer(frame);
        break;
      case FrameKind::kTaken:
        messages_.handle_taken(frame);
        break;
      case FrameKind::kPiece:
        take_piece(frame);
        break;
      default:
        break;
    }
    Frame piece;
    while (const MessagePtr message = messages_.next_piece(2, piece)) {
      if (piece.offset + piece.length > static_cast<std::uint64_t>(message->bytes)) std::abort();
      messages_.count_sent(message, static_cast<std::int64_t>(piece.length));
    }
    return frame.length;
  }

 private:
  void take_piece(const Frame& frame) {
    const MessagePtr message = messages_.arriving(frame);
    std::byte* const place = message->to + frame.offset;
    // The sanitizer sees what lies outside.
    std::fill_n(place, frame.length, std::byte{1});
    messages_.count_arrived(message, static_cast<std::int64_t>(frame.length));
  }

  std::vector<std::vector<float>> received_{std::vector<float>(0), std::vector<float>(1),
                                            std::vector<float>(5'000)};
  std::vector<float> sent_ = std::vector<float>(50);
  PeerMessages messages_{{.max_early = kMaxEarly},
                         {.moved = [] {}, .send = [](const Frame&) {}, .sendable = [] {}}};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t count) {
  auto bytes = std::as_bytes(std::span(data, count));
  Peer peer;
  try {
    while (bytes.size() >= kHeaderBytes) {
      const Frame frame = decode(bytes.first<kHeaderBytes>());
      // As encode() wrote it, but for what has no meaning.
      const Frame again = decode(encode(frame));
      if (again.key != frame.key || again.length != frame.length) std::abort();
      bytes = bytes.subspan(kHeaderBytes);
      bytes = bytes.subspan(std::min(peer.take(frame), bytes.size()));
    }
  } catch (const FrameError&) {
  }
  return 0;
}
