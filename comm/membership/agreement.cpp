#include "comm/membership/agreement.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace gossamer::membership {

bool Epoch::has(MemberId id) const {
  return std::ranges::find(members, id, &Member::id) != members.end();
}
bool Epoch::has(const std::string& address) const {
  return std::ranges::find(members, address, &Member::address) != members.end();
}

std::ostream& operator<<(std::ostream& out, const Epoch& epoch) {
  out << "epoch " << epoch.number << " at step " << epoch.step << ':';
  for (const Member& member : epoch.members) out << ' ' << member.id << '=' << member.address;
  return out << ", next " << epoch.next_id;
}

bool Quorum::is_met(std::size_t remaining, std::size_t members) const {
  return least > 0 ? static_cast<std::int64_t>(remaining) >= least : 2 * remaining > members;
}

Agreement::Agreement(MemberId self, Epoch epoch, Quorum quorum)
    : self_(self), epoch_(std::move(epoch)), quorum_(quorum) {
  if (!epoch_.has(self_)) throw std::logic_error("Agreement: the epoch lacks this member");
}

Actions Agreement::lose(MemberId peer, std::int64_t step) {
  Actions actions;
  if (phase_ == Phase::kEnded || peer == self_ || !reaches(peer)) return actions;
  lost_.insert(peer);
  reports_.erase(peer);
  told_.clear();
  stop(step);
  tell_all(actions);
  decide(actions);
  return actions;
}

Actions Agreement::hear(const Report& report, std::int64_t step) {
  Actions actions;
  if (phase_ == Phase::kEnded) return actions;
  if (report.epoch < epoch_.number) {
    actions.emplace_back(Announce{report.from, epoch_});
    return actions;
  }
  const bool is_later = report.epoch > epoch_.number;
  if (!is_later && !reaches(report.from)) return actions;
  reports_[report.from] = report;
  stop(step);
  // A report of an epoch that is over asks for the epoch.
  if (is_later) actions.emplace_back(Tell{report.from, own_report()});
  decide(actions);
  return actions;
}

Actions Agreement::welcome(const std::string& newcomer, std::int64_t step) {
  Actions actions;
  if (phase_ == Phase::kEnded) return actions;
  if (epoch_.has(newcomer)) {
    const auto member = std::ranges::find(epoch_.members, newcomer, &Member::address);
    actions.emplace_back(Admit{newcomer, epoch_});
    if (phase_ == Phase::kAgreeing) actions.emplace_back(Tell{member->id, own_report()});
    return actions;
  }
  if (!newcomers_.insert(newcomer).second) return actions;
  told_.clear();
  stop(step);
  tell_all(actions);
  decide(actions);
  return actions;
}

Actions Agreement::learn(const Epoch& epoch) {
  Actions actions;
  if (phase_ == Phase::kEnded || epoch.number < epoch_.number) return actions;
  if (epoch.number == epoch_.number) {
    if (epoch != epoch_) throw std::logic_error("Agreement: two epochs have the same number");
    return actions;
  }
  adopt(epoch, actions);
  return actions;
}

Actions Agreement::find(const Epoch& latest) {
  Actions actions = learn(latest);
  if (is_looking_ && phase_ == Phase::kAgreeing) leave(Leave::Why::kTooFew, actions);
  return actions;
}

void Agreement::stop(std::int64_t step) {
  if (phase_ == Phase::kServing) step_ = step;
  phase_ = Phase::kAgreeing;
}

void Agreement::tell(MemberId peer, Actions& actions) {
  if (peer != self_ && told_.insert(peer).second) actions.emplace_back(Tell{peer, own_report()});
}

void Agreement::tell_all(Actions& actions) {
  for (const MemberId peer : reached()) tell(peer, actions);
}

bool Agreement::reaches(MemberId peer) const { return epoch_.has(peer) && !lost_.contains(peer); }

std::vector<MemberId> Agreement::reached() const {
  std::vector<MemberId> ids;
  for (const Member& member : epoch_.members) {
    if (!lost_.contains(member.id)) ids.push_back(member.id);
  }
  return ids;
}

const Report* Agreement::report_of(MemberId peer) const {
  const auto found = reports_.find(peer);
  return found == reports_.end() || found->second.epoch != epoch_.number ? nullptr : &found->second;
}

Report Agreement::own_report() const {
  return {
      .from = self_, .epoch = epoch_.number, .step = step_, .lost = lost_, .newcomers = newcomers_};
}

