#include "comm/tcp/process_memory.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer::tcp {
namespace {

constexpr std::size_t kMarkBytes = 32;

iovec remote(std::uint64_t address, std::size_t bytes) {
  return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes};
}

}  // namespace

MemoryMark::MemoryMark() : mark_(std::make_unique<std::string>(to_hex(random_bytes(16)))) {}

void MemoryMark::erase() {
  if (mark_) mark_->assign(mark_->size(), '-');
}

std::string MemoryMark::text() const {
  return concat(getpid(), " ", reinterpret_cast<std::uintptr_t>(mark_->data()), " ", *mark_);
}

ProcessMemory ProcessMemory::of(std::string_view mark) {
  ProcessMemory memory;
  const std::size_t first = mark.find(' ');
  const std::size_t second = first == mark.npos ? mark.npos : mark.find(' ', first + 1);
  if (second == mark.npos || mark.size() - second - 1 != kMarkBytes ||
      !parse_whole(mark.substr(0, first), memory.process_) ||
      !parse_whole(mark.substr(first + 1, second - first - 1), memory.mark_address_)) {
    return {};
  }
  memory.mark_ = mark.substr(second + 1);
  std::byte any{};
  const Result result = memory.read(memory.mark_address_, &any, 1);
  return result == Result::kRead ? memory : ProcessMemory();
}

ProcessMemory::Result ProcessMemory::read(std::uint64_t address, std::byte* to,
                                          std::size_t bytes) const {
  Result result = Result::kRead;
  while (bytes > 0 && result == Result::kRead) {
    const auto count = static_cast<std::size_t>(read_some(address, to, bytes, result));
    to += count;
    address += count;
    bytes -= count;
  }
  return result;
}

std::int64_t ProcessMemory::read_some(std::uint64_t address, std::byte* to, std::size_t bytes,
                                      Result& result) const {
  // One call moves less than 2 GiB.
  bytes = std::min(bytes, std::size_t{1} << 30U);
  std::array<char, kMarkBytes> found{};
  const std::array<iovec, 2> here = {iovec{to, bytes}, iovec{found.data(), found.size()}};
  const std::array<iovec, 2> there = {remote(address, bytes), remote(mark_address_, kMarkBytes)};
  const ssize_t count = process_vm_readv(static_cast<pid_t>(process_), here.data(), here.size(),
                                         there.data(), there.size(), 0);
  if (count != static_cast<ssize_t>(bytes + kMarkBytes)) {
    result = Result::kRefused;
    return 0;
  }
  if (std::string_view(found.data(), found.size()) != mark_) {
    result = Result::kGone;
    return 0;
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace gossamer::tcp
