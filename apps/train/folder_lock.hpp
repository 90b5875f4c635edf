#pragma once
// Who may write a folder.

#include <string>

namespace gossamer::apps {

/// Tries to take the lock of a folder, the file `.lock` in it. The kernel gives the lock back when
/// its holder dies, so a lock that can be taken says that nobody writes the folder.
class FolderLock {
 public:
  /// Throws CheckpointError when the file cannot be made.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// This object has the lock. False when another one has it, and on file systems without locks.
  [[nodiscard]] bool held() const { return held_; }
  /// `process 123 on some-host`: who has it instead. Empty when nobody does.
  [[nodiscard]] const std::string& holder() const { return holder_; }

 private:
  int file_ = -1;
  bool held_ = false;
  std::string holder_;
};

}  // namespace gossamer::apps
