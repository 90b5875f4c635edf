#pragma once
// Ranks as processes that are joined by TCP. Needs no MPI: the processes find one another in a
// Store (comm/meeting.hpp).

#include "comm/session.hpp"

namespace gossamer {

/// Enters the world that LaunchOptions::meeting says. Throws CommError, and ConfigError for an
/// address that this host does not have, and for a world on several hosts without a secret.
Sessions open_tcp(const LaunchOptions& options);

}  // namespace gossamer
