#pragma once
// How processes that no launcher has connected find one another: each takes a rank, and leaves a
// record in a Store that says where it can be reached.
//
// Protocol: take_rank() first, then exchange_records(). All ranks give the same size, run and
// secret. A record carries an
// HMAC-SHA256 of its key and its text, made with the run's secret. Without the secret nobody can
// add a rank. Nobody can move a record to another rank or run either, because both stand in the
// key.
//
// Errors: CommError. It names the ranks that have not come, and records that carry no valid
// signature. Thread safety: as the Store's.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/store.hpp"

namespace gossamer {

/// Where and with whom a rank of the backend `tcp` begins.
struct MeetingOptions {
  /// Null: the rank is alone in its world.
  std::shared_ptr<Store> store = {};
  /// The number of ranks in the world.
  int size = 1;
  /// Negative: the ranks are dealt in the order of arrival.
  int rank = -1;
  /// Tells runs apart that use one store, and attempts of one run.
  std::string run = "run";
  /// Shared by all ranks. Empty: connections are neither encrypted nor authenticated.
  std::string secret = {};
  /// The host that the store is on: this rank announces the address of the interface that leads
  /// there. Empty: this machine alone, so it announces the loopback address.
  std::string store_host = {};
  /// A network interface or an address of this host (comm.interface), in place of the one that
  /// leads to the store. Empty: none is given.
  std::string interface = {};
  /// The run goes over several hosts without a secret (comm.security: none).
  bool is_open = false;
  /// Data connections between two ranks (comm.streams), at most 64. 0: as many as help.
  int num_streams = 0;
  /// False: messages between ranks of one host go over the network as well.
  bool reads_memory = true;
  /// Seconds to wait for the others.
  double timeout_s = 300.0;
};

/// The rank of this process: the given one, or the next that is free.
int take_rank(const MeetingOptions& options);

/// Leaves `record` for `rank`, and returns the records of all ranks, in rank order.
std::vector<std::string> exchange_records(const MeetingOptions& options, int rank,
                                          const std::string& record);

}  // namespace gossamer
