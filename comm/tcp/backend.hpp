#pragma once
// Ranks as processes that are joined by TCP. Needs no MPI: the processes find one another in a
// Store (comm/rendezvous/meeting.hpp).

#include <memory>

#include "base/log.hpp"
#include "comm/elastic/elastic_session.hpp"
#include "comm/options.hpp"
#include "comm/session.hpp"
#include "comm/tcp/world.hpp"

namespace gossamer {

/// Enters the world that LaunchOptions::meeting says. Throws CommError, and ConfigError for an
/// address that this host does not have, and for a world on several hosts without a secret.
Sessions open_tcp(const LaunchOptions& options);

namespace tcp {

/// Raises the limit on open files. Throws CommError where this process may then still open fewer
/// files and connections than a rank of such a run needs. `num_for_each`: connections with each
/// other rank beside the connections of training.
void require_files(const MeetingOptions& meeting, int num_for_each);

/// Enters a world. Connects this rank with others, so that news reaches all. Throws CommError.
std::unique_ptr<EpochSession> enter(Place place, const World& world, const LaunchOptions& options,
                                    Logger logger);

}  // namespace tcp
}  // namespace gossamer