std::vector<MemberId> Agreement::remaining() const {
  std::vector<MemberId> members = reached();
  const auto are_apart = [this](MemberId one, MemberId other) {
    const Report* const first = report_of(one);
    const Report* const second = report_of(other);
    return (first != nullptr && first->lost.contains(other)) ||
           (second != nullptr && second->lost.contains(one));
  };
  while (true) {
    MemberId worst = 0;
    std::ptrdiff_t most = 0;
    for (const MemberId member : members) {
      const std::ptrdiff_t num_lost = std::ranges::count_if(
          members, [&](MemberId other) { return other != member && are_apart(member, other); });
      if (num_lost == 0 || num_lost < most) continue;
      most = num_lost;
      worst = member;
    }
    if (most == 0) return members;
    std::erase(members, worst);
  }
}

bool Agreement::has_heard(const std::vector<MemberId>& members) const {
  return std::ranges::all_of(
      members, [this](MemberId member) { return member == self_ || report_of(member) != nullptr; });
}

Epoch Agreement::successor(const std::vector<MemberId>& remaining) const {
  Epoch next{.number = epoch_.number + 1, .step = step_, .next_id = epoch_.next_id};
  std::set<std::string> newcomers = newcomers_;
  for (const Member& member : epoch_.members) {
    if (std::ranges::find(remaining, member.id) == remaining.end()) continue;
    next.members.push_back(member);
    const Report* const report = report_of(member.id);
    if (report == nullptr) continue;
    next.step = std::max(next.step, report->step);
    newcomers.insert(report->newcomers.begin(), report->newcomers.end());
  }
  for (const std::string& newcomer : newcomers) {
    next.members.push_back({.id = next.next_id++, .address = newcomer});
  }
  return next;
}

void Agreement::decide(Actions& actions) {
  if (phase_ != Phase::kAgreeing) return;
  const std::size_t num_members = epoch_.members.size();
  const std::vector<MemberId> near = reached();
  const std::vector<MemberId> best = remaining();
  if (!quorum_.is_met(best.size(), num_members)) {
    tell_all(actions);
    // The others follow the lowest, which may still wait for an answer to its proposal.
    if (near.front() != self_ || !has_heard(near) || proposed_.number > 0) return;
    if (!std::exchange(is_looking_, true)) actions.emplace_back(Look{});
    return;
  }
  if (best.front() != self_) return tell(best.front(), actions);
  // Whatever the store answers, it is the end of this epoch.
  if (!has_heard(best) || proposed_.number > 0) return;
  proposed_ = successor(best);
  actions.emplace_back(Propose{epoch_, proposed_});
}

void Agreement::adopt(const Epoch& epoch, Actions& actions) {
  const Epoch before = std::exchange(epoch_, epoch);
  const bool is_proposer = epoch_ == std::exchange(proposed_, {});
  // Those that are left out learn it from all that reach them, and the others from the proposer.
  for (const Member& member : before.members) {
    if (member.id != self_ && !lost_.contains(member.id) &&
        (is_proposer || !epoch_.has(member.id))) {
      actions.emplace_back(Announce{member.id, epoch_});
    }
  }
  for (const Member& member : epoch_.members) {
    if (!before.has(member.id) && (is_proposer || newcomers_.contains(member.address))) {
      actions.emplace_back(Admit{member.address, epoch_});
    }
    newcomers_.erase(member.address);
  }
  if (!epoch_.has(self_)) return leave(Leave::Why::kFenced, actions);
  std::erase_if(reports_, [this](const auto& entry) { return entry.second.epoch < epoch_.number; });
  lost_.clear();
  told_.clear();
  is_looking_ = false;
  phase_ = Phase::kServing;
  step_ = epoch_.step;
  actions.emplace_back(Adopt{epoch_});
  const bool is_over = std::ranges::any_of(
      epoch_.members, [this](const Member& member) { return report_of(member.id) != nullptr; });
  if (is_over || !newcomers_.empty()) {
    stop(step_);
    tell_all(actions);
    decide(actions);
  }
}

void Agreement::leave(Leave::Why why, Actions& actions) {
  phase_ = Phase::kEnded;
  actions.emplace_back(Leave{why});
}

std::ostream& operator<<(std::ostream& out, const Report& report) {
  out << "member " << report.from << " in epoch " << report.epoch << " at step " << report.step
      << ", lost:";
  for (const MemberId peer : report.lost) out << ' ' << peer;
  out << ", newcomers:";
  for (const std::string& newcomer : report.newcomers) out << ' ' << newcomer;
  return out;
}

std::ostream& operator<<(std::ostream& out, const Agreement& agreement) {
  constexpr std::array kPhases = {"serves", "agrees", "has left"};
  out << agreement.own_report() << "; " << kPhases.at(static_cast<std::size_t>(agreement.phase_))
      << "; " << agreement.epoch_;
  for (const auto& [from, report] : agreement.reports_) out << "; heard: " << report;
  out << "; told:";
  for (const MemberId peer : agreement.told_) out << ' ' << peer;
  if (agreement.is_looking_) out << "; looks";
  if (agreement.proposed_.number > 0) out << "; proposed: " << agreement.proposed_;
  return out;
}

}  // namespace gossamer::membership
