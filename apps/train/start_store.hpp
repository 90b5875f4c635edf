#pragma once
// Runs a rank that starts without MPI (comm/start/start.hpp). The rank opens the store in which it
// meets the others, and keeps the store as long as others need it (comm/start/store_use.hpp).
//
// Thread safety: as the Store's.

#include "comm/backends.hpp"
#include "comm/start/start.hpp"

namespace gossamer::apps {

/// Runs `body` on this process's rank by launch(), and returns the exit code. The backend is `tcp`
/// if `start` names a rank, otherwise the backend of `config`. The process must not be the parent
/// of other ranks (plan_start()). On `tcp`, a rank that cannot meet the others logs why, and
/// returns the error's exit code. Under srun MPI connects no ranks to which the rank could tell the
/// error. Otherwise throws what launch() throws.
int launch_as(Start start, const LaunchConfig& config, const RankBody& body);

/// Opens the store of a rank, and puts it into `start.meeting`. Returns true if this process serves
/// it. A world of one rank needs none. Throws CommError.
bool open_store(Start& start);

}  // namespace gossamer::apps
