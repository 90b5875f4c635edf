#pragma once
// A WholeFile is a file that appears whole or not at all. Not thread safe. Errors: CheckpointError
// with the path.

#include <cstddef>
#include <string>
#include <string_view>

#include "core/checkpoint/open_file.hpp"

namespace gossamer {

/// Makes the names in a folder survive a machine that goes down. Does nothing where the file system
/// cannot do it.
void sync_folder(const std::string& folder);

/// True for the temporary name of a WholeFile. A process that dies leaves such a file behind.
bool is_partial_name(std::string_view name);

/// Writes a file under a temporary name (`NAME.partial-PROCESS-NUMBER`) until keep() gives it its
/// own name. An earlier file of that name stays as it is until then. A device, a pipe and the
/// process's own standard output are written in place.
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
  /// After a crash of the machine there is then either the old file or the new file.
  void keep(bool sync);

 private:
  [[noreturn]] void fail(int error) const;

  std::string path_;
  /// Empty: the file is written in place.
  std::string partial_;
  int file_ = -1;
};

/// A file of its own in the folder for such files; removed at the end.
class TemporaryFile {
 public:
  /// `suffix`: the end of its name.
  explicit TemporaryFile(std::string_view suffix);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Copies a file, which may have been replaced or removed since it was opened. The copy is on the
/// disk before it gets its name.
void copy_whole_file(const OpenFile& from, const std::string& to);

/// Writes a file of text, with `sync` as in keep().
void write_whole_file(const std::string& path, std::string_view text, bool sync);

}  // namespace gossamer
