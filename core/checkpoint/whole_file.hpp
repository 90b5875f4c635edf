#pragma once
// A WholeFile is a file that appears whole or not at all. Not thread safe. Errors: CheckpointError
// with the path.

#include <cstddef>
#include <string>
#include <string_view>

namespace gossamer {

/// Makes the names in a folder survive a machine that goes down. Does nothing where the file system
/// cannot do it.
void sync_folder(const std::string& folder);

/// Writes a file under a temporary name until keep() gives it its own name. An earlier file of that
/// name stays as it is until then.
class WholeFile {
 public:
  explicit WholeFile(std::string path);
  /// Removes the temporary file unless keep() was called.
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  /// Appends `count` bytes.
  void write(const void* bytes, std::size_t count);
  /// Gives the file its name. With `sync` the whole file is on the disk before it gets its name.
  /// After a crash of the machine there is then either the old file or the new one.
  void keep(bool sync);

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_;
  std::string partial_;
  int file_ = -1;
};

/// Writes a file of text, with `sync` as in keep().
void write_whole_file(const std::string& path, std::string_view text, bool sync);

}  // namespace gossamer
