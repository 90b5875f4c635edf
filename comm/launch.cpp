#include "comm/launch.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/text.hpp"
#include "comm/thread_backend.hpp"
#ifdef GOSSAMER_HAVE_MPI
#include "comm/mpi_backend.hpp"
#endif

namespace gossamer {
namespace {

constexpr std::array kOptions = option_list(kTimeout, kLocalSize);

constexpr std::array kTable = {
    BackendEntry{"threads", "ranks are threads of this process", kOptions, launch_threads},
#ifdef GOSSAMER_HAVE_MPI
    BackendEntry{"mpi", "ranks are processes started by mpirun, mpiexec or srun", kOptions,
                 launch_mpi},
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
      "with the mpirun or mpiexec of the MPI that this program was built with");
}

int launch(std::string_view backend, const LaunchOptions& options, const RankBody& body) {
  return row_of(kTable, "backend in this program called", backend).launch(options, body);
}

World world_of(int rank, int size, int node_size) {
  return {rank, size, node_size, {.local_rank = rank, .local_world_size = size}};
}

}  // namespace gossamer
