#pragma once
// The session of a rank whose run goes on when others die.
//
// Beside the operations of training, each rank has a mesh (membership::Mesh), by which the members
// agree on the next epoch. Every epoch has a world of its own, which the backend makes
// (EpochWorlds): worker and communicator are made anew, and the objects of the epoch before are
// abandoned. The session's communicator stays the same object.
//
// A rank takes another one for dead when the mesh says so. A failure in the connections of training
// alone begins a new epoch with the same members. If a rank itself loses the same other one three
// times, in worlds that live for less than FaultOptions::silence_s, that one counts as lost. So
// does a rank that keeps the others waiting for longer than the timeout.
//
// A run whose exchanges never end would train without mixing. An epoch has stalled if an operation
// timed out in it and none of its kind and bucket had ended. The ranks count stalled epochs in a
// row with the same members. After the third one, all ranks leave with a CommError.
//
// Processes that ask to join wait until the member that they ask admits them
// (Communicator::admit()). All others must be ready for a change of the members then, too. A
// process that has just joined does not vote on the next epoch, so the others go on without it if
// it does not fit, however few they are. When the ranks have found that it fits, all of them call
// reconfigure() again. From then on it votes.
//
// A rank that ends with an error of its own is lost for the others, and they go on. A rank that
// calls close() while others still train is lost as well: let all ranks meet (barrier()) before
// they close.
//
// Thread safety and errors: as Session.

#include <memory>

#include "comm/elastic/participant.hpp"
#include "comm/options.hpp"
#include "comm/session.hpp"

namespace gossamer {

/// The stay of a rank in the world of one epoch.
class EpochSession : public Session {
 public:
  /// Ends all operations. The others do not take this rank for lost. The communicator stays as long
  /// as this object, and its operations fail.
  virtual void abandon() = 0;
  /// Whether an operation has timed out, and none of its kind and bucket has ended here
  /// (ProgressWorker::has_stalled()).
  [[nodiscard]] virtual bool has_stalled() const = 0;
};

/// The worlds of a run, as one rank enters them.
class EpochWorlds {
 public:
  EpochWorlds() = default;
  EpochWorlds(const EpochWorlds&) = delete;
  EpochWorlds& operator=(const EpochWorlds&) = delete;
  virtual ~EpochWorlds() = default;

  /// Collective of the members of the participant's present epoch: enters its world. Operations
  /// there fail with PeerLost where others fail, and when the participant is disturbed. Throws
  /// PeerLost when the members change meanwhile, or when they cannot exchange.
  virtual std::unique_ptr<EpochSession> enter(membership::Participant& self) = 0;
};

/// How a rank with these options takes part.
membership::Participant::Config participant_config(const LaunchOptions& options);

/// The node size of a world whose size may not be the one that the options were made for.
int renewed_node_size(const LaunchOptions& options, int size);

std::unique_ptr<Session> open_elastic(const LaunchOptions& options,
                                      std::unique_ptr<membership::Participant> participant,
                                      std::unique_ptr<EpochWorlds> worlds);

}  // namespace gossamer
