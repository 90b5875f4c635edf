#pragma once
// The secret of a run: a text that its ranks have, and no one else. It signs the records by which
// ranks meet (comm/rendezvous/meeting.hpp), and encrypts their messages.
//
// Thread safe. Errors: ConfigError that says what is allowed.

#include <string>

namespace gossamer {

/// 32 random bytes of the system, as 64 hexadecimal digits.
std::string fresh_secret();

/// The text of the file, without space at its end. The file must belong to this user, and no other
/// user may read it (mode 600). Throws ConfigError, whose text names the file.
std::string read_secret_file(const std::string& path);

/// Writes a new file that only this user may read. Throws ConfigError if it exists already.
void write_secret_file(const std::string& path, const std::string& secret);

/// Throws ConfigError for a secret that is easy to guess: one of fewer than 16 characters.
void check_secret(const std::string& secret);

}  // namespace gossamer
