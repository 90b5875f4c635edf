#pragma once
// The frames of the backend `tcp`, which travel over its connections. A frame is a header of fixed
// size; a payload follows some headers.
//
// Protocol. Two ranks have a control connection, for short frames, and data connections, for the
// pieces of messages. The payload of a message leaves only after its receiver has said kReady. So
// every payload has a place, and a rank that runs ahead cannot fill another rank's memory:
//
//   receiver -> sender   control   kReady    key, size of the message
//   sender -> receiver   data      kPiece    key, offset; then `length` bytes of the message
//
// A receiver that can read the sender's memory (one host) says so in its hello, and takes the
// message itself:
//
//   sender -> receiver   control   kOffer    key, size and address of the message
//   receiver -> sender   control   kTaken    key; or kReady if the memory cannot be read after all
//
// A data connection may break while the control connection lives: a firewall may forget it. Then
// the end that connects makes a new one under the same number (key.part). All these connections
// carry one stream of bytes. Both hellos say how much of it their end has read, and the other end
// goes on there. A connection that is not the latest carries nothing any more:
//
//   both ways             data      kHello    key.group: number of the attempt; offset: bytes read
//   receiver -> sender    control   kRead     key.part; offset: bytes read so far
//   accepts -> connects   control   kBroken   key.part, key.group: this connection has ended
//
// MessageKey names a message among all that one rank sends to another. Both ranks count alike, so
// they need not agree on names.
//
//   kHello     the first frame of each connection, in both directions: who is at this end
//   kBeat      nothing else was to be said for a while; control
//   kStreams   the end that has been connected to wants so many data connections; control
//   kNews      a rank has failed, is lost, or leaves; a text follows; control
//   kGoodbye   the last frame of a control connection: its end is no failure
//
// Numbers are little-endian. Errors: FrameError for bytes that no gossamer of this version sends.
// Thread safety: functions without state.

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace gossamer::tcp {

enum class FrameKind : std::uint8_t {
  kHello = 1,
  kReady = 2,
  kPiece = 3,
  kOffer = 4,
  kTaken = 5,
  kBeat = 6,
  kNews = 7,
  kGoodbye = 8,
  kStreams = 9,
  kRead = 10,
  kBroken = 11
};

/// The use of a message. Messages of one use between two ranks have running numbers.
enum class MessageUse : std::uint8_t {
  kExchange = 0,
  kCollective = 1,
  kRing = 2,
  kSmallSum = 3,
  kHostSum = 4,
  /// Tagged messages with tag 0; the other tags follow.
  kTagged = 16
};

struct MessageKey {
  /// The communicator; 0 is the world.
  std::uint32_t group = 0;
  std::uint8_t use = 0;
  std::uint64_t number = 0;
  /// The number of the message in its operation, where the same two ranks exchange several
  /// messages.
  std::uint32_t part = 0;
  auto operator<=>(const MessageKey&) const = default;
};

struct Frame {
  FrameKind kind = FrameKind::kBeat;
  /// kHello: this end reads the memory of the other end.
  bool reads_memory = false;
  /// Frames of other epochs are refused.
  std::uint32_t epoch = 0;
  MessageKey key = {};
  /// kReady and kOffer: bytes of the message. kPiece: where the payload begins in the message.
  /// kStreams: a number of data connections. kHello and kRead: bytes of a data connection that have
  /// been read. kBeat: one more than the steps that the sender has begun; 0: unknown.
  std::uint64_t offset = 0;
  /// Bytes of the payload.
  std::uint64_t length = 0;
  /// kOffer: where the message lies in the sender's memory. kHello: the run.
  std::uint64_t address = 0;
};

class FrameError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kHeaderBytes = 56;
using Header = std::array<std::byte, kHeaderBytes>;

/// The largest payload of a kPiece.
inline constexpr std::uint64_t kMaxPieceBytes = std::uint64_t{1} << 20U;
/// The largest payload of a kNews.
inline constexpr std::uint64_t kMaxNewsBytes = 1024;

Header encode(const Frame& frame);
/// Throws FrameError, also for a length that this kind of frame cannot have.
Frame decode(std::span<const std::byte, kHeaderBytes> header);

}  // namespace gossamer::tcp
