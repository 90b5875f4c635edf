#pragma once
// Explores all orders of events of a small run whose members follow the rules of comm/elastic.
// Messages arrive in the order of their connection but otherwise at any time, processes die,
// connections break, exchanges fail, processes join. A connection that ends may lose any of its
// last messages. The store answers at any time. What a process that is gone has asked it, it may
// answer or never see.
//
// Safety. explore() checks every state:
//   - An epoch has one successor. All members that adopt an epoch have the same.
//   - An epoch keeps a quorum of the one before it, and cohorts as a whole. No id is given twice,
//   and no process is in an
//     epoch twice.
//   - Living members that an epoch keeps have stopped in the one before. None of them has made more
//     steps than the epoch says.
// Whoever leaves has a reason:
//   - An epoch has begun without it, and a connection of its own had broken.
//   - Too few are left: the store has said that there is no later epoch, and the members that are
//     here and whose connections hold are no quorum of it. Nobody who is here proposes an epoch
//     with a member that has left so. Members whose connection had broken are excepted.
//   - Its mate is gone, or a connection of its mate had broken.
//   - It is no member, and none is here of the epoch that the store has told it last.
// Liveness. No state comes again on any way, so no order of events goes on for ever. Hence whatever
// the order, if all that is under way arrives or is lost in the end, and the store answers, a state
// comes in which nothing is left to happen. In each such state all processes that are here train,
// in the store's epoch, and all of its members are here. Processes that may still join or die do
// not matter for this: the state is checked before they do.
//
// What is not explored: a store that never answers a living process.

#include <cstdint>
#include <string>

#include "comm/elastic/epoch.hpp"

namespace gossamer::membership {

struct Setting {
  int members = 3;
  /// How often each may happen, at any moment.
  int deaths = 0;
  int broken_connections = 0;
  /// Exchanges that fail although nobody is lost.
  int disturbances = 0;
  int joins = 0;
  int steps = 0;
  /// This process and the next one are a cohort; -1: each process is its own.
  int first_of_pair = -1;
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
