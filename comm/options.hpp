#pragma once
// The options of the backend that joins the ranks of a run. They say how many ranks there are,
// where the ranks meet, how long they wait for each other, and what follows when a rank dies. Every
// backend takes the same options, and refuses options that it cannot fulfil.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/option.hpp"
#include "comm/cohort.hpp"
#include "comm/store.hpp"

namespace gossamer {

class Communicator;

/// Where and with whom a rank of the backend `tcp` begins.
struct MeetingOptions {
  /// Null: the rank is alone in its world.
  std::shared_ptr<Store> store = {};
  /// The number of ranks in the world.
  int size = 1;
  /// Negative: the ranks are dealt in the order of arrival.
  int rank = -1;
  /// Tells runs apart that use one store, and attempts of one run.
  std::string run = "run";
  /// The name is the same in all attempts of the run, and rank 0 gives each attempt another one
  /// (name_attempt()). All processes know their ranks.
  bool has_attempts = false;
  /// Shared by all ranks. Empty: connections are neither encrypted nor authenticated.
  std::string secret = {};
  /// The host that the store is on: this rank announces the address of the interface that leads
  /// there. Empty: this machine alone, so it announces the loopback address.
  std::string store_host = {};
  /// A network interface or an address of this host (comm.interface), in place of the one that
  /// leads to the store. Empty: none is given.
  std::string interface = {};
  /// The run goes over several hosts without a secret (comm.security: none).
  bool is_open = false;
  /// Data connections between two ranks (comm.streams), at most 64. 0: as many as help.
  int num_streams = 0;
  /// False: messages between ranks of one host go over the network as well.
  bool reads_memory = true;
  /// Seconds to wait for the others.
  double timeout_s = 300.0;
  /// Advice for messages: how to remove the records of an earlier run of this name from the store,
  /// as `remove the file F`. Empty: unknown.
  std::string clean_up = {};
  Logger logger = {};
};

/// Puts a communicator around `inner`, which outlives it. `members` are the members of the world,
/// by their ranks.
using WrapCommunicator = std::function<std::unique_ptr<Communicator>(
    Communicator& inner, const std::vector<std::int64_t>& members)>;

/// The behaviour of a run when ranks die.
struct FaultOptions {
  /// True: the others go on without them (Elastic::reconfigure()). Under MPI they cannot.
  bool survives = false;
  /// How many ranks must be left at least, and more than half of those before.
  std::int64_t min_ranks = 0;
  /// Seconds without a sign of life after which a rank counts as dead.
  double silence_s = 10.0;
  /// True: this process joins a run that goes on (MeetingOptions::run in the store).
  bool joins = false;
  /// A description of the training, as lines. Ranks refuse a process that joins with other lines.
  std::string trains = {};
  /// The ranks with which this one is a member, or none of them. Of the backend tcp.
  Cohort cohort = {};
  /// Where `survives`: makes the communicator that the caller gets in each world, as tests do that
  /// have ranks fail on purpose. Null: the caller gets the backend's own.
  WrapCommunicator wrap = {};
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

/// The keys of a configuration that LaunchOptions come from.
inline constexpr NumberOption kTimeout{
    "timeout_s",
    "seconds to wait for a peer without progress before giving up with exit code 74; any byte of "
    "the exchange is progress with tcp and threads, a whole message of at most 32 MiB with mpi; "
    "with NCCL a whole exchange of a bucket must end in this time (docs/guide/network.md)",
    {.fallback = 300.0, .min = 0.0, .max = 1e9, .above_min = true}};
inline constexpr IntegerOption kLocalSize{"local_size",
                                          "ranks that topologies take as one node",
                                          {.fallback = 0, .min = 0, .max = 1'000'000},
                                          "those of one host"};

}  // namespace gossamer
