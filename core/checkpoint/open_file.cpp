#include "core/checkpoint/open_file.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {

// O_NONBLOCK: opening a pipe must not wait for its other end.
OpenFile::OpenFile(std::string path, SymbolicLink link)
    : path_(std::move(path)),
      file_(open(path_.c_str(), O_RDONLY | (link == SymbolicLink::kRefused ? O_NOFOLLOW : 0) |
                                    O_NONBLOCK | O_CLOEXEC)) {
  if (file_ < 0) {
    throw CheckpointError(concat(path_, " cannot be opened: ",
                                 errno == ELOOP && link == SymbolicLink::kRefused
                                     ? "a symbolic link is not allowed here"
                                     : std::generic_category().message(errno)));
  }
  struct stat info {};
  if (fstat(file_, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(file_);
    throw CheckpointError(concat(path_, " is not a regular file"));
  }
  num_bytes_ = info.st_size;
}

OpenFile::~OpenFile() { close(file_); }

void OpenFile::read(void* to, std::int64_t at, std::int64_t count) const {
  auto* next = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = pread(file_, next, static_cast<std::size_t>(count), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw CheckpointError(
          concat(path_, " cannot be read: ", std::generic_category().message(errno)));
    }
    if (got == 0) {
      throw CheckpointError(concat(path_, " ends at byte ", at, ", ", count, " bytes too early"));
    }
    next += got;
    at += got;
    count -= got;
  }
}

std::string OpenFile::text(std::int64_t most_bytes) const {
  if (num_bytes_ > most_bytes) {
    throw CheckpointError(
        concat(path_, " has ", num_bytes_, " bytes; at most ", most_bytes, " are allowed"));
  }
  std::string text(static_cast<std::size_t>(num_bytes_), '\0');
  read(text.data(), 0, num_bytes_);
  return text;
}

}  // namespace gossamer
