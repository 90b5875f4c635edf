#include "comm/elastic/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "comm/cohort.hpp"

namespace gossamer::membership {
namespace {

/// The addresses of all cohorts that are there as a whole, cohort after cohort by place.
std::vector<std::string> whole_cohorts(const std::set<std::string>& addresses) {
  std::map<std::string, std::map<int, std::string>> cohorts;
  std::vector<std::string> whole;
  for (const std::string& address : addresses) {
    const Cohort cohort = cohort_of(address);
    if (cohort.size == 1) {
      whole.push_back(address);
      continue;
    }
    auto& places = cohorts[cohort.name];
    places.try_emplace(cohort.place, address);
    if (std::ssize(places) < cohort.size) continue;
    for (const auto& [place, mate] : places) whole.push_back(mate);
  }
  return whole;
}

}  // namespace

Agreement::Agreement(MemberId self, Epoch epoch, Quorum quorum)
    : self_(self), epoch_(std::move(epoch)), quorum_(quorum), step_(epoch_.step) {
  if (!epoch_.has(self_)) throw std::logic_error("Agreement: the epoch lacks this member");
}

Actions Agreement::lose(MemberId peer, std::int64_t step) {
  Actions actions;
  if (phase_ == Phase::kEnded || peer == self_ || !epoch_.has(peer)) return actions;
  if (!lost_.insert(peer).second) return actions;
  const std::string& address = epoch_.find(peer)->address;
  if (are_mates(address, epoch_.find(self_)->address)) {
    leave(Leave::Why::kBroken, actions);
    return actions;
  }
  if (const Cohort cohort = cohort_of(address); cohort.size > 1) broken_.insert(cohort.name);
  std::erase_if(reports_, [this](const auto& entry) {
    return epoch_.has(entry.first) && !reaches(entry.first);
  });
  report_anew(step, actions);
  return actions;
}

Actions Agreement::hear(const Report& report, std::int64_t step) {
  Actions actions;
  if (phase_ == Phase::kEnded) return actions;
  if (report.epoch < epoch_.number) {
    actions.emplace_back(Announce{report.from.address, epoch_});
    return actions;
  }
  const bool is_later = report.epoch > epoch_.number;
  if (!is_later && !reaches(report.from.id)) return actions;
  reports_[report.from.id] = report;
  stop(step);
  if (is_later) {
    // A report of an epoch that is over asks for the epoch.
    actions.emplace_back(Tell{report.from.address, own_report()});
  } else if (!report.lost.empty()) {
    // The sender may know of other members that cannot reach each other, and take itself for the
    // one that proposes.
    tell(report.from.id, actions);
  }
  decide(actions);
  return actions;
}

Actions Agreement::welcome(const std::string& newcomer, std::int64_t step) {
  Actions actions;
  if (phase_ == Phase::kEnded || !is_address(newcomer)) return actions;
  if (epoch_.has(newcomer)) {
    actions.emplace_back(Announce{newcomer, epoch_});
    if (phase_ == Phase::kAgreeing) actions.emplace_back(Tell{newcomer, own_report()});
    return actions;
  }
  const std::size_t before = whole_cohorts(newcomers_).size();
  newcomers_.insert(newcomer);
  if (whole_cohorts(newcomers_).size() > before) report_anew(step, actions);
  return actions;
}

Actions Agreement::disturb(std::int64_t step) {
  Actions actions;
  if (phase_ == Phase::kServing) report_anew(step, actions);
  return actions;
}

Actions Agreement::learn(const Epoch& epoch) {
  Actions actions;
  if (phase_ == Phase::kEnded || epoch.number < epoch_.number || epoch == epoch_) return actions;
  const bool has_reported = phase_ == Phase::kAgreeing && epoch.step >= step_;
  if (epoch.number == epoch_.number || (epoch.has(self_) && !has_reported)) {
    leave(Leave::Why::kForked, actions);
  } else {
    adopt(epoch, actions);
  }
  return actions;
}

Actions Agreement::find(std::int64_t asked, const Epoch& latest) {
  Actions actions = learn(latest);
  // An answer to an earlier question says nothing about this epoch.
  if (phase_ != Phase::kAgreeing || asked != epoch_.number || latest.number != asked) {
    return actions;
  }
  if (is_looking_) {
    leave(Leave::Why::kTooFew, actions);
  } else if (proposed_.number > 0) {
    actions.emplace_back(Propose{epoch_, proposed_});
  }
  return actions;
}

Actions Agreement::give_up() {
  Actions actions;
  if (phase_ != Phase::kEnded) leave(Leave::Why::kNoStore, actions);
  return actions;
}

std::vector<MemberId> Agreement::awaited() const {
  std::vector<MemberId> members = reached();
  const std::vector<MemberId> best = without_conflicts(members);
  if (quorum_.is_met(best, epoch_)) {
    members = best;
  } else if (const MemberId first = lowest_here(); first != self_) {
    return {first};
  }
  // The lowest proposes, and tells the others.
  return members.front() == self_ ? missing(members) : std::vector{members.front()};
}

void Agreement::stop(std::int64_t step) {
  // Who is still making the steps before the epoch's counts them already.
  if (phase_ == Phase::kServing) step_ = std::max(step, epoch_.step);
  phase_ = Phase::kAgreeing;
}

void Agreement::report_anew(std::int64_t step, Actions& actions) {
  told_.clear();
  stop(step);
  tell_all(actions);
  decide(actions);
}

void Agreement::tell(MemberId peer, Actions& actions) {
  if (peer == self_ || !told_.insert(peer).second) return;
  actions.emplace_back(Tell{epoch_.find(peer)->address, own_report()});
}

void Agreement::tell_all(Actions& actions) {
  for (const MemberId peer : reached()) tell(peer, actions);
}

bool Agreement::reaches(MemberId peer) const {
  const Member* const member = epoch_.find(peer);
  if (member == nullptr || lost_.contains(peer)) return false;
  return broken_.empty() || !broken_.contains(cohort_of(member->address).name);
}

MemberId Agreement::lowest_here() const {
  return std::ranges::find_if(epoch_.members,
                              [this](const Member& one) { return !lost_.contains(one.id); })
      ->id;
}

std::vector<MemberId> Agreement::reached() const {
  std::vector<MemberId> ids;
  for (const Member& member : epoch_.members) {
    if (reaches(member.id)) ids.push_back(member.id);
  }
  return ids;
}

const Report* Agreement::report_of(MemberId peer) const {
  const auto found = reports_.find(peer);
  return found == reports_.end() || found->second.epoch != epoch_.number ? nullptr : &found->second;
}

Report Agreement::own_report() const {
  const std::vector<std::string> newcomers = whole_cohorts(newcomers_);
  return {.from = *epoch_.find(self_),
          .epoch = epoch_.number,
          .step = step_,
          .lost = lost_,
          .newcomers = {newcomers.begin(), newcomers.end()}};
}

std::vector<MemberId> Agreement::without_conflicts(std::vector<MemberId> members) const {
  std::map<MemberId, std::set<MemberId>> apart;
  for (const MemberId member : members) {
    const Report* const report = report_of(member);
    if (report == nullptr) continue;
    for (const MemberId other : report->lost) {
      if (!std::ranges::binary_search(members, other)) continue;
      apart[member].insert(other);
      apart[other].insert(member);
    }
  }
  while (!apart.empty()) {
    // The last of those with most: the highest id.
    auto worst = apart.begin();
    for (auto entry = apart.begin(); entry != apart.end(); ++entry) {
      if (entry->second.size() >= worst->second.size()) worst = entry;
    }
    const std::string& left_out = epoch_.find(worst->first)->address;
    const auto is_out = [&](MemberId id) {
      const std::string& address = epoch_.find(id)->address;
      return address == left_out || are_mates(address, left_out);
    };
    std::erase_if(apart, [&](const auto& entry) { return is_out(entry.first); });
    for (auto& [member, others] : apart) std::erase_if(others, is_out);
    std::erase_if(apart, [](const auto& entry) { return entry.second.empty(); });
    std::erase_if(members, is_out);
  }
  return members;
}

std::vector<MemberId> Agreement::missing(const std::vector<MemberId>& members) const {
  std::vector<MemberId> ids = reached();
  std::erase_if(ids, [&](MemberId member) {
    if (member == self_) return true;
    const Report* const report = report_of(member);
    if (report == nullptr && std::ranges::binary_search(members, member)) return false;
    return std::ranges::none_of(reports_, [&](const auto& entry) {
      const auto& [other, said] = entry;
      return said.epoch == epoch_.number && said.lost.contains(member) &&
             (report == nullptr || !report->lost.contains(other));
    });
  });
  return ids;
}

Epoch Agreement::successor(const std::vector<MemberId>& remaining) const {
  Epoch next{.number = epoch_.number + 1,
             .num_voters = std::ssize(remaining),
             .step = step_,
             .next_id = epoch_.next_id};
  std::set<std::string> newcomers = newcomers_;
  for (const Member& member : epoch_.members) {
    if (!std::ranges::binary_search(remaining, member.id)) continue;
    next.members.push_back(member);
    const Report* const report = report_of(member.id);
    if (report == nullptr) continue;
    next.step = std::max(next.step, report->step);
    newcomers.insert(report->newcomers.begin(), report->newcomers.end());
  }
  for (const std::string& newcomer : whole_cohorts(newcomers)) {
    if (next.has(newcomer)) continue;
    next.members.push_back({.id = next.next_id++, .address = newcomer});
  }
  return next;
}

void Agreement::decide(Actions& actions) {
  // The store's answer ends this epoch.
  if (phase_ != Phase::kAgreeing || proposed_.number > 0) return;
  const std::vector<MemberId> near = reached();
  const std::vector<MemberId> best = without_conflicts(near);
  if (!quorum_.is_met(best, epoch_)) {
    tell_all(actions);
    // The others follow the lowest, which may still wait for an answer to its proposal.
    if (lowest_here() != self_ || !missing(near).empty()) return;
    if (!std::exchange(is_looking_, true)) actions.emplace_back(Look{epoch_.number});
    return;
  }
  is_looking_ = false;
  if (best.front() != self_) return tell(best.front(), actions);
  // A member that has not reported may be gone, which a message to it shows.
  if (!missing(best).empty()) return tell_all(actions);
  proposed_ = successor(best);
  actions.emplace_back(Propose{epoch_, proposed_});
}

void Agreement::adopt(const Epoch& epoch, Actions& actions) {
  const Epoch before = std::exchange(epoch_, epoch);
  const bool is_proposer = epoch_ == std::exchange(proposed_, {});
  // Members that are left out learn it from all that reach them, and the others from the proposer.
  for (const Member& member : before.members) {
    if (member.id != self_ && !lost_.contains(member.id) &&
        (is_proposer || !epoch_.has(member.id))) {
      actions.emplace_back(Announce{member.address, epoch_});
    }
  }
  for (const Member& member : epoch_.members) {
    if (!before.has(member.id) && (is_proposer || newcomers_.contains(member.address))) {
      actions.emplace_back(Announce{member.address, epoch_});
    }
    newcomers_.erase(member.address);
  }
  if (!epoch_.has(self_)) return leave(Leave::Why::kFenced, actions);
  std::erase_if(reports_, [this](const auto& entry) { return entry.second.epoch < epoch_.number; });
  lost_.clear();
  broken_.clear();
  told_.clear();
  is_looking_ = false;
  phase_ = Phase::kServing;
  step_ = epoch_.step;
  actions.emplace_back(Adopt{epoch_});
  const bool is_over = std::ranges::any_of(
      epoch_.members, [this](const Member& member) { return report_of(member.id) != nullptr; });
  if (is_over || !whole_cohorts(newcomers_).empty()) report_anew(step_, actions);
}

void Agreement::leave(Leave::Why why, Actions& actions) {
  phase_ = Phase::kEnded;
  actions.emplace_back(Leave{why});
}

std::ostream& operator<<(std::ostream& out, const Report& report) {
  out << "member " << report.from.id << " in epoch " << report.epoch << " at step " << report.step
      << ", lost:";
  for (const MemberId peer : report.lost) out << ' ' << peer;
  out << ", newcomers:";
  for (const std::string& newcomer : report.newcomers) out << ' ' << newcomer;
  return out;
}

std::ostream& operator<<(std::ostream& out, const Agreement& agreement) {
  constexpr std::array kPhases = {"serves", "agrees", "has left"};
  out << "member " << agreement.self_ << ' '
      << kPhases.at(static_cast<std::size_t>(agreement.phase_)) << " at step " << agreement.step_
      << "; " << agreement.epoch_ << "; lost:";
  for (const MemberId peer : agreement.lost_) out << ' ' << peer;
  out << "; newcomers:";
  for (const std::string& newcomer : agreement.newcomers_) out << ' ' << newcomer;
  for (const auto& [from, report] : agreement.reports_) out << "; heard: " << report;
  out << "; told:";
  for (const MemberId peer : agreement.told_) out << ' ' << peer;
  if (agreement.is_looking_) out << "; looks";
  if (agreement.proposed_.number > 0) out << "; proposed: " << agreement.proposed_;
  return out;
}

}  // namespace gossamer::membership
