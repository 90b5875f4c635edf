#pragma once
// A FolderLock lets one process at a time write a folder. Not thread safe.

#include <string>

#include "base/file_lock.hpp"

namespace gossamer::apps {

/// This process, as `process 123 on some-host`.
std::string this_process();

/// Tries to take the lock of a folder: the file `.lock` in it. The kernel releases the lock when
/// its holder dies. If the lock can be taken, no process writes the folder.
class FolderLock {
 public:
  /// Takes the lock if it is free. Throws CheckpointError if the file cannot be made.
  explicit FolderLock(const std::string& folder, const LockFunction& lock = system_lock());
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// True if this object has the lock. False if another one has it, and on file systems without
  /// locks.
  [[nodiscard]] bool held() const { return held_; }
  /// The other holder, as `process 123 on some-host`. Empty if there is none.
  [[nodiscard]] const std::string& holder() const { return holder_; }
  /// Why the file system has no locks, as `No locks available`. Empty if it has.
  [[nodiscard]] const std::string& why_none() const { return why_none_; }

 private:
  int file_ = -1;
  bool held_ = false;
  std::string holder_;
  std::string why_none_;
};

/// True if a process has had the lock of a folder and no process has it now. False on file systems
/// without locks.
bool is_left(const std::string& folder);

}  // namespace gossamer::apps
