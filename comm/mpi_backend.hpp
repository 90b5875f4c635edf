#pragma once
// Backend `mpi`: the ranks are the processes that mpirun, mpiexec or srun has started. All MPI
// calls after start-up come from the rank's progress worker. See launch.hpp.

#include "comm/launch.hpp"

namespace gossamer {

int launch_mpi(const LaunchOptions& options, const RankBody& body);

}  // namespace gossamer
