#include "apps/records/event_file.hpp"

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "apps/records/environment.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little endian");

// Numbers of fields in the protocol buffers.
constexpr std::uint32_t kEventTime = 1;
constexpr std::uint32_t kEventStep = 2;
constexpr std::uint32_t kEventFileVersion = 3;
constexpr std::uint32_t kEventSummary = 5;
constexpr std::uint32_t kEventSessionLog = 7;
constexpr std::uint32_t kSummaryValue = 1;
constexpr std::uint32_t kValueTag = 1;
constexpr std::uint32_t kValueNumber = 2;
constexpr std::uint32_t kSessionStatus = 1;
constexpr std::uint64_t kSessionStart = 1;

/// Writes fields of a protocol buffer.
class Message {
 public:
  Message& integer(std::uint32_t field, std::uint64_t value) {
    varint(field << 3U);
    varint(value);
    return *this;
  }
  Message& bytes(std::uint32_t field, std::string_view value) {
    varint(field << 3U | 2U);
    varint(value.size());
    text_ += value;
    return *this;
  }
  Message& number(std::uint32_t field, double value) { return fixed(field << 3U | 1U, value); }
  Message& number(std::uint32_t field, float value) { return fixed(field << 3U | 5U, value); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 0x80U; value >>= 7U) text_ += static_cast<char>(value | 0x80U);
    text_ += static_cast<char>(value);
  }
  template <class Value>
  Message& fixed(std::uint32_t key, Value value) {
    varint(key);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }

  std::string text_;
};

Message event() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  Message message;
  message.number(kEventTime, now.count());
  return message;
}

/// As record_writer.h masks checksums: data that hold checksums of their own stay checkable.
std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8U; }

template <class Integer>
std::string bytes_of(Integer value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      std::uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) {
        crc = (crc & 1U) != 0 ? crc >> 1U ^ 0x82f63b78U : crc >> 1U;
      }
      table[i] = crc;
    }
    return table;
  }();
  std::uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) {
    crc = kTable[(crc ^ static_cast<std::uint8_t>(byte)) & 0xffU] ^ crc >> 8U;
  }
  return ~crc;
}

EventFile::EventFile(const std::string& folder, std::int64_t first_step) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  // Two files of one second would have one name; TensorBoard reads them in the order of their
  // names.
  for (int number = 0; path_.empty() || std::filesystem::exists(path_); ++number) {
    path_ = concat(folder, "/events.out.tfevents.", seconds, ".", host_name(), ".", number);
  }
  file_.open(path_, std::ios::binary);
  if (!file_) throw CheckpointError(concat(path_, " cannot be made; may you write that folder?"));
  write_record(event().bytes(kEventFileVersion, "brain.Event:2").text());
  if (first_step == 0) return;
  write_record(event()
                   .integer(kEventStep, static_cast<std::uint64_t>(first_step) + 1)
                   .bytes(kEventSessionLog, Message().integer(kSessionStatus, kSessionStart).text())
                   .text());
}

void EventFile::write(std::int64_t step, const Values& values) {
  Message summary;
  for (const auto& [name, value] : values) {
    summary.bytes(
        kSummaryValue,
        Message().bytes(kValueTag, name).number(kValueNumber, static_cast<float>(value)).text());
  }
  write_record(event()
                   .integer(kEventStep, static_cast<std::uint64_t>(step))
                   .bytes(kEventSummary, summary.text())
                   .text());
}

void EventFile::write_record(std::string_view data) {
  const std::string length = bytes_of(std::uint64_t{data.size()});
  file_ << length << bytes_of(masked(crc32c(length))) << data << bytes_of(masked(crc32c(data)))
        << std::flush;
  if (!file_) throw CheckpointError(concat(path_, " cannot be written; is the disk full?"));
}

}  // namespace gossamer::apps
