#pragma once
// The connections of this rank with one peer. They carry the frames and pieces of PeerMessages,
// news, and signs of life.
//
// Protocol: messages() takes what shall be sent and received. The connections come by adopt(), in
// any order and at any time; until then everything waits. Before each adopt() stands meet(), when
// the hello of this end is made.
//
// The end of the control connection is the end of the peer. A data connection that ends before is
// made anew, and goes on where it has stopped (OutgoingBytes).
//
// Thread safety: one thread, which runs the io_context. Hooks must not throw.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/tcp/byte_stream.hpp"
#include "comm/tcp/frame.hpp"
#include "comm/tcp/peer_messages.hpp"
#include "comm/tcp/stream_count.hpp"

namespace gossamer::tcp {

class Link {
 public:
  struct Hooks {
    /// A message is over.
    std::function<void()> moved;
    /// The peer brings news.
    std::function<void(const Frame& frame, const std::string& text)> news;
    /// The peer has begun so many steps; -1: it goes on, and what it has told is old.
    std::function<void(std::int64_t num_steps)> stepped;
    /// The peer is gone, or breaks the protocol.
    std::function<void(const std::string& reason)> lost;
    /// Called when connection `index` is to be made, and only on the end that connects.
    std::function<void(int index)> connect;
    /// Called when data connection `index` has ended, and only on the end that connects, which
    /// makes it anew after a pause.
    std::function<void(int index)> broken;
  };
  struct Config {
    std::uint32_t epoch = 0;
    /// Data connections; 0: as many as help (StreamCount).
    int num_streams = 0;
    /// True: this end connects to the other end.
    bool connects = false;
    /// The peer's memory; empty if it cannot be reached.
    ProcessMemory memory = {};
    /// The peer may be ahead by so many messages.
    std::size_t max_early = std::size_t{1} << 20U;
    /// A data connection ends when nothing is acknowledged for so many seconds.
    double unacknowledged_s = 30.0;
  };

  Link(const Config& config, Hooks hooks);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();

  [[nodiscard]] PeerMessages& messages() { return messages_; }
  [[nodiscard]] const PeerMessages& messages() const { return messages_; }
  void send_news(Frame frame, std::string_view text);
  /// Says that the end that follows is no failure.
  void send_goodbye();

  /// Fills in what a hello says of connection `index`. Nothing more is read from an earlier
  /// connection of this index. `theirs`: the peer's hello; null: this end speaks first. Throws
  /// FrameError where the peer may not have such a connection.
  void meet(int index, const Frame* theirs, Frame& ours);
  /// Takes a connection, after the peer's hello, which names it. Connection 0 is the control
  /// connection. Lets go of it if meet() has been called for a later one.
  void adopt(ByteStream stream, const Frame& hello);
  /// Why a data connection has ended that has not been made anew; empty: all are there.
  [[nodiscard]] std::string broken() const;
  [[nodiscard]] bool is_open() const { return control_ != nullptr; }
  /// The peer has said goodbye.
  [[nodiscard]] bool has_left() const { return has_left_; }
  /// Whether the control connection has come to its end, or has never been.
  [[nodiscard]] bool has_ended() const;

  /// Counts time: sends a sign of life every `beat_s` seconds, and takes a peer for lost that has
  /// given none for `timeout_s` seconds. The sign tells the steps that this rank has begun; -1:
  /// unknown.
  void tick(double elapsed_s, double beat_s, double timeout_s, std::int64_t num_steps = -1);
  /// Seconds since the peer's last sign of life; 0 while there is no connection.
  [[nodiscard]] double silent_s() const { return is_open() ? silent_s_ : 0.0; }
  /// Seconds since anything but a sign of life has moved, in either direction.
  [[nodiscard]] double idle_s() const { return idle_s_; }
  /// Takes messages that lie in the peer's memory. Returns whether any has moved.
  bool fetch();
  /// Closes the data connections and forgets all messages, whose blocks are not touched any more.
  /// What comes on the control connection is read, and only news counts.
  void abandon();
  /// Closes all connections.
  void close();
  /// Nothing more will be sent to the peer.
  void end_writing();

 private:
  class Control;
  class Data;
  /// The part of a data connection that stays when the connection is made anew.
  struct Channel;
  void send_frame(const Frame& frame, std::string_view payload = {});
  void adopt_control(ByteStream stream, bool peer_reads_memory);
  void adopt_data(ByteStream stream, const Frame& hello);
  [[nodiscard]] Channel& channel(std::uint32_t index);
  /// Closes a data connection, if it is there.
  void close_data(Channel& channel);
  /// A data connection has ended, although the peer is there.
  void lose_data(Channel& channel, const std::string& reason);
  /// A piece has been written.
  void count_sent(const MessagePtr& message, std::int64_t bytes);
  /// Says how much has been read from data connections.
  void tell_read(Channel& channel);
  /// Asks for more data connections if so many are not asked for yet.
  void want_streams(int number);
  void measure_streams(double elapsed_s);
  /// Whether TCP has lost packets since the last call, or has waited for its windows.
  bool was_held_back();
  /// Connections that have nothing to do take pieces.
  void wake_data();
  void handle(const Frame& frame, const std::string& text);

  std::uint32_t epoch_;
  bool connects_;
  double unacknowledged_s_;
  Hooks hooks_;
  PeerMessages messages_;
  /// Frames for the control connection.
  std::string outbox_;
  std::shared_ptr<Control> control_;
  /// The channels by index, from 1 on; as many as have been needed.
  std::vector<std::unique_ptr<Channel>> channels_;
  int num_open_ = 0;
  int num_asked_for_ = 0;
  StreamCount count_;
  /// Bytes of pieces that have been written since the last look.
  std::int64_t num_written_ = 0;
  /// The figures of all data connections together.
  TcpFigures last_figures_;
  bool is_abandoned_ = false;
  bool has_left_ = false;
  bool ends_writing_ = false;
  double silent_s_ = 0.0;
  double quiet_s_ = 0.0;
  double idle_s_ = 0.0;
};

}  // namespace gossamer::tcp
