#pragma once
// The subcommands of the program. Each function adds one subcommand; running it sets the exit code.

#include <CLI/CLI.hpp>

namespace gossamer::apps {

void add_train_command(CLI::App& program, int& exit_code);
void add_bench_command(CLI::App& program, int& exit_code);
void add_replay_command(CLI::App& program, int& exit_code);
void add_plan_command(CLI::App& program, int& exit_code);
/// Adds `bench links`.
void add_bench_links_command(CLI::App& bench, int& exit_code);
void add_simulate_command(CLI::App& program, int& exit_code);
void add_topology_command(CLI::App& program, int& exit_code);
void add_checkpoint_command(CLI::App& program, int& exit_code);
void add_report_command(CLI::App& program, int& exit_code);
void add_watch_command(CLI::App& program, int& exit_code);
void add_list_command(CLI::App& program, int& exit_code);

/// Adds `bench topologies`.
void add_study_command(CLI::App& bench, int& exit_code);

}  // namespace gossamer::apps
