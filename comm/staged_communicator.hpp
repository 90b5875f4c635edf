#pragma once
// Exchanges blocks of a device over a communicator that can reach host memory only: through staging
// buffers on the host, in pieces, so that copying and sending overlap. For devices without NCCL,
// for several ranks that share one device, and for machines where NCCL finds no way.
//
// A piece is copied to the host when the operation's `ready` is done, sent, and what arrives is
// copied to the device; the operation is over when the last copy is. Blocks on the host are passed
// on as they are.
//
// An MPI that was built for GPUs (Communicator::takes_device_memory()) may be given the device's
// memory itself for messages between two ranks. Sums and broadcasts are staged even then: Open
// MPI's MPI_Iallreduce and MPI_Ibcast read the memory they are given on the host.
//
// Sums and broadcasts of a rank alone stay on the device.
//
// Memory: staging buffers stay with the communicator and are used again; there are as many as were
// needed at once. Thread safety and errors: communicator.hpp.

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace gossamer {

struct StagingOptions {
  /// Of one message.
  std::int64_t piece_bytes = std::int64_t{4} << 20;
  /// `host` takes the device's memory itself for messages between two ranks.
  bool direct_messages = false;
};

/// `host` outlives what is returned; `stream` does the copying. A rank of its own does not
/// communicate with `host` by other ways at the same time.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& host,
                                                       std::shared_ptr<Stream> stream,
                                                       const StagingOptions& options = {});

}  // namespace gossamer
