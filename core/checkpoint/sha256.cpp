#include "core/checkpoint/sha256.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <openssl/evp.h>

#include "base/text.hpp"
#include "core/checkpoint/open_file.hpp"

namespace gossamer {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20U;

EVP_MD_CTX* context_of(void* context) { return static_cast<EVP_MD_CTX*>(context); }

void check(int result) {
  if (result != 1) throw std::runtime_error("libcrypto cannot compute SHA-256");
}

}  // namespace

void Sha256::Free::operator()(void* context) const { EVP_MD_CTX_free(context_of(context)); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr) throw std::bad_alloc();
  check(EVP_DigestInit_ex(context_of(context_.get()), EVP_sha256(), nullptr));
}

void Sha256::update(const void* bytes, std::size_t count) {
  check(EVP_DigestUpdate(context_of(context_.get()), bytes, count));
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  check(EVP_DigestFinal_ex(context_of(context_.get()), digest.data(), &size));
  return to_hex({reinterpret_cast<const char*>(digest.data()), size});
}

FileDigest digest_of_file(const std::string& path) {
  const OpenFile file(path);
  Sha256 sha;
  std::vector<char> chunk(kChunk);
  for (std::int64_t at = 0; at < file.num_bytes();) {
    const std::int64_t count =
        std::min(file.num_bytes() - at, static_cast<std::int64_t>(chunk.size()));
    file.read(chunk.data(), at, count);
    sha.update(chunk.data(), static_cast<std::size_t>(count));
    at += count;
  }
  return {.num_bytes = file.num_bytes(), .sha256 = sha.hex()};
}

}  // namespace gossamer
