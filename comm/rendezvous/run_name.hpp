#pragma once
// The name of an attempt of a run, for launchers that start a run's processes again and keep the
// store: torchrun after a failure, or when nodes come and go. What such a launcher tells each
// process, as the count of its restarts, differs from node to node. So rank 0 makes a new name.
//
// Protocol: each other rank leaves a random word. Rank 0 publishes a table: the new name, and the
// words that it has found. A rank whose own word stands in the table takes the name, and says so. A
// word or a table of an earlier attempt misleads no rank, because the processes of this attempt
// have other words. Rank 0 publishes the table again when a word changes, until all have the name.
//
// Words and tables are signed with the run's secret (comm/rendezvous/meeting.hpp).
//
// Thread safety: the same as the Store's. Errors: CommError, which names the ranks that have not
// come. When the connection with the store ends, a rank begins anew, because the connection may
// have led to the store of an earlier attempt.

#include <string>

#include "comm/options.hpp"
#include "comm/rendezvous/meeting.hpp"

namespace gossamer {

/// Collective. Replaces MeetingOptions::run by the name of this attempt, where it has attempts.
void name_attempt(MeetingOptions& options);

}  // namespace gossamer
