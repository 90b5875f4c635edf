#pragma once
// The command that a user types to start ranks as those of a run were started. No state; any thread
// may call. Errors: none.

#include <string>

#include "comm/start/start.hpp"

namespace gossamer::apps {

/// The command that starts `size` ranks as `start` does, which plan_start() has made of `options`.
/// Each rank runs `program`.
std::string command_to_start(const std::string& program, int size, const StartOptions& options,
                             const Start& start, const Environment& environment);

}  // namespace gossamer::apps
