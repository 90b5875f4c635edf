#pragma once
// The memory of another process on this host, from which this one reads without a copy between
// (process_vm_readv, Linux). Works where the system allows it: processes of one user that see each
// other's numbers; not between containers.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace gossamer::tcp {

/// Something in this process's memory by which others recognise it: when they meet, and with every
/// message that they take. So they take nothing after erase().
class MemoryMark {
 public:
  MemoryMark();
  /// Makes peers see that this process's memory is no longer the memory that it has offered.
  void erase();
  /// `process address mark`, for of().
  [[nodiscard]] std::string text() const;

 private:
  std::unique_ptr<std::string> mark_;
};

class ProcessMemory {
 public:
  /// No memory can be reached.
  ProcessMemory() = default;
  /// The memory of the process that has this mark; none if it cannot be read, or if another process
  /// has that number here.
  static ProcessMemory of(std::string_view mark);

  [[nodiscard]] bool is_reached() const { return process_ > 0; }
  enum class Result : std::uint8_t {
    kRead,
    /// The system does not allow it.
    kRefused,
    /// The process has withdrawn its memory.
    kGone
  };
  /// Copies bytes to `to`.
  [[nodiscard]] Result read(std::uint64_t address, std::byte* to, std::size_t bytes) const;

 private:
  /// Reads up to `bytes` bytes, then the mark. Returns how many have been read, without the mark.
  [[nodiscard]] std::int64_t read_some(std::uint64_t address, std::byte* to, std::size_t bytes,
                                       Result& result) const;

  std::int64_t process_ = 0;
  std::uint64_t mark_address_ = 0;
  std::string mark_;
};

}  // namespace gossamer::tcp
