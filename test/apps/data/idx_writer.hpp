#pragma once
// Writes IDX files, whole and damaged, into a temporary folder for tests.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

namespace gossamer::apps {

using Bytes = std::vector<std::uint8_t>;

/// A folder of the running test, removed with its content at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            (std::string("gossamer-") + test->test_suite_name() + "-" + test->name() + "-" +
             std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(  // NOLINT(modernize-use-nodiscard)
      const std::string& name, const Bytes& bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + (path_ / name).string());
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
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
