#pragma once
// Reads the bytes of a file from front to back, and unpacks a gzip file on the way. The first bytes
// of the file, not its name, tell whether it is a gzip file. Unlike zlib's gzread, PackedFile
// refuses bytes after the packed data. It needs 64 KiB of memory, whatever the file claims.
//
// Protocol: read until read() returns less than was asked for. Only then has the checksum of a gzip
// file been checked. Not thread safe.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

struct z_stream_s;

namespace gossamer::apps {

class PackedFile {
 public:
  /// Throws DataError unless `path` is a file that can be read.
  explicit PackedFile(const std::filesystem::path& path);

  /// Fills `out` from the front and returns the number of bytes written. This number is smaller
  /// than the size of `out` only at the end of the data. Throws DataError when packed data is
  /// truncated or corrupt.
  std::int64_t read(std::span<std::uint8_t> out);

  /// Bytes read so far, counted after unpacking.
  [[nodiscard]] std::int64_t offset() const { return offset_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Throws a DataError `FILE: byte OFFSET: what`. For a gzip file the message adds that offsets
  /// count unpacked bytes.
  [[noreturn]] void fail(std::int64_t offset, std::string_view what) const;

 private:
  struct EndInflate {
    void operator()(z_stream_s* stream) const;
  };

  void start_inflate();
  bool refill();
  std::size_t read_plain(std::span<std::uint8_t> out);
  std::size_t read_gzip(std::span<std::uint8_t> out);
  [[noreturn]] void fail_gzip(std::int64_t offset, std::string_view reason) const;

  std::filesystem::path path_;
  std::ifstream file_;
  std::vector<std::uint8_t> buffer_;
  /// The part of buffer_ that has been read from the file and not used yet.
  std::span<std::uint8_t> waiting_;
  /// The state of zlib; null for a plain file.
  std::unique_ptr<z_stream_s, EndInflate> inflate_;
  bool between_members_ = false;
  std::int64_t offset_ = 0;
};

}  // namespace gossamer::apps
