#pragma once
// Starts the ranks of a run on a backend: as threads of this process, or as the processes that
// mpirun or SLURM has already started.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/registry.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

struct LaunchOptions {
  /// Worker threads to start. 0: one for the threads backend, what was launched for MPI. Any other
  /// number must match the world of a backend that does not start its own ranks.
  int num_ranks = 0;
  /// Ranks that count as one node; 0: as they really are. Must divide the number of ranks.
  int node_size = 0;
  /// Seconds that an operation may wait for its peers.
  double timeout_s = 300.0;
  LogLevel log_level = LogLevel::kInfo;
};

/// What a rank does. Returns its exit code.
using RankBody = std::function<int(Communicator& communicator, const World& world)>;

struct BackendEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys of a configuration that LaunchOptions come from.
  std::span<const OptionEntry> options;
  int (*launch)(const LaunchOptions& options, const RankBody& body);
};

std::span<const BackendEntry> backend_table();
std::vector<std::string> backend_names();

/// This process was started by mpirun, mpiexec or srun, perhaps as one of several.
bool under_mpi_launcher();
/// `mpi` under such a launcher, otherwise `threads`.
std::string_view default_backend();

/// Runs `body` on every rank and returns the exit code of the run: that of the first rank that
/// failed, else the first that is not 0. When a body throws, the error is logged and no other rank
/// is left waiting: under threads their operations fail, under MPI the job is aborted with the exit
/// code. Throws ConfigError for an unknown backend or impossible options.
int launch(std::string_view backend, const LaunchOptions& options, const RankBody& body);

/// World of `rank` for a node size that divides the world size.
World world_of(int rank, int size, int node_size);

}  // namespace gossamer
