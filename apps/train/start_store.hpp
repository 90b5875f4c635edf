#pragma once
// Runs a rank that starts without MPI (comm/start/start.hpp): opens the store in which it meets the
// others, and keeps the store as long as others need it (comm/start/store_use.hpp).
//
// Thread safety: as the Store's.

#include "comm/start/start.hpp"

namespace gossamer::apps {

/// launch() for a process that plan_start() has not made the parent of others: on the backend `tcp`
/// if `start` says so, else on that of `config`. Throws what launch() throws on the latter. A rank
/// of `tcp` that cannot meet the others logs why and returns the error's exit code. It does not
/// throw: under srun the program tells of errors by MPI, and MPI connects nobody in such a run.
int launch_as(Start start, const LaunchConfig& config, const RankBody& body);

/// Opens the store of a rank, and puts it into `start.meeting`. Returns true if this process serves
/// it. A world of one rank needs none. Throws CommError.
bool open_store(Start& start);

}  // namespace gossamer::apps
