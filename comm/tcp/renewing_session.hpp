#pragma once
// The session of a rank whose run goes on when others die.
//
// Beside the connections of training, each process has a mesh (membership::Mesh), by which the
// members agree on the next epoch. Every epoch has a world of its own: transport, worker and
// communicator are made anew, and those of the epoch before are closed. The session's communicator
// stays the same object.
//
// A rank takes another one for dead when the mesh says so. A failure in the connections of training
// alone begins a new epoch with the same members. If a rank itself loses the same other one three
// times, in worlds that live for less than FaultOptions::silence_s, that one counts as lost. So
// does a rank that keeps the others waiting for longer than the timeout.
//
// Processes that ask to join wait until a member calls membership() for the first time: then it is
// ready for a change of the members. All others must be ready then, too.
//
// Whoever ends with an error of its own is lost for the others, and they go on. So is whoever calls
// close() while others still train: let all ranks meet (barrier()) before they close.
//
// Thread safety and errors: as Session.

#include <memory>

#include "comm/session.hpp"

namespace gossamer::tcp {

std::unique_ptr<Session> open_renewing(const LaunchOptions& options);

}  // namespace gossamer::tcp
