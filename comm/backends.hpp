#pragma once
// The table of the backends, which alone sees all of them. It starts the ranks of a run: as threads
// of this process, or as processes that a launcher (mpirun, mpiexec, srun, torchrun) or the user
// has already started.

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/option.hpp"
#include "base/registry.hpp"
#include "comm/communicator.hpp"
#include "comm/options.hpp"
#include "comm/session.hpp"

namespace gossamer {

/// The work of one rank. Returns the rank's exit code.
using RankBody = std::function<int(Communicator& communicator, const World& world)>;

struct BackendEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys of a configuration that LaunchOptions come from.
  std::span<const OptionEntry> options;
  /// The sessions of this process (session.hpp). Does not check that the world is as the options
  /// say, unless it cannot be made otherwise.
  Sessions (*open)(const LaunchOptions& options);
};

std::span<const BackendEntry> backend_table();
std::vector<std::string> backend_names();

/// Whether mpirun, mpiexec or srun started this process.
bool under_mpi_launcher();
/// `mpi` under such a launcher, otherwise `threads`.
std::string_view default_backend();

/// Says why a world of `num_processes` processes is not all that a launcher has started. The
/// launcher's processes do not know of one another then, and each would be a world of its own.
/// Empty if the world is whole, or if no launcher says how many processes it has started.
std::string why_not_whole(int num_processes);

/// Enters a world. Where ranks are processes, all of them call it. Throws ConfigError, on all
/// ranks, for an unknown backend and for a world that is not as the options and the launcher say
/// (why_not_whole()). Throws CommError if the ranks cannot meet, and std::runtime_error when the
/// system gives no thread.
Sessions open_sessions(std::string_view backend, const LaunchOptions& options);

/// Runs `body` on every rank, in a session of its own. Returns the exit code of the run: the code
/// of the first rank that failed, else the first code that is not 0. Where ranks may be lost
/// (FaultOptions::survives), it is 0 if one of this process comes to its end. A body that throws
/// aborts its session. For a world that open_sessions() would refuse, rank 0 logs why, and all
/// ranks return the code of a ConfigError. Throws ConfigError for an unknown backend, and
/// std::runtime_error when the system gives no thread.
int launch(std::string_view backend, const LaunchOptions& options, const RankBody& body);

}  // namespace gossamer
