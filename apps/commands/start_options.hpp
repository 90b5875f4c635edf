#pragma once
// The options by which a run starts without MPI, which several commands may have.

#include <CLI/CLI.hpp>

#include "apps/train/start.hpp"

namespace gossamer::apps {

/// Adds --processes, --rendezvous, --world-size, --rank and --run-id. `options` must outlive the
/// command.
void add_start_options(CLI::App& command, StartOptions& options);

/// getenv(), for plan_start().
const char* variable_of_environment(const char* name);

}  // namespace gossamer::apps
