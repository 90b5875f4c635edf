#include "comm/launch.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "comm/thread_backend.hpp"
#ifdef GOSSAMER_HAVE_MPI
#include "comm/mpi_backend.hpp"
#endif

namespace gossamer {
namespace {

constexpr std::array kOptions = {
    OptionEntry{"timeout_s",
                "seconds to wait for a peer before giving up; a number > 0 and <= 1e+09, default "
                "300"},
    OptionEntry{"local_size",
                "ranks that count as one node; an integer from 0 to 1000000, default 0: as they "
                "really are"},
};

constexpr std::array kTable = {
    BackendEntry{"threads", "ranks are threads of this process", kOptions, launch_threads},
#ifdef GOSSAMER_HAVE_MPI
    BackendEntry{"mpi", "ranks are processes started by mpirun, mpiexec or srun", kOptions,
                 launch_mpi},
#endif
};

// Where launchers write the rank: Open MPI, MPICH and Intel MPI, SLURM's srun.
constexpr std::array kRankVariables = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};

}  // namespace

std::span<const BackendEntry> backend_table() { return kTable; }

std::vector<std::string> backend_names() { return names_of(kTable); }

bool under_mpi_launcher() {
  return std::ranges::any_of(kRankVariables,
                             [](const char* name) { return std::getenv(name) != nullptr; });
}

std::string_view default_backend() { return under_mpi_launcher() ? "mpi" : "threads"; }

int launch(std::string_view backend, const LaunchOptions& options, const RankBody& body) {
  return row_of(kTable, "backend in this program called", backend).launch(options, body);
}

World world_of(int rank, int size, int node_size) {
  return {rank, size, node_size, {.local_rank = rank, .local_world_size = size}};
}

}  // namespace gossamer
