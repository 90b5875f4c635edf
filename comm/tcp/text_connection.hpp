#pragma once
// A connection that carries texts in one direction, each behind its length: four bytes, the lowest
// first. An empty text is a beat.
//
// Protocol, thread safety, errors: as Connection. A text that is too long ends the connection.

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "comm/tcp/connection.hpp"
#include "comm/tcp/frame.hpp"

namespace gossamer::tcp {

class TextConnection : public Connection {
 public:
  struct Hooks {
    std::function<void(std::string text)> heard;
    std::function<void(const std::string& reason)> ended;
  };

  TextConnection(ByteStream stream, Hooks hooks)
      : Connection(std::move(stream)), hooks_(std::move(hooks)) {}

  void send(std::string_view text) {
    outbox_ += framed(text);
    quiet_s = 0.0;
    send_soon();
  }
  /// Called when it is known which process is at the other end.
  void belong_to(Hooks hooks) {
    hooks_ = std::move(hooks);
    max_bytes_ = kMaxTextBytes;
  }
  /// Seconds since something was read, and since something was written.
  double silent_s = 0.0;
  double quiet_s = 0.0;

 private:
  static constexpr std::size_t kLengthBytes = 4;
  /// The first text of a stranger is short: its address.
  static constexpr std::size_t kMaxAddressBytes = 1024;
  /// An epoch of some ten thousand members.
  static constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20U;

  static std::string framed(std::string_view text) {
    std::string bytes;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      bytes.push_back(static_cast<char>(text.size() >> (8U * i) & 0xFFU));
    }
    return bytes.append(text);
  }

  bool receive() override {
    while (is_open()) {
      const std::size_t wanted = in_length_ ? text_.size() : kLengthBytes;
      if (num_read_ < wanted) {
        const std::size_t count = stream().read(rest());
        if (count == 0) return false;
        num_read_ += count;
        silent_s = 0.0;
        continue;
      }
      num_read_ = 0;
      in_length_ ? take_text() : take_length();
    }
    return false;
  }

  std::span<std::byte> rest() {
    if (!in_length_) return std::span(length_).subspan(num_read_);
    return std::as_writable_bytes(std::span(text_)).subspan(num_read_);
  }

  void take_length() {
    std::size_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) {
      length |= std::to_integer<std::size_t>(length_[i]) << (8U * i);
    }
    if (length > max_bytes_) throw FrameError(concat("a text of ", length, " bytes"));
    text_.resize(length);
    in_length_ = length > 0;
  }

  void take_text() {
    in_length_ = false;
    // The call may replace the hooks.
    const auto heard = hooks_.heard;
    heard(std::exchange(text_, {}));
  }

  bool transmit() override {
    while (!outbox_.empty()) {
      const std::size_t count = stream().write({std::as_bytes(std::span(outbox_)), {}});
      if (count == 0) return false;
      outbox_.erase(0, count);
    }
    return true;
  }

  void ended(const std::string& reason) override { hooks_.ended(reason); }

  Hooks hooks_;
  std::size_t max_bytes_ = kMaxAddressBytes;
  std::string outbox_;
  std::array<std::byte, kLengthBytes> length_ = {};
  std::string text_;
  /// Reads a text; false: its length.
  bool in_length_ = false;
  std::size_t num_read_ = 0;
};

}  // namespace gossamer::tcp
