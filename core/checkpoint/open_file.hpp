#pragma once
// A regular file that is open for reading. Files of checkpoints are read through this class alone.
// It opens neither folders nor devices, and follows a symbolic link at the end of the path only
// where the caller says so.
//
// Thread safety: any thread may read. Errors: CheckpointError with the path.

#include <cstdint>
#include <string>

namespace gossamer {

/// A symbolic link at the end of a path. A checkpoint, which may come from a stranger, must not
/// lead out of its folder; a file that the user names may be a link, as in caches of models.
enum class SymbolicLink : std::uint8_t { kRefused, kFollowed };

class OpenFile {
 public:
  /// Throws CheckpointError for a path that does not lead to a regular file.
  explicit OpenFile(std::string path, SymbolicLink link = SymbolicLink::kRefused);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  /// The size at the time of opening.
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }
  /// Reads bytes [at, at + count). Throws CheckpointError if the file ends before.
  void read(void* to, std::int64_t at, std::int64_t count) const;
  /// The whole text of a small file. Throws CheckpointError for more than `most_bytes`.
  [[nodiscard]] std::string text(std::int64_t most_bytes) const;

 private:
  std::string path_;
  int file_ = -1;
  std::int64_t num_bytes_ = 0;
};

}  // namespace gossamer
