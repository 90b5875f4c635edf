#pragma once
// Exchanges blocks of GPUs with NCCL.
//
// All operations of a rank go to one stream, in the order submitted, and wait there for the events
// that they need. In a step the host waits only where an operation follows an operation of another
// communicator. A request is over at the event behind its operation. A stream that waits for the
// request waits for that event. Pairs and neighbours use grouped sends and receives on their own
// communicator; a group uses an all-reduce on a communicator from split(). Blocks on the host go
// through a communicator for host memory, which also brings the ranks together at the start and at
// the end.
//
// Where the run goes on without ranks that die (`host` is elastic), a wait for a request blocks the
// host, not the device's stream. The content of blocks of an aborted operation is unknown, so
// nothing may be computed from it. The errors are PeerLost. The communicator serves one world:
// elastic_transport.hpp makes a communicator for each world.
//
// The end: close() finalizes and destroys all NCCL communicators of the rank. A rank that leaves
// without close(), as after an error, aborts them; so does the end of the communicator that
// make_nccl_communicator() has made.
//
// Failures: a watchdog thread asks NCCL for errors. It also asks the host's communicator for failed
// ranks, because NCCL does not notice a rank that has left in good order. And it measures how long
// the oldest operation has taken. When an operation fails or exceeds the timeout, the watchdog
// aborts all NCCL communicators of the rank, so that no thread goes on waiting. Every later call
// and wait throws the same CommError, with rank, peers, bucket and round.
//
// Thread safety: communicator.hpp; the watchdog is a thread of its own.

#include <memory>

#include "comm/communicator.hpp"
#include "comm/nccl/api.hpp"

namespace gossamer {

struct NcclOptions {
  /// Seconds that an operation, or the start, may take.
  double timeout_s = 300.0;
};

/// Collective among the members of `host`. `api` and `host` outlive the communicator and its
/// Requests. Only the communicator uses `stream`; the stream's device becomes the calling thread's
/// current device. Throws CommError.
std::unique_ptr<Communicator> make_nccl_communicator(NcclApi& api, Communicator& host,
                                                     std::shared_ptr<Stream> stream,
                                                     const NcclOptions& options = {});

}  // namespace gossamer
