#pragma once
// The store of a rank that starts without MPI: where the store is, and how long other ranks need
// this process for it. This file itself opens only etcd. For a place and for a folder the program
// takes LibTorch's stores (core/torch/c10d_store.hpp), and Python takes PyTorch's.
//
// Protocol: complete() before another store is opened, and then the meeting
// (comm/rendezvous/meeting.hpp). A rank whose world exists calls end_meeting(). One that has not
// met the others and serves the store calls wait_until_all_met() before it ends.
//
// Thread safety: as the Store's. Errors: ConfigError from complete(). The other functions
// ignore a CommError of the store, because a rank that has met the others can train.

#include <chrono>
#include <functional>
#include <string>

#include "comm/options.hpp"
#include "comm/start/start.hpp"

namespace gossamer {

/// A time limit for ranks that are slow, not for ranks that are lost.
inline constexpr std::chrono::seconds kFarewell{10};

/// Adds what depends on this machine: the address that the rank announces, and the store if that is
/// etcd. Waits until the name of the store's host can be resolved. `while_waiting` has the meaning
/// that it has in open_etcd_store().
void complete(Start& start, const std::function<void()>& while_waiting = {});

/// The file that is the store of a start with a folder.
std::string store_file(const Start& start);

/// Removes what the run has in a file or in etcd.
void remove_store(const Start& start);

/// Says in the store that `rank` needs the store no more, unless the store is gone.
void say_met(const MeetingOptions& meeting, int rank);

/// Waits up to `limit` until all ranks have said so. Returns false if some have not, or if the
/// store is gone.
bool wait_until_all_met(const MeetingOptions& meeting, std::chrono::milliseconds limit);

/// Says that `rank` has met all others. The process that serves the store (`serves`) waits for them
/// to say so too, and rank 0 calls remove_store().
void end_meeting(const Start& start, int rank, bool serves);

}  // namespace gossamer
