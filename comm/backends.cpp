#include "comm/backends.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "base/thread.hpp"
#include "comm/tcp/backend.hpp"
#include "comm/threads/backend.hpp"
#ifdef GOSSAMER_HAVE_MPI
#include "comm/mpi/backend.hpp"
#endif

namespace gossamer {
namespace {

constexpr std::array kOptions = option_list(kTimeout, kLocalSize);

constexpr std::array kTable = {
    BackendEntry{"threads", "ranks are threads of this process", kOptions, open_threads},
    BackendEntry{"tcp", "ranks are processes joined by TCP, without MPI", kOptions, open_tcp},
#ifdef GOSSAMER_HAVE_MPI
    BackendEntry{"mpi", "ranks are processes started by mpirun, mpiexec or srun", kOptions,
                 open_mpi},
#endif
};

// Where launchers write the rank: Open MPI, MPICH and Intel MPI, SLURM's srun.
constexpr std::array kRankVariables = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};

/// Where a launcher writes how many processes it has started. `sign` is set if it has started any.
struct CountVariable {
  const char* sign;
  const char* count;
};
// One launcher may start another, which may pass the variables of the first one on: mpirun, mpiexec
// and torchrun run in steps of srun. The first row whose sign is set is the nearest launcher.
// People set WORLD_SIZE for their own use, too; a launcher sets RANK beside it.
constexpr std::array kCountVariables = {
    CountVariable{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"},
    CountVariable{"PMI_SIZE", "PMI_SIZE"},
    CountVariable{"RANK", "WORLD_SIZE"},
    CountVariable{"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS"},
};

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The variable with the number of processes that the nearest launcher has started; null: none.
const char* count_variable() {
  for (const CountVariable& row : kCountVariables) {
    if (std::getenv(row.sign) == nullptr) continue;
    if (row.count != std::string_view("SLURM_STEP_NUM_TASKS")) return row.count;
    // In the shell of srun --pty there is the first task alone. A launcher with PMIx that is not
    // srun may run in a step; it does not write a number.
    const std::string_view job = environment("PMIX_NAMESPACE");
    const bool is_task = std::getenv("SLURM_PTY_PORT") == nullptr;
    return is_task && (job.empty() || job.starts_with("slurm.")) ? row.count : nullptr;
  }
  return nullptr;
}

const BackendEntry& find_backend(std::string_view name) {
  return row_of(kTable, "backend in this program called", name);
}

/// Why the world of these sessions is not as wanted; empty: it is.
std::string why_not(const LaunchOptions& options, const Sessions& sessions) {
  const int size = sessions.front()->world().size;
  // Some may have died already, and others go on.
  if (sessions.front()->communicator().is_elastic()) return "";
  if (options.fault.wrap) {
    return "FaultOptions::wrap is for runs that go on without ranks, allowed: the backends threads "
           "and tcp with FaultOptions::survives";
  }
  if (options.num_ranks > 0 && options.num_ranks != size) {
    return concat("--ranks ", options.num_ranks, ": ", size,
                  " processes were started; leave --ranks out under a launcher");
  }
  if (options.node_size > 0 && size % options.node_size != 0) {
    return concat("comm.local_size: ", options.node_size, " does not divide the ", size,
                  " ranks, allowed: a divisor of the number of ranks");
  }
  return why_not_whole(size / static_cast<int>(sessions.size()));
}

/// Ranks that come to the same conclusion leave together.
void close_all(const Sessions& sessions) {
  for (const auto& session : sessions) session->close();
}

struct End {
  int code = 0;
  /// No other rank had failed before.
  bool has_failed_first = false;
};

End stay(Session& session, const RankBody& body) {
  const auto fail = [&session](ExitCode code, std::string_view reason) {
    return End{static_cast<int>(code), session.abort(code, reason)};
  };
  try {
    const int code = body(session.communicator(), session.world());
    session.close();
    return {.code = code};
  } catch (const std::exception& error) {
    return fail(exit_code_of(error), error.what());
  } catch (...) {
    return fail(ExitCode::kInternal, "an unknown error");
  }
}

int run(Sessions sessions, const RankBody& body) {
  const bool survives = sessions.front()->communicator().is_elastic();
  std::vector<End> ends(sessions.size());
  // A rank's session goes on the rank's thread.
  const auto run_one = [&](std::size_t place) {
    const std::unique_ptr<Session> session = std::move(sessions[place]);
    ends[place] = stay(*session, body);
  };
  if (sessions.size() == 1) {
    run_one(0);
  } else {
    // No rank begins unless all can.
    std::latch decided(1);
    bool begins = false;
    std::vector<std::jthread> threads;
    try {
      for (std::size_t place = 0; place < sessions.size(); ++place) {
        threads.push_back(start_thread<std::jthread>([&, place] {
          decided.wait();
          if (begins) run_one(place);
        }));
      }
    } catch (...) {
      decided.count_down();
      throw;
    }
    begins = true;
    decided.count_down();
  }
  // The ranks that are left do the work of all.
  if (survives && std::ranges::find(ends, 0, &End::code) != ends.end()) return 0;
  const auto failed = std::ranges::find_if(ends, &End::has_failed_first);
  if (failed != ends.end()) return failed->code;
  const auto other = std::ranges::find_if(ends, [](const End& end) { return end.code != 0; });
  return other == ends.end() ? 0 : other->code;
}

}  // namespace

std::span<const BackendEntry> backend_table() { return kTable; }

std::vector<std::string> backend_names() { return names_of(kTable); }

bool under_mpi_launcher() {
  return std::ranges::any_of(kRankVariables,
                             [](const char* name) { return std::getenv(name) != nullptr; });
}

std::string_view default_backend() { return under_mpi_launcher() ? "mpi" : "threads"; }

std::string why_not_whole(int num_processes) {
  const char* const variable = count_variable();
  if (variable == nullptr || environment(variable).empty()) return "";
  int started = 0;
  if (!parse_whole(environment(variable), started)) {
    return concat(variable, " is ", environment(variable),
                  ", where a launcher writes how many processes it has started; unset it if no "
                  "launcher has set it");
  }
  if (started <= num_processes) return "";
  return concat(
      variable, " says that ", started, " processes were started, and this world has ",
      num_processes,
      ": the processes do not know of one another, and each would run alone. Under SLURM, "
      "start them with srun --mpi=pmix (srun --mpi=list names what there is); elsewhere, "
      "with the mpirun or mpiexec of the MPI that this program was built with. Without MPI, "
      "gossamer train connects them with --rendezvous (docs/guide/starting.md), and Python with "
      "initialize_dist(\"tcp\")");
}

Sessions open_sessions(std::string_view backend, const LaunchOptions& options) {
  Sessions sessions = find_backend(backend).open(options);
  const std::string why = why_not(options, sessions);
  if (why.empty()) return sessions;
  close_all(sessions);
  throw ConfigError(why);
}

int launch(std::string_view backend, const LaunchOptions& options, const RankBody& body) {
  Sessions sessions = find_backend(backend).open(options);
  const std::string why = why_not(options, sessions);
  if (why.empty()) return run(std::move(sessions), body);
  // Before any rank leaves: a launcher ends the job when the first process returns a code.
  if (sessions.front()->world().rank == 0) Logger(LogLevel::kError, "").error(why);
  close_all(sessions);
  return static_cast<int>(ExitCode::kConfig);
}

}  // namespace gossamer
