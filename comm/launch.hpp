#pragma once
// Starts the ranks of a run on a backend: as threads of this process, or as processes that a
// launcher (mpirun, mpiexec, srun, torchrun) or the user has already started.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/option.hpp"
#include "base/registry.hpp"
#include "comm/communicator.hpp"
#include "comm/meeting.hpp"

namespace gossamer {

class FaultInjector;

/// What becomes of a run when ranks die.
struct FaultOptions {
  /// True: the others go on without them (Communicator::renew()). Under MPI they cannot.
  bool survives = false;
  /// How many ranks must be left at least, and more than half of those before.
  std::int64_t min_ranks = 0;
  /// Seconds without a sign of life after which a rank counts as dead.
  double silence_s = 10.0;
  /// True: this process joins a run that goes on (MeetingOptions::run in the store).
  bool joins = false;
  /// What the run trains, as lines. Ranks refuse a process that joins with other lines.
  std::string trains = {};
  /// Faults on purpose, where `survives` (fault_injector.hpp). Null: none.
  std::shared_ptr<FaultInjector> injector = {};
};

struct LaunchOptions {
  /// Worker threads to start. 0: one thread, or under MPI the processes that the launcher started.
  /// Under MPI any other number must be the number of these processes.
  int num_ranks = 0;
  /// Consecutive ranks that topologies take as one node (comm.local_size); must divide the number
  /// of ranks. 0: the ranks of one host, where all hosts have equally many, else 1.
  int node_size = 0;
  /// Seconds that an operation may wait for its peers without progress (ProgressWorker).
  double timeout_s = 300.0;
  /// Under MPI, blocks of this many bytes or more are summed round a ring of messages, and smaller
  /// ones by MPI. Negative: see least_ring_bytes() in placement.hpp. Must be equal on all ranks.
  std::int64_t least_ring_bytes = -1;
  /// How the ranks of the backend `tcp` meet.
  MeetingOptions meeting = {};
  FaultOptions fault = {};
  LogLevel log_level = LogLevel::kInfo;
  /// Called about ten times a second on a thread that waits for an operation or for the worker. It
  /// may throw: that ends the wait, and the operation goes on. Null: nothing is called.
  std::function<void()> while_waiting = {};
};

/// The work of one rank. Returns the rank's exit code.
using RankBody = std::function<int(Communicator& communicator, const World& world)>;

/// The keys of a configuration that LaunchOptions come from.
inline constexpr NumberOption kTimeout{
    "timeout_s",
    "seconds to wait for a peer before giving up",
    {.fallback = 300.0, .min = 0.0, .max = 1e9, .above_min = true}};
inline constexpr IntegerOption kLocalSize{"local_size",
                                          "ranks that count as one node",
                                          {.fallback = 0, .min = 0, .max = 1'000'000},
                                          "as they really are"};

class Session;

struct BackendEntry {
  std::string_view name;
  std::string_view summary;
  /// The keys of a configuration that LaunchOptions come from.
  std::span<const OptionEntry> options;
  /// The sessions of this process (session.hpp). Does not check that the world is as the options
  /// say, unless it cannot be made otherwise.
  std::vector<std::unique_ptr<Session>> (*open)(const LaunchOptions& options);
};

std::span<const BackendEntry> backend_table();
std::vector<std::string> backend_names();

/// Whether mpirun, mpiexec or srun started this process.
bool under_mpi_launcher();
/// `mpi` under such a launcher, otherwise `threads`.
std::string_view default_backend();

/// Why a world of `num_processes` processes is not all that a launcher has started: its processes
/// do not know of one another, and each would be a world of its own. Empty if the world is whole,
/// or if no launcher says how many processes it has started.
std::string why_not_whole(int num_processes);

/// Runs `body` on every rank, in a session of its own. Returns the exit code of the run: the code
/// of the first rank that failed, else the first code that is not 0. Where ranks may be lost
/// (FaultOptions::survives), it is 0 if one of this process comes to its end. A body that throws
/// aborts its session. For a world that open_sessions() would refuse, rank 0 logs why, and all
/// ranks return the code of a ConfigError. Throws ConfigError for an unknown backend, and
/// std::runtime_error when the system gives no thread.
int launch(std::string_view backend, const LaunchOptions& options, const RankBody& body);

/// The World of `rank` where all ranks share one host, as threads do. `node_size` divides `size`.
World world_of(int rank, int size, int node_size);

}  // namespace gossamer
