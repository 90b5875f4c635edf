#pragma once
// The subcommands of the program. Each function adds one subcommand; running it sets the exit code.
// `own`: rows of a user's own program, which names may mean everywhere; it must outlive the run.

#include <CLI/CLI.hpp>

#include "core/algorithms/plug_ins.hpp"

namespace gossamer::apps {

void add_train_command(CLI::App& program, int& exit_code, const PlugIns& own);
void add_bench_command(CLI::App& program, int& exit_code, const PlugIns& own);
void add_replay_command(CLI::App& program, int& exit_code);
void add_plan_command(CLI::App& program, int& exit_code, const PlugIns& own);
/// Adds `bench compute`.
void add_bench_compute_command(CLI::App& bench, int& exit_code, const PlugIns& own);
/// Adds `bench links`.
void add_bench_links_command(CLI::App& bench, int& exit_code);
void add_simulate_command(CLI::App& program, int& exit_code, const PlugIns& own);
void add_topology_command(CLI::App& program, int& exit_code, const PlugIns& own);
void add_checkpoint_command(CLI::App& program, int& exit_code);
void add_report_command(CLI::App& program, int& exit_code, const PlugIns& own);
void add_watch_command(CLI::App& program, int& exit_code);
void add_list_command(CLI::App& program, int& exit_code, const PlugIns& own);
/// Their exit codes are 0 unless they throw.
void add_rendezvous_command(CLI::App& program);
void add_secret_command(CLI::App& program);

/// Adds `bench topologies`.
void add_study_command(CLI::App& bench, int& exit_code, const PlugIns& own);

}  // namespace gossamer::apps
