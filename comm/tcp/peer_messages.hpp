#pragma once
// The messages between this rank and one peer, without their connections (frame.hpp has the
// protocol).
//
// Protocol:
//
// 1. post_send() takes a block to send, and post_receive() takes a block to fill. Each returns a
//    message that tells when it is over.
// 2. The caller gives the peer's frames to the functions handle_...().
// 3. Data connections take pieces from next_piece(), first of the message that has waited longest.
// 4. Data connections report the bytes that have left and arrived by count_sent() and
//    count_arrived().
//
// The blocks of a message must stay until it is over, or until clear().
//
// Thread safety: none. Errors: FrameError for what a peer must not say. Hooks must not throw.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/types.hpp"
#include "comm/tcp/frame.hpp"
#include "comm/tcp/process_memory.hpp"

namespace gossamer::tcp {

/// One message under way.
struct Message {
  MessageKey key = {};
  std::int64_t bytes = 0;
  /// The beginning of the block: `from` in the sender's memory, or `to` in the receiver's memory.
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  /// The number of bytes that pieces have taken, and the number that have left or arrived.
  std::int64_t num_dealt = 0;
  std::int64_t num_moved = 0;
  bool is_over = false;
  /// Why it cannot be sent; empty: it can.
  std::string fault = {};
  /// Keeps the memory where it begins; may be empty.
  std::shared_ptr<void> owner = {};

  /// Whether all of it has left, or arrived. Throws CommError if it cannot be sent.
  [[nodiscard]] bool check() const;
};
using MessagePtr = std::shared_ptr<Message>;

class PeerMessages {
 public:
  struct Hooks {
    /// A message is over, or waits to be fetched.
    std::function<void()> moved;
    /// A frame for the control connection.
    std::function<void(const Frame& frame)> send;
    /// next_piece() has more.
    std::function<void()> sendable;
  };
  struct Config {
    std::uint32_t epoch = 0;
    /// The peer's memory; empty if it cannot be reached.
    ProcessMemory memory = {};
    /// The peer may be ahead by so many messages.
    std::size_t max_early = std::size_t{1} << 20U;
  };

  PeerMessages(const Config& config, Hooks hooks);

  /// `owner` stays until the message is over, or until clear().
  MessagePtr post_send(const MessageKey& key, const ConstBlock& block,
                       std::shared_ptr<void> owner = {});
  MessagePtr post_receive(const MessageKey& key, const Block& block,
                          std::shared_ptr<void> owner = {});
  /// Whether this end reads the peer's memory.
  [[nodiscard]] bool reads_memory() const { return memory_.is_reached(); }
  [[nodiscard]] bool peer_reads_memory() const { return peer_reads_memory_; }
  /// Whether the peer reads this end's memory. If so, offers it all that waits.
  void set_peer_reads_memory(bool reads);
  void handle_ready(const Frame& frame);
  void handle_offer(const Frame& frame);
  void handle_taken(const Frame& frame);

  /// The message that a piece belongs to.
  MessagePtr arriving(const Frame& piece);
  void count_arrived(const MessagePtr& message, std::int64_t bytes);
  void count_sent(const MessagePtr& message, std::int64_t bytes);
  /// The next piece to send over one of `num_connections`; its message is null when there is none.
  MessagePtr next_piece(int num_connections, Frame& piece);
  [[nodiscard]] bool has_pieces() const { return !sendable_.empty(); }
  /// Takes messages that lie in the peer's memory. Returns whether any has moved.
  bool fetch();
  /// The use of an operation in which the peer waits, and which this rank has not begun, while this
  /// rank waits in one that the peer has not begun. Empty: there is none. Tagged messages do not
  /// count.
  [[nodiscard]] std::optional<MessageUse> other_use_of_peer() const;
  /// Forgets all messages. Their blocks are not touched any more.
  void clear();

 private:
  /// A message that lies in the peer's memory.
  struct Offered {
    MessagePtr message;
    std::uint64_t address = 0;
  };

  void say_ready(const Message& message);
  void offer(const Message& message);
  void take_offer(const MessagePtr& message, const Frame& offer);
  void make_sendable(const MessagePtr& message, const Frame& ready);
  /// Whether the peer's message is as large. If not, ends this rank's message with an error.
  bool has_size(Message& message, const Frame& theirs);
  /// Keeps a frame whose message has not been posted yet.
  void keep(std::map<MessageKey, Frame>& early, const Frame& frame) const;
  void finish(Message& message);

  std::uint32_t epoch_;
  std::size_t max_early_;
  ProcessMemory memory_;
  Hooks hooks_;
  std::map<MessageKey, MessagePtr> sends_;
  std::map<MessageKey, MessagePtr> receives_;
  /// The messages for which the peer is ready, or that it offers, and that this rank has not posted
  /// yet.
  std::map<MessageKey, Frame> early_ready_;
  std::map<MessageKey, Frame> early_offers_;
  std::deque<MessagePtr> sendable_;
  std::deque<Offered> offered_;
  bool peer_reads_memory_ = false;
};

}  // namespace gossamer::tcp
