#include "apps/train/folder_lock.hpp"

#include <array>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "apps/train/environment.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

std::string this_process() { return concat("process ", getpid(), " on ", host_name()); }

std::string first_line(int file) {
  std::array<char, 512> text{};
  const ssize_t count = pread(file, text.data(), text.size(), 0);
  const std::string whole(text.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  const std::string line = whole.substr(0, whole.find('\n'));
  return line.empty() ? "a process" : line;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw CheckpointError(
        concat(path, " cannot be written: ", std::generic_category().message(errno)));
  }
  int result = 0;
  do {
    result = flock(file_, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  held_ = result == 0;
  if (!held_) {
    if (errno == EWOULDBLOCK) holder_ = first_line(file_);
    return;
  }
  const std::string line = this_process() + "\n";
  // The line only makes messages clearer, so it does not matter when it cannot be written.
  if (ftruncate(file_, 0) == 0) {
    static_cast<void>(pwrite(file_, line.data(), line.size(), 0) < 0);
  }
}

FolderLock::~FolderLock() {
  if (file_ >= 0) close(file_);
}

}  // namespace gossamer::apps
