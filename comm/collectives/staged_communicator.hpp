#pragma once
// Exchanges blocks of a device over a communicator that reaches host memory only. Blocks travel
// through staging buffers on the host, in pieces, so that copying and sending overlap. For devices
// without NCCL, for several ranks that share one device, and for machines where NCCL finds no way.
//
// When the operation's `ready` is done, each piece is copied to the host and sent, and each
// received piece is copied to the device. The operation is over after the last copy. Blocks on the
// host go to the inner communicator without a copy.
//
// An MPI built for GPUs (Communicator::takes_device_memory()) may be given the device's memory
// itself for messages between two ranks. Sums and broadcasts are staged even then: Open MPI's
// MPI_Iallreduce and MPI_Ibcast read the memory they are given on the host.
//
// Sums and broadcasts of a rank alone stay on the device.
//
// Memory: the communicator keeps its staging buffers and uses them again, as many as were ever
// needed or reserved at the same time. Thread safety and errors: communicator.hpp.

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace gossamer {

struct StagingOptions {
  /// Size of one message.
  std::int64_t piece_bytes = std::int64_t{4} << 20;
  /// Messages between two ranks skip the staging: `host` takes the device's memory itself.
  bool direct_messages = false;
};

/// `host` outlives the communicator; `stream` does the copying. Meanwhile the rank does not use
/// `host` in any other way.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& host,
                                                       std::shared_ptr<Stream> stream,
                                                       const StagingOptions& options = {});

}  // namespace gossamer
