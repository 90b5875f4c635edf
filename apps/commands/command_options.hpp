#pragma once
// Options that several commands have: how ranks start, the vector path, timelines, settings of a
// configuration, and files to write.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "comm/start/start.hpp"
#include "optim/simd.hpp"

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

/// The vector path that `--simd` names: `auto` or the name of a path. Throws ConfigError for a path
/// that this processor does not have.
SimdPath simd_path_of(const std::string& name);

/// Adds --timeline and --timeline-steps. After parsing, `steps` is empty, or text that
/// parse_timeline_steps() reads. Both must outlive the command.
void add_timeline_options(CLI::App& command, std::string& path, std::string& steps);

/// Adds an option. Its value becomes a setting `key=value`, as apply_override() takes it; `to_yaml`
/// makes YAML of a value that is none. `settings` must live as long as the command.
void add_setting(CLI::App& command, std::vector<std::string>& settings, const std::string& option,
                 const std::string& key, const std::string& help,
                 const std::function<std::string(const std::string&)>& to_yaml = {});

/// Writes `text` into the file that `option`, as `--output`, names. Throws ConfigError if it cannot
/// be written.
void write_output(std::string_view option, const std::string& path, std::string_view text);

}  // namespace gossamer::apps
