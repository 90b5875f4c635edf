#pragma once
// Files that appear whole or not at all.

#include <cstddef>
#include <string>

namespace gossamer::apps {

/// A file under a temporary name until keep() gives it its own. Until then a file that was there
/// before stays as it is. Errors throw CheckpointError.
class WholeFile {
 public:
  explicit WholeFile(std::string path);
  /// Removes the temporary file unless keep() was called.
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(const void* bytes, std::size_t count);
  /// Gives the file its name. With `sync` the disk first gets the whole file. A machine that goes
  /// down then leaves either the old file or the new file.
  void keep(bool sync);

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_;
  std::string partial_;
  int file_ = -1;
};

}  // namespace gossamer::apps
