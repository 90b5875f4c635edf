#pragma once
// Message authentication codes with the run's secret.

#include <optional>
#include <string>
#include <string_view>

namespace gossamer {

/// HMAC-SHA256 (RFC 2104) of `text`: 32 bytes. Throws CommError if OpenSSL has none.
std::string hmac_sha256(std::string_view key, std::string_view text);
/// `text` behind an HMAC of it and of its name, for places that others can write to.
std::string sealed(std::string_view key, std::string_view name, std::string_view text);
/// The text that was sealed with this key and this name; nothing if there is none.
std::optional<std::string> opened(std::string_view key, std::string_view name,
                                  std::string_view record);
/// Why opened() returned nothing, as the end of a sentence about the record, and what to do. A
/// record that was sealed without a secret is told from one with another secret.
std::string why_not_opened(std::string_view key, std::string_view name, std::string_view record);
/// `count` random bytes from the system.
std::string random_bytes(int count);

}  // namespace gossamer
