#pragma once
// The bytes that one data connection carries to the peer. They stay here until the peer says that
// they have arrived. So a new connection that replaces a broken connection goes on at the byte
// where the peer has stopped reading. No byte is lost, and no byte comes twice.
//
// Protocol: when is_at_end(), append() a piece. Write rest(), and say by advance() how much of it
// has gone. acknowledge() takes what the peer has read. When a new connection is there,
// go_back_to() comes first. Positions count the bytes of all these connections from 0.
//
// A piece refers to the block of its message. When the message is over, release() copies the bytes
// that have not arrived: at most the bytes that TCP's buffers and the network hold, and kAckBytes.
//
// Thread safety: none. Errors: FrameError for a position that the peer cannot have.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "comm/tcp/byte_stream.hpp"
#include "comm/tcp/frame.hpp"
#include "comm/tcp/peer_messages.hpp"

namespace gossamer::tcp {

class OutgoingBytes {
 public:
  /// A receiver says how much it has read after so many more bytes.
  static constexpr std::uint64_t kAckBytes = std::uint64_t{512} << 10U;

  /// The result of advance().
  struct Step {
    /// Whether bytes have left that have never left before.
    bool is_new = false;
    /// The message of a piece that has left for the first time, and the bytes of this piece.
    MessagePtr message = {};
    std::int64_t bytes = 0;
  };

  [[nodiscard]] bool is_at_end() const { return next_ == pieces_.size(); }
  void append(const MessagePtr& message, const Frame& piece);
  /// The unwritten part of the present piece.
  [[nodiscard]] ByteStream::Parts rest() const;
  Step advance(std::size_t count);
  /// Copies the kept bytes of this message, whose block may change from now on.
  void release(const Message& message);
  /// The peer has read all bytes before `position`. An earlier position than before is no news.
  void acknowledge(std::uint64_t position);
  /// The next byte to write is the one at `position`, before which the peer has read all.
  void go_back_to(std::uint64_t position);
  void clear();

 private:
  struct Piece {
    /// The position of the header.
    std::uint64_t begin = 0;
    Header header = {};
    /// The message; null when it is over, and `copy` has the bytes.
    MessagePtr message = {};
    const std::byte* from = nullptr;
    std::uint64_t length = 0;
    std::vector<std::byte> copy = {};
    bool has_left = false;

    [[nodiscard]] std::uint64_t end() const { return begin + kHeaderBytes + length; }
    void release();
  };

  std::deque<Piece> pieces_;
  /// The piece that is being written.
  std::size_t next_ = 0;
  /// The positions of the next byte to write, of the first byte that has never left, and of the
  /// first byte that the peer has not read.
  std::uint64_t position_ = 0;
  std::uint64_t first_new_ = 0;
  std::uint64_t first_unread_ = 0;
};

}  // namespace gossamer::tcp
