// What must hold in every state of a run.

#include "test/comm/elastic/run_states.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <variant>

namespace gossamer::membership {

void RunStates::check_proposal(const Run& run, int proposer, const Propose& proposal) const {
  const Epoch& before = proposal.expected;
  const Epoch& next = proposal.desired;
  require(next.number == before.number + 1, "an epoch has a wrong number");
  const bool is_proposer_here = process(run.sites[index(proposer)]).is_here();
  std::vector<MemberId> kept;
  std::set<std::string> addresses;
  for (const Member& member : next.members) {
    require(addresses.insert(member.address).second, "a process is counted twice");
    if (!before.has(member.id)) {
      require(member.id >= before.next_id && member.id < next.next_id, "an id is given twice");
      continue;
    }
    require(before.find(member.id)->address == member.address, "an id has changed its process");
    kept.push_back(member.id);
    const int number = process_at(member.address);
    const int mate = mate_of(number);
    require(mate < 0 || next.has(address_of(mate)), "an epoch has a part of a cohort");
    const Process& counted = process(run.sites[index(number)]);
    require(counted.place != Process::Place::kLeft || has_broken(run, number) ||
                has_lost_mate(run, number) || !is_proposer_here,
            concat(member.address, " has left, and another one has counted on it"));
    if (!counted.is_here()) continue;
    require(counted.agreement && counted.agreement->epoch() == before &&
                counted.agreement->phase() == Agreement::Phase::kAgreeing,
            concat(member.address, " has not stopped, and others go on"));
    require(counted.step <= next.step, concat(member.address, " would go back"));
  }
  require(next.num_voters == std::ssize(kept), "a process votes in its first epoch");
  require(has_quorum(kept, before), "an epoch has no quorum");
}

void RunStates::check_leaving(const Run& run, int one, Leave::Why why,
                              const Happening& last) const {
  require(why != Leave::Why::kForked, "two lines of epochs");
  const std::string name = address_of(one);
  const Process& leaving = process(run.sites[index(one)]);
  if (why == Leave::Why::kBroken) {
    require(has_lost_mate(run, one) || has_broken(run, one),
            concat(name, " leaves, though its mate is here"));
    return;
  }
  if (why == Leave::Why::kFenced) {
    require(has_broken(run, one) || has_lost_mate(run, one),
            concat(name, " is left out, though its connections hold"));
    require(std::ranges::any_of(lines_[run.line],
                                [&](const Epoch& later) {
                                  return later.number > leaving.agreement->epoch().number &&
                                         !later.has(name);
                                }),
            concat(name, " leaves, though all epochs have it"));
    return;
  }
  const auto is_sound = [&](const Member& member) {
    const int other = process_at(member.address);
    return other != one && process(run.sites[index(other)]).is_here() && !has_broken(run, other) &&
           !has_lost_mate(run, other);
  };
  const auto* const answer = std::get_if<Answer>(&last);
  require(answer != nullptr, concat(name, " leaves, and has not looked at the store"));
  const Epoch& epoch = answer->latest;
  if (!leaving.agreement) {
    require(has_broken(run, one) || std::ranges::none_of(epoch.members, is_sound),
            concat(name, " is not let in, though it reaches a member"));
    return;
  }
  require(leaving.agreement->epoch() == epoch, concat(name, " leaves an old epoch"));
  std::vector<MemberId> sound;
  for (const Member& member : epoch.members) {
    if (member.address == name || is_sound(member)) sound.push_back(member.id);
  }
  require(!has_quorum(sound, epoch), concat(name, " leaves, though enough are left"));
}

void RunStates::check_end(const State& state) const {
  const Epoch& last = epoch(state);
  for (int one = 0; one < num_processes_; ++one) {
    const Process& known = process(site(state, one));
    if (!known.is_here()) continue;
    const std::string name = address_of(one);
    const int mate = mate_of(one);
    // Who joins waits for a mate that has not come, or is gone.
    if (!known.agreement && mate >= 0 && !process(site(state, mate)).is_here()) continue;
    require(known.agreement.has_value(), concat(name, " waits to be let in"));
    require(known.trains(), concat(name, " waits for ever"));
    require(known.agreement->epoch() == last, concat(name, " is in an old epoch"));
    require(std::ranges::all_of(last.members,
                                [&](const Member& member) {
                                  return process(site(state, process_at(member.address))).is_here();
                                }),
            "an epoch has a member that is gone");
  }
}

bool RunStates::has_quorum(const std::vector<MemberId>& members, const Epoch& epoch) const {
  if (std::ssize(members) < setting_.quorum.least) return false;
  std::int64_t num_voters = 0;
  for (std::int64_t i = 0; i < epoch.num_voters; ++i) {
    const MemberId voter = epoch.members[static_cast<std::size_t>(i)].id;
    if (std::ranges::find(members, voter) != members.end()) ++num_voters;
  }
  return num_voters > epoch.num_voters - num_voters;
}

}  // namespace gossamer::membership
