#pragma once
// Keeps children of fork() from using or holding open the parent's connections. Python's data
// loaders fork the process that trains. A child has memory of its own, and threads stay in the
// parent. But the child has a copy of every descriptor, and a connection ends only when the last
// copy is closed. If the child kept its copies, peers would not notice the parent's death while the
// child lives.
//
// The descriptors of a process are one table of the system, and pthread_atfork() passes no context
// on. Therefore this file has state of the process, which no other file of the library has. A
// program that a child starts by exec() gets no descriptor at all (FD_CLOEXEC).
//
// Thread safety: any thread may call.

#include <cstdint>
#include <utility>

namespace gossamer {

/// While it lives, a child of fork() gets /dev/null in place of a descriptor. The number stays
/// taken in the child, so that a destructor which closes it there does no harm.
class ClosedInChildren {
 public:
  /// `fd` must stay open as long as this object lives. A negative number stands for none.
  explicit ClosedInChildren(int fd = -1);
  ClosedInChildren(ClosedInChildren&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ClosedInChildren& operator=(ClosedInChildren&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ClosedInChildren(const ClosedInChildren&) = delete;
  ClosedInChildren& operator=(const ClosedInChildren&) = delete;
  ~ClosedInChildren() { end(); }

  /// Children get the descriptor again. Call it before the descriptor is closed.
  void end();

 private:
  int fd_;
};

/// Remembers the process in which it was made. An object with threads must not be destroyed in a
/// child of that process: its destructor would wait for threads that only the parent has.
class HomeProcess {
 public:
  HomeProcess();
  [[nodiscard]] bool is_here() const;

 private:
  /// How often this process, or those it comes from, had been forked.
  std::uint64_t num_forks_;
};

}  // namespace gossamer
