#pragma once
// Writes IDX files, whole and damaged, into a temporary folder for tests.

#include "test/apps/folder.hpp"

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include <zlib.h>

namespace gossamer::apps {

using Bytes = std::vector<std::uint8_t>;

/// A folder of the running test with files of bytes.
class TemporaryFolder : public Folder {
 public:
  [[nodiscard]] fs::path path() const { return fs::path(file("x")).parent_path(); }

  // NOLINTNEXTLINE(modernize-use-nodiscard)
  fs::path write(const std::string& name, const Bytes& bytes) const {
    write_bytes(file(name), {bytes.begin(), bytes.end()});
    return file(name);
  }
};

inline void append_number(Bytes& bytes, std::uint32_t number) {
  for (unsigned shift = 32; shift > 0;) {
    shift -= 8;
    bytes.push_back(static_cast<std::uint8_t>(number >> shift));
  }
}

inline Bytes idx_header(std::initializer_list<std::uint32_t> shape) {
  Bytes bytes = {0, 0, 8, static_cast<std::uint8_t>(shape.size())};
  for (const std::uint32_t size : shape) append_number(bytes, size);
  return bytes;
}

/// `count` images; pixel p of image i is (31 i + p) mod 256.
inline Bytes idx_images(std::uint32_t count, std::uint32_t height = 3, std::uint32_t width = 4) {
  Bytes bytes = idx_header({count, height, width});
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t p = 0; p < height * width; ++p) {
      bytes.push_back(static_cast<std::uint8_t>(31 * i + p));
    }
  }
  return bytes;
}

/// `count` labels; label i is i mod `classes`.
inline Bytes idx_labels(std::uint32_t count, std::uint32_t classes = 10) {
  Bytes bytes = idx_header({count});
  for (std::uint32_t i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(i % classes));
  return bytes;
}

inline Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("deflateInit2 failed");
  }
  Bytes in = bytes;
  Bytes out(deflateBound(&stream, static_cast<uLong>(bytes.size())));
  stream.next_in = in.data();
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) throw std::runtime_error("deflate failed");
  return out;
}

inline Bytes concatenated(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Bytes first_bytes(const Bytes& bytes, std::size_t count) {
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace gossamer::apps
