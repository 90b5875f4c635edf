#include "comm/elastic/participant.hpp"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/cohort.hpp"

namespace gossamer::membership {
namespace {

using Clock = std::chrono::steady_clock;

template <class... Calls>
struct Overloaded : Calls... {
  using Calls::operator()...;
};

constexpr OpLabel kMembership = {.what = "membership"};
constexpr auto kStorePause = std::chrono::milliseconds(200);

double seconds_of(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

Inbox::Config Participant::inbox_config(const Config& config) {
  return {.logger = config.logger,
          .holds = config.holds,
          .trains = config.trains,
          .end_broken = config.end_broken,
          .grace = config.grace};
}

Participant::Participant(std::unique_ptr<Mesh> mesh, EpochRecord record, MemberId self,
                         const Epoch& epoch, Config config)
    : Participant({.config = config,
                   .inbox = std::make_unique<Inbox>(std::move(mesh), inbox_config(config)),
                   .record = std::move(record)},
                  self, epoch) {}

Participant::Participant(Joined joined, MemberId self, const Epoch& epoch)
    : config_(std::move(joined.config)),
      inbox_(std::move(joined.inbox)),
      record_(std::move(joined.record)),
      self_(self),
      agreement_(self, epoch, config_.quorum),
      step_(epoch.step),
      returned_(epoch.number),
      lost_(std::move(joined.lost)),
      entries_(std::move(joined.entries)) {
  inbox_->set_epoch(epoch);
}

void Participant::begin(const std::set<std::string>& asking) {
  has_adopted_ = true;
  act({});
  for (const std::string& newcomer : asking) act(agreement_.welcome(newcomer, step_));
}

int Participant::rank() const {
  const auto& members = epoch().members;
  return static_cast<int>(std::ranges::find(members, self_, &Member::id) - members.begin());
}

void Participant::handle_next(const std::vector<MemberId>& awaited, int patience_for_lower) {
  const auto now = Clock::now();
  std::erase_if(awaited_since_, [&](const auto& entry) {
    return std::ranges::find(awaited, entry.first) == awaited.end();
  });
  for (const MemberId member : awaited) awaited_since_.try_emplace(member, now);
  const auto end_of = [&](MemberId member) {
    return awaited_since_.at(member) + config_.patience * (member < self_ ? patience_for_lower : 1);
  };
  auto end = now + config_.patience;
  for (const MemberId member : awaited) end = std::min(end, end_of(member));
  if (const auto event = inbox_->next_before(end, config_.while_waiting)) return handle(*event);
  if (awaited.empty()) {
    throw CommError({.label = kMembership}, "a member of the run waits for nobody, without end");
  }
  const std::int64_t number = epoch().number;
  for (const MemberId member : awaited) {
    // To lose one may already begin an epoch.
    if (epoch().number != number) return;
    if (end_of(member) > Clock::now()) continue;
    config_.logger.warning(concat("goes on without member ", member, ", which has not come within ",
                                  shortest(seconds_of(config_.patience)), " s (comm.timeout_s)"));
    lose(member, step_);
  }
}

const Epoch& Participant::reconfigure(std::int64_t step) {
  step_ = step;
  const auto is_renewed = [this] {
    return agreement_.phase() == Agreement::Phase::kServing && epoch().number > returned_;
  };
  while (const auto event = inbox_->poll()) handle(*event);
  if (!is_renewed()) act(agreement_.disturb(step_));
  awaited_since_.clear();
  // The one that should propose has to notice itself who does not come.
  while (!is_renewed()) handle_next(agreement_.awaited(), 2);
  returned_ = epoch().number;
  return epoch();
}

std::vector<std::string> Participant::gather(const std::string& text) {
  const Epoch now = epoch();
  entries_.erase(entries_.begin(), entries_.lower_bound(now.number));
  auto& entries = entries_[now.number];
  entries[inbox_->mesh().address()] = text;
  const std::string message = encode(Entry{.epoch = now.number, .text = text});
  for (const Member& member : now.members) inbox_->mesh().send(member.address, message);
  const auto has_changed = [&] {
    return agreement_.phase() != Agreement::Phase::kServing || epoch().number != now.number;
  };
  const auto missing = [&] {
    std::vector<MemberId> ids;
    for (const Member& member : now.members) {
      if (!entries.contains(member.address)) ids.push_back(member.id);
    }
    return ids;
  };
  awaited_since_.clear();
  while (!has_changed() && !missing().empty()) handle_next(missing(), 1);
  if (has_changed()) {
    throw PeerLost({.rank = rank(), .label = kMembership},
                   "the members of the run have changed again");
  }
  std::vector<std::string> texts;
  for (const Member& member : now.members) texts.push_back(entries.at(member.address));
  return texts;
}

void Participant::lose(MemberId peer, std::int64_t step) {
  step_ = step;
  const Member* const member = epoch().find(peer);
  if (member == nullptr) return;
  inbox_->mesh().drop(member->address);
  handle({.from = member->address, .reason = "the ranks could not exchange"});
}

void Participant::handle(const Event& event) {
  if (!event.message) {
    if (event.has_met) return;
    lost_.try_emplace(event.from, event.reason);
    if (const Member* const member = epoch().find(event.from)) {
      act(agreement_.lose(member->id, step_));
    }
    return;
  }
  std::visit(Overloaded{[&](const Report& report) { act(agreement_.hear(report, step_)); },
                        [&](const Epoch& epoch) { act(agreement_.learn(epoch)); },
                        [&](const AskToJoin&) { act(agreement_.welcome(event.from, step_)); },
                        // A member is let in already.
                        [&](const Refuse&) {},
                        [&](const Entry& entry) {
                          if (entry.epoch >= epoch().number) {
                            entries_[entry.epoch][event.from] = entry.text;
                          }
                        }},
             *event.message);
}

void Participant::act(const Actions& actions) {
  std::deque<Action> pending(actions.begin(), actions.end());
  while (true) {
    while (!pending.empty()) {
      const Action action = std::move(pending.front());
      pending.pop_front();
      carry_out(action, pending);
    }
    if (!std::exchange(has_adopted_, false)) return;
    // Last, for the reports that came with the epoch do not name those that are lost.
    for (const Member& member : Epoch(epoch()).members) {
      if (!lost_.contains(member.address)) continue;
      std::ranges::copy(agreement_.lose(member.id, step_), std::back_inserter(pending));
    }
  }
}

void Participant::carry_out(const Action& action, std::deque<Action>& further) {
  const auto add = [&](const Actions& actions) {
    std::ranges::copy(actions, std::back_inserter(further));
  };
  std::visit(
      Overloaded{
          [&](const Tell& tell) { inbox_->mesh().send(tell.to, encode(tell.report)); },
          [&](const Announce& announce) {
            inbox_->mesh().send(announce.to, encode(announce.epoch));
          },
          [&](const Propose& proposal) {
            add(ask_store(proposal.expected.number, [&] { return record_.propose(proposal); }));
          },
          [&](const Look& look) {
            // A member's record has been there: to wait for a lost one is vain.
            const Epoch now = epoch();
            add(ask_store(look.epoch,
                          [&] { return record_.propose({.expected = now, .desired = now}); }));
          },
          [&](const Adopt& adopt) {
            config_.logger.debug(concat("goes on with ", adopt.epoch));
            has_adopted_ = true;
            awaited_since_.clear();
            inbox_->set_epoch(epoch());
          },
          [&](const Ask& ask) {
            inbox_->mesh().send(
                ask.to, encode(AskToJoin{.epoch = epoch().number, .trains = config_.trains}));
          },
          [&](const Leave& why) { leave(why); }},
      action);
}

template <class AskFunction>
Actions Participant::ask_store(std::int64_t asked, const AskFunction& ask) {
  const auto end = Clock::now() + config_.patience;
  while (true) {
    try {
      return agreement_.find(asked, ask());
    } catch (const RecordError&) {
      throw;
    } catch (const CommError& error) {
      store_error_ = error.reason();
      if (Clock::now() >= end) return agreement_.give_up();
    }
    std::this_thread::sleep_for(kStorePause);
  }
}

std::string Participant::own_losses() const {
  std::vector<std::string> losses;
  for (const Member& member : epoch().members) {
    const auto found = lost_.find(member.address);
    if (found == lost_.end() || found->second.empty()) continue;
    losses.push_back(concat("member ", member.id, " at ", member.address, ": ", found->second));
  }
  return losses.empty() ? "" : concat(" (this rank has lost ", gossamer::join(losses, "; "), ")");
}

std::string Participant::lost_places() const {
  std::vector<int> places;
  for (const auto& [address, reason] : lost_) {
    if (are_mates(address, inbox_->mesh().address())) places.push_back(cohort_of(address).place);
  }
  return concat(places.size() == 1 ? "place " : "places ", gossamer::join(places, ", "));
}

void Participant::leave(const Leave& leave) const {
  const auto error = [this](std::string_view reason, ExitCode code = ExitCode::kPeerLost) {
    return CommError({.rank = -1, .label = kMembership, .code = code},
                     concat(reason, own_losses()));
  };
  switch (leave.why) {
    case Leave::Why::kBroken:
      throw error(concat("this rank's node has lost its ", lost_places(),
                         ", and the other nodes go on without it; restart the node as a whole"));
    case Leave::Why::kFenced:
      throw error(
          cohort_of(inbox_->mesh().address()).size > 1
              ? "the other nodes have gone on without this rank's node, which has lost a rank or "
                "was silent for too long; it has touched nothing since; restart the node as a whole"
              : "the other ranks have gone on without this one, which was silent for too long; it "
                "has touched nothing since",
          ExitCode::kPreempted);
    case Leave::Why::kTooFew:
      throw error(
          "too few ranks are left that reach each other (fault.min_ranks); continue the run from "
          "its last checkpoint, with another --run-id if it meets in a folder or in etcd");
    case Leave::Why::kNoStore:
      throw error(concat("the store does not answer, and ranks that are left need it to go on: ",
                         store_error_));
    case Leave::Why::kForked:
      break;
  }
  throw error(
      "the store has another record of the run's members than its members: it has lost its memory, "
      "or two runs use one name (--run-id); continue the run from its last checkpoint");
}

}  // namespace gossamer::membership
