#pragma once
// Ranks as processes that are joined by TCP. Needs no MPI: the processes find one another in a
// Store (comm/meeting.hpp).

#include <memory>

#include "base/log.hpp"
#include "comm/session.hpp"
#include "comm/tcp/world.hpp"

namespace gossamer {

/// Enters the world that LaunchOptions::meeting says. Throws CommError, and ConfigError for an
/// address that this host does not have, and for a world on several hosts without a secret.
Sessions open_tcp(const LaunchOptions& options);

namespace tcp {

/// The stay of a rank in the world of ranks that have found their places.
class TcpWorld : public Session {
 public:
  /// Ends all operations and connections. The others do not take this rank for lost. The
  /// communicator stays as long as this object, and its operations fail.
  virtual void desert() = 0;
};

/// Enters a world. Connects this rank with others, so that news reaches all. Throws CommError.
std::unique_ptr<TcpWorld> enter(Place place, const World& world, const LaunchOptions& options,
                                Logger logger);

}  // namespace tcp
}  // namespace gossamer
