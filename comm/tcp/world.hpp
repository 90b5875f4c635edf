#pragma once
// How a rank of the backend `tcp` gets its place in the world: it listens, takes a rank, and learns
// where the others are.
//
// Errors: CommError; ConfigError for an address that this host does not have, and for a world on
// several hosts without a secret.

#include <memory>
#include <vector>

#include "comm/launch.hpp"
#include "comm/tcp/transport.hpp"

namespace gossamer::tcp {

struct Place {
  int rank = 0;
  /// The host of every rank, as a number.
  std::vector<int> hosts;
  std::shared_ptr<Attendance> attendance;
  std::shared_ptr<Transport> transport;
};

Place find_place(const LaunchOptions& options);

}  // namespace gossamer::tcp
