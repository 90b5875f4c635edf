#pragma once
// Chooses the address of this host that a rank announces to the other ranks.
//
// Thread safety: functions without state. Errors: ConfigError when no such address is found.

#include <string>

#include "comm/options.hpp"
#include "comm/rendezvous/meeting.hpp"

namespace gossamer::tcp {

/// MeetingOptions::interface if it is given; else the address from which this host reaches
/// MeetingOptions::store_host; else the loopback address.
std::string own_address(const MeetingOptions& options);

/// The address from which packets to `host` leave. Nothing is sent.
std::string address_towards(const std::string& host);

}  // namespace gossamer::tcp
