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

/// Advice for an error number, in brackets behind a blank. For EMFILE it names this process's limit
/// on open files and says how to raise it; for ENFILE it names the system's limit. Empty for other
/// numbers.
std::string file_limit_hint(int error);

}  // namespace gossamer
