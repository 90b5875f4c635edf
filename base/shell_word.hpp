#pragma once
// Words of commands that a message tells the user to type. No state; any thread may call. Errors:
// none.

#include <string>

namespace gossamer {

/// The text as one word of a POSIX shell, in quotes where it needs them.
std::string shell_word(const std::string& text);

}  // namespace gossamer
