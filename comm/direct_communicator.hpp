#pragma once
// Exchanges of a device's memory by a communicator that reaches it itself: MPI that was built for
// GPUs (Communicator::reaches_gpus()). Messages between two ranks go straight from and to the
// device's memory, when the events that they name are done. Sums and broadcasts are staged: Open
// MPI's MPI_Iallreduce and MPI_Ibcast read the memory they are given on the host, also where it was
// built for GPUs.

#include <memory>

#include "gossamer/comm/communicator.hpp"

namespace gossamer {

/// `host` and `stream` outlive it. `stream`: where work between operations goes, on the device
/// whose memory is exchanged.
std::unique_ptr<Communicator> make_direct_communicator(Communicator& host, Stream& stream);

}  // namespace gossamer
