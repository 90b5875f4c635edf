#pragma once
// Exchanges blocks of GPUs with NCCL.
//
// All operations of a rank go to one stream, in the order in which they are submitted, and wait
// there for what they need: no host waits in a step. A request is over when the event behind its
// operation has happened; a stream that waits for it waits for that event. Pairs and neighbours use
// grouped sends and receives on the communicator they are called on, groups an all-reduce on one
// that split() has made. Blocks on the host go by a communicator for host memory, which also brings
// the ranks together at the start.
//
// Failures: a watchdog asks NCCL for errors, the host's communicator for ranks that have failed
// (NCCL does not notice one that has left in good order), and how long the oldest operation has
// been at it. When
// one fails or takes longer than the timeout, all NCCL communicators of the rank are aborted, so
// that whoever waits goes on, and every later call and wait throws the same CommError, with rank,
// peers, bucket and round.
//
// Thread safety: communicator.hpp; the watchdog is a thread of its own.

#include <memory>

#include "comm/communicator.hpp"
#include "comm/nccl_api.hpp"

namespace gossamer {

struct NcclOptions {
  /// Seconds that an operation, or the start, may take.
  double timeout_s = 300.0;
};

/// Collective among the members of `host`. `api` and `host` outlive what is returned and its
/// Requests; `stream` belongs to it alone, and its device becomes the calling thread's own. Throws
/// CommError.
std::unique_ptr<Communicator> make_nccl_communicator(NcclApi& api, Communicator& host,
                                                     std::shared_ptr<Stream> stream,
                                                     const NcclOptions& options = {});

}  // namespace gossamer
