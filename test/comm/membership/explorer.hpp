#pragma once
// Explores all orders of events of a small run whose members follow the rules of comm/membership.
// Messages arrive in the order of their connection but otherwise at any time, processes die,
// connections break, processes join. A connection that ends may lose any of its last messages. The
// store answers at any time. What a process that has died has asked it, it may answer or never see.
//
// explore() checks every state:
//   - An epoch has one successor. All members that adopt an epoch have the same.
//   - An epoch keeps a quorum of the one before it. No id is given twice, and no process is in an
//     epoch twice.
//   - Living members that an epoch keeps have stopped in the one before. None of them has made more
//     steps than the epoch says.
// No order of events goes on for ever. Where nothing is left to happen:
//   - Processes that are here train, all in the store's epoch, which has no others.
//   - Nobody has left in vain: if the living members of the last epoch meet the quorum, some train.
//     Exempt are ends after a connection has broken, and after the store has taken a proposal of a
//     process that was gone.

#include <cstdint>
#include <string>

#include "comm/membership/epoch.hpp"

namespace gossamer::membership {

struct Setting {
  int members = 3;
  /// How often each may happen, at any moment.
  int deaths = 0;
  int broken_connections = 0;
  int disturbances = 0;
  int joins = 0;
  int steps = 0;
  Quorum quorum = {};
  /// False: a store that takes every proposal, to see that explore() finds the fault.
  bool store_compares = true;
};

struct Exploration {
  std::int64_t states = 0;
  /// States in which nothing is left to happen but deaths and the like.
  std::int64_t ends = 0;
  /// The largest number of an epoch.
  std::int64_t epochs = 0;
  /// Ends in which somebody trains.
  std::int64_t training = 0;
  /// Empty, or what is wrong, and the events that lead there.
  std::string fault;
};

Exploration explore(const Setting& setting);

}  // namespace gossamer::membership
