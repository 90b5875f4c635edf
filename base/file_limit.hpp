#pragma once
// How many files and connections this process may have open.
//
// Thread safety: functions without state of their own.

#include <cstdint>
#include <string>

namespace gossamer {

/// Raises this process's limit to the most that the system allows it (the hard limit, and no more
/// than a million), and returns the limit that holds then. Processes that it starts inherit it.
std::int64_t raise_file_limit();

/// The number of files and connections that are open now; 0 where the system does not tell.
std::int64_t num_open_files();

/// What to do about an error number, in brackets behind a blank: for EMFILE this process's limit
/// and how to raise it, for ENFILE the system's. Empty for others.
std::string file_limit_hint(int error);

}  // namespace gossamer
