#pragma once
// Backend `mpi`: the ranks are the processes that mpirun, mpiexec or srun has started. All MPI
// calls after start-up come from the rank's progress worker. See backends.hpp.

#include "comm/options.hpp"
#include "comm/session.hpp"

namespace gossamer {

Sessions open_mpi(const LaunchOptions& options);

}  // namespace gossamer
