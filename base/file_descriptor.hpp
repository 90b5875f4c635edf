#pragma once
// The owner of an open file, socket or other descriptor of the system. Not thread safe.

#include <utility>

#include <unistd.h>

#include "base/fork.hpp"

namespace gossamer {

/// Closes the descriptor at its end. A negative number stands for none. A child of fork() does not
/// get the descriptor, unless it has been given away.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd), closed_in_children_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        closed_in_children_(std::move(other.closed_in_children_)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(closed_in_children_, other.closed_in_children_);
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    closed_in_children_.end();
    if (fd_ >= 0) close(fd_);
  }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  /// Gives the descriptor away: the caller closes it.
  [[nodiscard]] int release() {
    closed_in_children_.end();
    return std::exchange(fd_, -1);
  }

 private:
  int fd_;
  ClosedInChildren closed_in_children_;
};

}  // namespace gossamer
