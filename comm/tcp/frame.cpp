#include "comm/tcp/frame.hpp"

#include <concepts>

#include "base/text.hpp"

namespace gossamer::tcp {
namespace {

constexpr std::uint32_t kMagic = 0x52'4d'53'47;  // "GSMR"
constexpr std::uint8_t kVersion = 2;

class Writer {
 public:
  explicit Writer(Header& header) : header_(header) {}
  template <std::unsigned_integral T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      header_.at(place_++) = static_cast<std::byte>((value >> (8U * i)) & 0xffU);
    }
  }

 private:
  Header& header_;
  std::size_t place_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte, kHeaderBytes> header) : header_(header) {}
  template <std::unsigned_integral T>
  T take() {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= std::to_integer<std::uint64_t>(header_[place_++]) << (8U * i);
    }
    return static_cast<T>(value);
  }

 private:
  std::span<const std::byte, kHeaderBytes> header_;
  std::size_t place_ = 0;
};

std::uint64_t max_length(FrameKind kind) {
  if (kind == FrameKind::kPiece) return kMaxPieceBytes;
  return kind == FrameKind::kNews ? kMaxNewsBytes : 0;
}

}  // namespace

Header encode(const Frame& frame) {
  Header header{};
  Writer writer(header);
  writer.put(kMagic);
  writer.put(kVersion);
  writer.put(static_cast<std::uint8_t>(frame.kind));
  writer.put(frame.key.use);
  writer.put(static_cast<std::uint8_t>(frame.reads_memory ? 1 : 0));
  writer.put(frame.epoch);
  writer.put(frame.key.group);
  writer.put(frame.key.number);
  writer.put(frame.key.part);
  writer.put(std::uint32_t{0});
  writer.put(frame.offset);
  writer.put(frame.length);
  writer.put(frame.address);
  return header;
}

Frame decode(std::span<const std::byte, kHeaderBytes> header) {
  Reader reader(header);
  if (reader.take<std::uint32_t>() != kMagic) {
    throw FrameError("these bytes are no frame of gossamer");
  }
  if (const auto version = reader.take<std::uint8_t>(); version != kVersion) {
    throw FrameError(concat("the frame has version ", int{version}, ", and this program speaks ",
                            int{kVersion}, "; use one version of gossamer on all hosts"));
  }
  Frame frame;
  const auto kind = reader.take<std::uint8_t>();
  if (kind < static_cast<std::uint8_t>(FrameKind::kHello) ||
      kind > static_cast<std::uint8_t>(FrameKind::kBroken)) {
    throw FrameError(concat("there is no frame of kind ", int{kind}));
  }
  frame.kind = static_cast<FrameKind>(kind);
  frame.key.use = reader.take<std::uint8_t>();
  frame.reads_memory = reader.take<std::uint8_t>() != 0;
  frame.epoch = reader.take<std::uint32_t>();
  frame.key.group = reader.take<std::uint32_t>();
  frame.key.number = reader.take<std::uint64_t>();
  frame.key.part = reader.take<std::uint32_t>();
  reader.take<std::uint32_t>();
  frame.offset = reader.take<std::uint64_t>();
  frame.length = reader.take<std::uint64_t>();
  frame.address = reader.take<std::uint64_t>();
  if (frame.length > max_length(frame.kind)) {
    throw FrameError(concat("a frame of kind ", int{kind}, " says that ", frame.length,
                            " bytes follow, allowed: ", max_length(frame.kind)));
  }
  return frame;
}

}  // namespace gossamer::tcp
