#include "comm/hmac.hpp"

#include <array>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

std::string seal_of(std::string_view key, std::string_view name, std::string_view text) {
  return to_hex(hmac_sha256(key, concat(name, "\n", text)));
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::array<unsigned char, 32> code{};
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(text), text.size(),
           code.data(), &length) == nullptr ||
      length != code.size()) {
    throw CommError({.label = {.what = "HMAC-SHA256"}}, "this OpenSSL does not offer it");
  }
  return {code.begin(), code.end()};
}

std::string sealed(std::string_view key, std::string_view name, std::string_view text) {
  return concat(seal_of(key, name, text), text);
}

std::optional<std::string> opened(std::string_view key, std::string_view name,
                                  std::string_view record) {
  // Two hexadecimal digits for each of the 32 bytes.
  constexpr std::size_t kLength = 64;
  if (record.size() < kLength) return std::nullopt;
  const std::string_view text = record.substr(kLength);
  const std::string seal = seal_of(key, name, text);
  // The time that it takes does not tell where they differ.
  if (CRYPTO_memcmp(record.data(), seal.data(), kLength) != 0) return std::nullopt;
  return std::string(text);
}

std::string why_not_opened(std::string_view key, std::string_view name, std::string_view record) {
  if (key.empty()) {
    return "is signed with a secret, and this rank uses none; give all ranks the same "
           "comm.security";
  }
  if (opened("", name, record)) {
    return "is signed without a secret, and this rank uses one; give all ranks the same "
           "comm.security";
  }
  return "is not signed with this rank's secret; give all ranks the same GOSSAMER_SECRET";
}

std::string random_bytes(int count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), count) != 1) {
    throw CommError({.label = {.what = "random bytes"}}, "the system gives none");
  }
  return bytes;
}

}  // namespace gossamer
