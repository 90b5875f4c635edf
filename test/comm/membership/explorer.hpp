#pragma once
// Explores all orders of events of a small run whose members agree on epochs by the rules of
// comm/membership/agreement.hpp: messages arrive in the order of their connection but otherwise at
// any time, processes die at any moment, connections break, and processes join.
//
// A connection that ends may lose any of its last messages. The store answers at any time, also
// after the process that asked has died.
//
// explore() checks in every state that
//   - an epoch has one successor, and all members that adopt an epoch have the same,
//   - an epoch keeps a quorum of the one before it, and no id and no address is given twice,
//   - members that an epoch keeps have stopped, and none of them has made more steps than it says;
// that no order of events goes on for ever; and in every state in which nothing is left to happen,
//   - all members that are alive are in the store's epoch, and train, or have left,
//   - nobody has left in vain: if the members of the last epoch that are alive meet the quorum,
//   they
//     train. Exempt are ends after a connection has broken, and after the store has taken a
//     proposal of a process that was dead by then,
//   - nobody waits to be let in while others train.

#include <cstdint>
#include <string>

#include "comm/membership/agreement.hpp"

namespace gossamer::membership {

struct Setting {
  int members = 3;
  /// How often each may happen, at any moment.
  int deaths = 0;
  int broken_connections = 0;
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
