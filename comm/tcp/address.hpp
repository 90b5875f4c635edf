#pragma once
// Which address of this host a rank announces to the others.
//
// Thread safety: functions without state. Errors: ConfigError when no such address is found.

#include <string>
#include <vector>

#include "comm/meeting.hpp"
#include "comm/tcp/asio.hpp"

namespace gossamer::tcp {

/// MeetingOptions::interface if it is given; else the address from which this host reaches
/// MeetingOptions::store_host; else the loopback address.
asio::ip::address own_address(const MeetingOptions& options);

/// The addresses of this host's interfaces, as `eth0 10.0.0.1`.
std::vector<std::string> own_addresses();

}  // namespace gossamer::tcp
