#pragma once
// How ranks of the backend `tcp` go on when others die (comm/elastic/elastic_session.hpp). Their
// mesh has connections of its own. In every epoch they tell one another by it where they listen,
// and make all connections of training anew.
//
// Errors: CommError; ConfigError for an address that this host does not have.

#include <memory>

#include "comm/options.hpp"
#include "comm/session.hpp"

namespace gossamer::tcp {

std::unique_ptr<Session> open_elastic(const LaunchOptions& options);

}  // namespace gossamer::tcp
