#pragma once
// Exchanges of a device's memory by a communicator that reaches it itself: MPI that was built for
// GPUs (Communicator::reaches_gpus()). Nothing is staged; operations start when the events that
// they name are done.

#include <memory>

#include "gossamer/comm/communicator.hpp"

namespace gossamer {

/// `host` and `stream` outlive it. `stream`: where work between operations goes, on the device
/// whose memory is exchanged.
std::unique_ptr<Communicator> make_direct_communicator(Communicator& host, Stream& stream);

}  // namespace gossamer
