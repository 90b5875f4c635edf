#pragma once
// Exchanges blocks of a device in a run whose ranks may be lost: makes the device's communicator
// anew for every world.
//
// Protocol: connect() makes the device communicator of a world (NCCL's, or the communicator with
// staging buffers). The first split() does so too, and so does the first operation on the device's
// memory that all members share. All members make these calls in the same order, also members that
// join. Blocks on the host and texts take the communicator for host memory, and need no device
// communicator. reconfigure() first gives up the device communicator, which aborts the operations
// under way. Then the host communicator begins its next world.
//
// Failures: a start that has failed fails check(), and all that needs the device's communicator,
// until reconfigure(). Where that communicator fails and all ranks live, reconfigure() begins a
// world with the same members. After three such failures in a row, of communicators that were not
// sound for long, `make` hears why.
//
// A newcomer whose device does not fit must not end the run of the others. A rank that joins always
// gets the highest rank. So if `make` throws a ConfigError in any world but the first of the run,
// the highest rank leaves with that error, and the other ranks go on without it.
//
// Thread safety and errors: communicator.hpp.

#include <functional>
#include <memory>
#include <string>

#include "comm/communicator.hpp"

namespace gossamer {

/// Collective. Makes the device's communicator of the present world of `host`, over `host`.
/// `flaw`: why this rank's communicators failed, if they did three times in a row; else empty.
/// Throws ConfigError, with the same text on all ranks, where the ranks' devices do not fit
/// together.
using MakeTransport =
    std::function<std::unique_ptr<Communicator>(Communicator& host, const std::string& flaw)>;

/// If all ranks of `host` begin and end together, returns the result of `make` at once. If `host`
/// is elastic, returns a communicator that calls `make` anew for every world, and communicates
/// nothing yet. `host` must outlive the communicator. `stream` is the stream of the communicators
/// that `make` returns. A device communicator that has lived for `sound_life_s` seconds was sound,
/// even if it fails then; the number must be longer than an operation may take.
std::unique_ptr<Communicator> make_transport(Communicator& host, std::shared_ptr<Stream> stream,
                                             MakeTransport make, double sound_life_s = 60.0);

}  // namespace gossamer
