#pragma once
// How a run starts without MPI. plan_start() reads and checks the command line, the environment and
// the configuration. No process and no connection exists yet. The ways to start:
//
//   --processes N                 This process starts N ranks on this machine.
//   --rendezvous HOST:PORT        The ranks meet in a store there.
//   --rendezvous file:FOLDER      The ranks meet in a file of a folder that all hosts share.
//   --rendezvous etcd:ADDRESSES   The ranks meet in etcd (etcd_address.hpp).
//   --join PLACE                  The rank joins the run that has met at one of these three places
//                                 (fault.mode: survive).
//   --rendezvous slurm, or srun   The ranks are the tasks of a step of SLURM.
//   torchrun                      Its variables say where the ranks meet.
//
// Variables of the environment stand for options that are not given: GOSSAMER_RENDEZVOUS,
// GOSSAMER_WORLD_SIZE, GOSSAMER_RANK, GOSSAMER_RUN_ID. The secret comes from comm.secret_file,
// GOSSAMER_SECRET or GOSSAMER_SECRET_FILE.
//
// Thread safe. Errors: ConfigError.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "comm/options.hpp"
#include "comm/rendezvous/meeting.hpp"
#include "comm/start/store_socket.hpp"

namespace gossamer {

/// The `comm` section and the log level. Most of it is needed before any rank runs.
struct LaunchConfig {
  std::string backend = {};
  /// True: the configuration leaves the backend open, and `backend` is the one without a meeting of
  /// ranks (start.hpp).
  bool is_auto = true;
  /// False: the ranks of the backend `tcp` need no secret, and use none (comm.security: none).
  bool is_secured = true;
  LaunchOptions options = {};
  /// False: messages between ranks of one host go over the network as well (comm.shared_memory).
  bool shares_memory = true;
};

/// The options of the command line.
struct StartOptions {
  /// 0: not given, like a world of 0 ranks, a negative rank, and an empty text.
  int num_processes = 0;
  std::string rendezvous = {};
  int world_size = 0;
  int rank = -1;
  std::string run_id = {};
  /// Where a run goes on that this process joins, in the form of `rendezvous`.
  std::string join = {};
  /// The caller has a store of its own; then `world_size` is needed.
  bool has_store = false;
};

/// The value of a variable of the environment; null: it is not set.
using Environment = std::function<const char*(const char* name)>;

/// The kind of store in which ranks meet.
enum class StoreKind {
  /// A table that a process serves (c10d_store.hpp).
  kServed,
  /// A file of a folder that all hosts share.
  kFile,
  kEtcd,
  /// The caller's own.
  kOwn,
};

struct Start {
  /// Positive: this process starts so many ranks and is none itself.
  int num_processes = 0;
  /// True: this process is a rank of the backend `tcp`.
  bool is_rank = false;
  /// True: it joins a run that goes on.
  bool joins = false;
  /// The process that has started this one by --processes; 0: there is none.
  int parent = 0;
  StoreKind store = StoreKind::kServed;
  /// kServed: where.
  StorePlace place = {};
  /// kFile: where.
  std::string folder = {};
  /// kEtcd: the addresses of its members.
  std::vector<std::string> etcd = {};
  /// True: a launcher says that all ranks are on this machine.
  bool is_one_machine = false;
  /// True: the process of the run that can listen at `place` serves the store there. False: another
  /// process does.
  bool may_serve = false;
  /// The options of meeting, all but the store.
  MeetingOptions meeting = {};
  /// True: ranks may die, and others join.
  bool survives = false;

  /// True: there is no rank to meet, now or later.
  [[nodiscard]] bool is_alone() const { return meeting.size == 1 && !survives; }
};

/// How a process starts. Neither `num_processes` nor `is_rank`: by the configuration's backend,
/// as threads or under MPI. `under_mpi`: under_mpi_launcher().
Start plan_start(const StartOptions& options, const LaunchConfig& launch,
                 const Environment& environment, bool under_mpi);

/// Calls plan_start() with the environment of this process. `fault` is the error of the
/// configuration. This call throws it before the processes of a run start, because otherwise each
/// of them would print it. It also takes the place of an error that may follow from it.
Start plan_own_start(const StartOptions& options, const LaunchConfig& launch,
                     const std::optional<ConfigError>& fault = std::nullopt);

/// Reads `HOST:PORT`, or `[ADDRESS]:PORT` for IPv6. A ConfigError for an invalid text names `where`
/// and `key`, and `others` adds the other texts that are allowed there.
StorePlace read_place(const std::string& text, std::string_view where, std::string_view key,
                      std::string_view others = "");

/// Variables of an environment, each a name and a value.
using Variables = std::vector<std::pair<std::string, std::string>>;

/// The variables by which plan_start() knows rank `rank` of the processes that `start` starts.
/// `place` is their store, which the process `parent` serves.
Variables variables_of_rank(const Start& start, int rank, const StorePlace& place, int parent);

/// The range of ports from which a step of SLURM has one.
inline constexpr int kFirstSlurmPort = 20'000;
inline constexpr int kNumSlurmPorts = 10'000;

}  // namespace gossamer
