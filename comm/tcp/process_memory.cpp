#include "comm/tcp/process_memory.hpp"

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

/// Reads up to `bytes` bytes. Returns how many have been read; negative: none can be.
ssize_t read_some(std::int64_t process, std::uint64_t address, void* to, std::size_t bytes) {
  const iovec here{to, bytes};
  const iovec there{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes};
  return process_vm_readv(static_cast<pid_t>(process), &here, 1, &there, 1, 0);
}

}  // namespace

MemoryMark::MemoryMark() : mark_(std::make_unique<std::string>(to_hex(random_bytes(16)))) {}

std::string MemoryMark::text() const {
  return concat(getpid(), " ", reinterpret_cast<std::uintptr_t>(mark_->data()), " ", *mark_);
}

ProcessMemory ProcessMemory::of(std::string_view mark) {
  std::int64_t process = 0;
  std::uint64_t address = 0;
  const std::size_t first = mark.find(' ');
  const std::size_t second = first == mark.npos ? mark.npos : mark.find(' ', first + 1);
  if (second == mark.npos || !parse_whole(mark.substr(0, first), process) ||
      !parse_whole(mark.substr(first + 1, second - first - 1), address)) {
    return {};
  }
  const std::string_view expected = mark.substr(second + 1);
  std::array<char, kMarkBytes> found{};
  if (read_some(process, address, found.data(), found.size()) != std::ssize(found) ||
      std::string_view(found.data(), found.size()) != expected) {
    return {};
  }
  ProcessMemory memory;
  memory.process_ = process;
  return memory;
}

bool ProcessMemory::read(std::uint64_t address, std::byte* to, std::size_t bytes) const {
  while (bytes > 0) {
    const ssize_t count = read_some(process_, address, to, bytes);
    if (count <= 0) return false;
    to += count;
    address += static_cast<std::uint64_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace gossamer::tcp
