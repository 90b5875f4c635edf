#pragma once
// SHA-256 (FIPS 180-4), computed by OpenSSL's libcrypto. An object belongs to one thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace gossamer {

class Sha256 {
 public:
  Sha256();
  void update(const void* bytes, std::size_t count);
  /// The digest of all bytes so far, as 64 hexadecimal digits. Ends the computation.
  std::string hex();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

/// What must not change in a file.
struct FileDigest {
  std::int64_t num_bytes = 0;
  /// 64 hexadecimal digits.
  std::string sha256 = {};
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};

/// Reads a whole file. Throws CheckpointError if this is not possible.
FileDigest digest_of_file(const std::string& path);

}  // namespace gossamer
