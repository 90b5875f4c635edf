#include "apps/commands/command_options.hpp"

#include <fstream>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/tcp/stream_count.hpp"
#include "core/trace/step_timeline.hpp"

namespace gossamer::apps {
namespace {

/// An empty text if `text` names steps, else what is wrong with it.
std::string check_steps(const std::string& text) {
  if (parse_timeline_steps(text)) return "";
  return concat("is ", text, ", allowed: BEGIN:END with 0 <= BEGIN < END, as 10:30");
}

}  // namespace

void add_start_options(CLI::App& command, StartOptions& options) {
  command
      .add_option("--processes", options.num_processes,
                  "Start this many ranks as processes on this machine, without MPI")
      ->check(CLI::Range(1, 4096));
  command
      .add_option(
          "--rendezvous", options.rendezvous,
          "Meet the other ranks without MPI: at an address of one of the hosts, in a folder "
          "that all hosts share, in etcd (etcd:http://host1:2379,http://host2:2379), or as srun's "
          "tasks")
      ->type_name("HOST:PORT|file:FOLDER|etcd:ADDRESSES|slurm");
  command
      .add_option("--world-size", options.world_size,
                  "With --rendezvous: the number of ranks on all hosts together")
      ->check(CLI::Range(1, 1'000'000));
  command
      .add_option("--rank", options.rank,
                  "With --rendezvous: the rank of this process; by default the next that is free")
      ->check(CLI::Range(0, 999'999));
  command
      .add_option("--run-id", options.run_id,
                  "With --rendezvous or --join: tells runs apart that meet in one place")
      ->type_name("NAME");
}

void add_rank_options(CLI::App& command, RankOptions& options) {
  std::vector<std::string> backends = backend_names();
  backends.insert(backends.begin(), "auto");
  command
      .add_option("--backend", options.launch.backend,
                  "auto: mpi under mpirun; tcp with --processes, --rendezvous or torchrun; "
                  "otherwise threads")
      ->check(CLI::IsMember(backends));
  add_start_options(command, options.start);
  MeetingOptions& meeting = options.launch.options.meeting;
  command
      .add_option("--streams", meeting.num_streams,
                  "tcp: connections that share the messages between two ranks; by default as many "
                  "as help")
      ->transform(auto_or(CLI::Range(1, tcp::StreamCount::kMax)));
  command
      .add_option("--interface", meeting.interface,
                  "tcp: the network interface, or the address, of this host at which the others "
                  "reach it")
      ->type_name("NAME");
  command
      .add_option_function<std::string>(
          "--security",
          [&options](const std::string& word) { options.launch.is_secured = word == "secret"; },
          "tcp: secret, or none in a network that you trust; GOSSAMER_SECRET_FILE names the file "
          "with the secret")
      ->check(CLI::IsMember({"secret", "none"}));
}

void add_threads_option(CLI::App& command, RankOptions& options) {
  command.add_option("--ranks", options.launch.options.num_ranks, "Worker threads, without mpirun")
      ->check(CLI::Range(1, 4096));
}

Start plan_ranks(RankOptions& options) {
  options.launch.is_auto = options.launch.backend == "auto";
  if (options.launch.is_auto) options.launch.backend = default_backend();
  return plan_own_start(options.start, options.launch);
}

CLI::Validator auto_or(const CLI::Validator& range) {
  const auto check = [range](std::string& text) {
    if (text != "auto") return range(text);
    text = "0";
    return std::string();
  };
  return {check, "or auto"};
}

SimdPath simd_path_of(const std::string& name) {
  if (name == "auto") return best_simd_path();
  std::vector<std::string> available = {"auto"};
  for (const SimdPath path : available_simd_paths()) {
    if (name == name_of(path)) return path;
    available.emplace_back(name_of(path));
  }
  throw ConfigError(
      "command line", "--simd",
      concat("this processor has no path ", name, ", allowed: ", join(available, ", ")));
}

void add_timeline_options(CLI::App& command, std::string& path, std::string& steps) {
  command
      .add_option("--timeline", path,
                  "Write what all ranks do, and when, into one file for https://ui.perfetto.dev")
      ->type_name("FILE.json");
  command
      .add_option(
          "--timeline-steps", steps,
          "The steps of the timeline: 10:30 leaves 10 steps out, and records until 30 steps "
          "are done. Default 10:30, or fewer in a shorter run")
      ->check(check_steps)
      ->type_name("BEGIN:END");
}

void add_setting(CLI::App& command, std::vector<std::string>& settings, const std::string& option,
                 const std::string& key, const std::string& help,
                 const std::function<std::string(const std::string&)>& to_yaml) {
  command
      .add_option_function<std::string>(
          option,
          [&settings, key, to_yaml](const std::string& value) {
            settings.push_back(concat(key, "=", to_yaml ? to_yaml(value) : value));
          },
          help)
      ->trigger_on_parse();
}

void write_output(std::string_view option, const std::string& path, std::string_view text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) {
    throw ConfigError("command line", option,
                      concat(path, " cannot be written, allowed: a file in a folder that exists"));
  }
}

}  // namespace gossamer::apps
