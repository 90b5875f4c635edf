#include "apps/commands/start_options.hpp"

#include <cstdlib>

namespace gossamer::apps {

void add_start_options(CLI::App& command, StartOptions& options) {
  command
      .add_option("--processes", options.num_processes,
                  "Start this many ranks as processes on this machine, without MPI")
      ->check(CLI::Range(1, 4096));
  command
      .add_option(
          "--rendezvous", options.rendezvous,
          "Meet the other ranks without MPI: at an address of one of the hosts, in a folder "
          "that all hosts share, or as srun's tasks")
      ->type_name("HOST:PORT|file:FOLDER|slurm");
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
                  "With --rendezvous: tells runs apart that meet in one place")
      ->type_name("NAME");
}

const char* variable_of_environment(const char* name) { return std::getenv(name); }

}  // namespace gossamer::apps
