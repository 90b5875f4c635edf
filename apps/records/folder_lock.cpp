#include "apps/records/folder_lock.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/records/environment.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

// is_left() has a lock for a moment.
constexpr auto kMoment = std::chrono::milliseconds(10);

std::string first_line(int file) {
  std::array<char, 512> text{};
  const ssize_t count = pread(file, text.data(), text.size(), 0);
  const std::string whole(text.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  const std::string line = whole.substr(0, whole.find('\n'));
  return line.empty() ? "a process" : line;
}

}  // namespace

std::string this_process() { return concat("process ", getpid(), " on ", host_name()); }

FolderLock::FolderLock(const std::string& folder, const LockFunction& lock) {
  const std::string path = folder + "/.lock";
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw CheckpointError(
        concat(path, " cannot be written: ", std::generic_category().message(errno)));
  }
  LockAttempt attempt = try_lock(file_, LOCK_EX, lock);
  if (attempt.result == LockAttempt::Result::kHeldByAnother) {
    std::this_thread::sleep_for(kMoment);
    attempt = try_lock(file_, LOCK_EX, lock);
  }
  held_ = attempt.result == LockAttempt::Result::kTaken;
  why_none_ = attempt.reason;
  if (attempt.result == LockAttempt::Result::kHeldByAnother) holder_ = first_line(file_);
  if (!held_) return;
  const std::string line = this_process() + "\n";
  // The line only makes messages clearer, so it does not matter when it cannot be written.
  if (ftruncate(file_, 0) == 0) {
    static_cast<void>(pwrite(file_, line.data(), line.size(), 0) < 0);
  }
}

FolderLock::~FolderLock() {
  if (file_ >= 0) close(file_);
}

bool is_left(const std::string& folder) {
  const int file = open((folder + "/.lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  // A file that has just been made is empty; its maker is about to take the lock.
  struct stat info {};
  const bool is_free = fstat(file, &info) == 0 && info.st_size > 0 &&
                       try_lock(file, LOCK_SH).result == LockAttempt::Result::kTaken;
  close(file);
  return is_free;
}

}  // namespace gossamer::apps
