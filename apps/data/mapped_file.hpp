#pragma once
// A file that is mapped into memory for reading. The system loads the parts that are read, and
// processes of one machine share them. A file that shrinks while it is mapped ends the program with
// SIGBUS, so data files must stay as they are during a run.
//
// Immutable; any thread may read. Errors: DataError with the path.

#include <cstdint>
#include <span>
#include <string>

namespace gossamer::apps {

class MappedFile {
 public:
  /// Throws DataError for a path that does not lead to a file that can be read.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  std::string path_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace gossamer::apps
