#pragma once
// Message authentication codes with the run's secret.

#include <string>
#include <string_view>

namespace gossamer {

/// HMAC-SHA256 (RFC 2104) of `text`: 32 bytes. Throws CommError if OpenSSL has none.
std::string hmac_sha256(std::string_view key, std::string_view text);
/// Compares without telling by its time where texts differ.
bool equal_in_constant_time(std::string_view a, std::string_view b);
/// Two hexadecimal digits for each byte.
std::string to_hex(std::string_view bytes);
/// `count` random bytes from the system.
std::string random_bytes(int count);

}  // namespace gossamer
