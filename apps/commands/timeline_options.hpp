#pragma once
// The options --timeline and --timeline-steps, which several commands have.

#include <string>

#include <CLI/CLI.hpp>

namespace gossamer::apps {

/// After parsing, `steps` is empty, or text that parse_timeline_steps() reads. Both must outlive
/// the command.
void add_timeline_options(CLI::App& command, std::string& path, std::string& steps);

}  // namespace gossamer::apps
