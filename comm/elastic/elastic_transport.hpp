#pragma once
// Exchanges blocks of a device in a run whose ranks may be lost: makes the device's communicator
// anew for every world.
//
// Protocol: connect() makes the communicator of a world (NCCL's, or the one with staging buffers).
// So does the first split(), and the first operation on the device's memory, if it is one of all
// members. All members come there in the same order, also members that join. Blocks on the host
// and texts take the communicator for host memory, and need nothing else. reconfigure() gives the
// device's communicator up, which aborts what is under way, before the host's begins its next
// world.
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

/// What `make` returns, at once, if all ranks of `host` begin and end together. If `host` is
/// elastic: a communicator that makes it anew for every world, and communicates nothing yet. `host`
/// outlives the communicator. `stream`: that of the communicators that `make` returns.
/// `sound_life_s`: one that has lived for so many seconds was sound, also if it fails then; longer
/// than an operation may take.
std::unique_ptr<Communicator> make_transport(Communicator& host, std::shared_ptr<Stream> stream,
                                             MakeTransport make, double sound_life_s = 60.0);

}  // namespace gossamer
