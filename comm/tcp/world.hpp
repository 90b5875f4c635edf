#pragma once
// How a rank of the backend `tcp` gets its place in the world: it listens, takes a rank, and learns
// where the others are.
//
// Errors: CommError; ConfigError for an address that this host does not have, and for a world on
// several hosts without a secret.

#include <memory>
#include <vector>

#include "comm/options.hpp"
#include "comm/tcp/rank_record.hpp"
#include "comm/tcp/transport.hpp"

namespace gossamer::tcp {

struct Place {
  int rank = 0;
  /// The host of every rank, as a number.
  std::vector<int> hosts = {};
  std::shared_ptr<Attendance> attendance = {};
  std::shared_ptr<Transport> transport = {};
};

/// A rank that listens, and has not met the others.
struct Arrival {
  Arrival(const asio::ip::address& address, bool is_dealt);

  std::shared_ptr<SocketBell> bell;
  std::unique_ptr<Listener> listener;
  MemoryMark mark;
  /// The record that the other ranks need.
  RankRecord record;
};

/// The place of a rank that has met the others. `config`: what Transport has beyond `options`.
Place make_place(const LaunchOptions& options, Arrival arrival, const MetRanks& ranks,
                 Transport::Config config);

/// The address at which this rank listens. Throws ConfigError.
asio::ip::address listening_address(const MeetingOptions& meeting);

/// Meets the others.
Place find_place(const LaunchOptions& options);

}  // namespace gossamer::tcp
