#pragma once
// The options that say where the ranks of a command run, and how they start.

#include <CLI/CLI.hpp>

#include "comm/start/start.hpp"

namespace gossamer::apps {

/// Adds --processes, --rendezvous, --world-size, --rank and --run-id. `options` must outlive the
/// command.
void add_start_options(CLI::App& command, StartOptions& options);

/// What a command without a configuration file has in place of the section `comm`.
struct RankOptions {
  StartOptions start = {};
  LaunchConfig launch = {.backend = "auto", .options = {.log_level = LogLevel::kWarning}};
};

/// Adds --backend, --streams, --interface, --security, and the options of add_start_options().
/// `options` must outlive the command.
void add_rank_options(CLI::App& command, RankOptions& options);
/// Adds --ranks. `options` must outlive the command.
void add_threads_option(CLI::App& command, RankOptions& options);

/// Replaces the backend `auto` as read_comm_config() does, then plan_own_start(). Throws
/// ConfigError.
Start plan_ranks(RankOptions& options);

/// Lets `auto` stand for 0 beside the numbers of a range.
CLI::Validator auto_or(const CLI::Validator& range);

}  // namespace gossamer::apps
