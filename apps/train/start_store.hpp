#pragma once
// Runs a rank that starts without MPI (start.hpp): opens the store in which it meets the others,
// and keeps the store as long as others need it.
//
// Thread safety: as the Store's. Errors: CommError, from all but launch_as().

#include <chrono>

#include "apps/train/start.hpp"

namespace gossamer::apps {

/// launch() for a process that plan_start() has not made the parent of others: on the backend `tcp`
/// if `start` says so, else on that of `config`. Throws what launch() throws on the latter. A rank
/// of `tcp` that cannot meet the others logs why and returns the error's exit code. It does not
/// throw: under srun the program tells of errors by MPI, and MPI connects nobody in such a run.
int launch_as(Start start, const LaunchConfig& config, const RankBody& body);

/// Opens the store of a rank, and puts it into `start.meeting`. Returns true if this process serves
/// it. A world of one rank needs none.
bool open_store(Start& start);

/// Says in the store that `rank` needs the store no more.
void say_met(const MeetingOptions& meeting, int rank);

/// Waits up to `limit` until all ranks have said so. Returns false if some have not.
bool wait_until_all_met(const MeetingOptions& meeting, std::chrono::milliseconds limit);

}  // namespace gossamer::apps
