#pragma once
// The rules by which the members of a run agree on the next epoch. Each member has an Agreement. It
// does nothing itself: it is told what happens, and returns what the member has to do.
//
// Protocol:
//
//   serving    The member exchanges. It stops when it loses a peer, when a process asks to join, or
//              when another member's report says that one has stopped.
//   agreeing   The member exchanges nothing and makes no step. It has a report: how many steps it
//              has made, whom it cannot reach, who wants to join. It sends the report to all that
//              it reaches when it loses a peer and when a process asks it to join, and otherwise
//              to the member that should propose.
//   ended      The member has left: the others go on without it, or too few are left.
//
// A member leaves out those that it has lost. Among the rest it leaves out members that cannot
// reach each other, those with most lost peers first, then higher ids first. The lowest of the
// others proposes the next epoch, when it has reports of all of them. The epoch begins at the
// largest step of a report. The store takes one successor of an epoch and tells it to whoever
// proposes another one. So two members may propose at the same time.
//
// A lost peer stays lost: connections between two members are not opened again. Where too few are
// left, the lowest of them looks at the store, since those that are lost may have agreed before. If
// they have not, it leaves, and the next one looks.
//
// Safety: an epoch has one successor. A member that is counted has stopped before, and its steps
// are no more than the epoch's. With the quorum `majority` two halves of a run cannot both go on,
// whatever the store does. test/comm/membership explores all orders of events for small runs.
//
// Thread safety: one thread.

#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "comm/membership/epoch.hpp"

namespace gossamer::membership {

/// What a member that has stopped tells the others.
struct Report {
  MemberId from = 0;
  /// The number of the epoch in which it has stopped.
  std::int64_t epoch = 0;
  /// Steps that it has made.
  std::int64_t step = 0;
  /// Members of the epoch that it does not reach.
  std::set<MemberId> lost = {};
  /// Addresses of processes that have asked it to let them join.
  std::set<std::string> newcomers = {};
  auto operator<=>(const Report&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Report& report);

/// Send the report.
struct Tell {
  MemberId to = 0;
  Report report;
};
/// Send the epoch to a member of this epoch or of an earlier one.
struct Announce {
  MemberId to = 0;
  Epoch epoch;
};
/// Send the epoch to a process that has asked to join; it is a member now.
struct Admit {
  std::string to;
  Epoch epoch;
};
/// Put `desired` in the place of `expected` in the store. find() takes the epoch that is there
/// then. May be tried again when the answer does not come.
struct Propose {
  Epoch expected;
  Epoch desired;
};
/// Ask the store for its epoch, for find().
struct Look {};
/// Make the missing steps without exchanges, up to the epoch's. Then lose() the members whose
/// connection has ended, earlier or now, and exchange with the others.
struct Adopt {
  Epoch epoch;
};
/// Leave the run.
struct Leave {
  enum class Why : std::uint8_t {
    /// An epoch without this member has begun.
    kFenced,
    /// Fewer members than the quorum reach each other.
    kTooFew
  };
  Why why = Why::kFenced;
};
using Action = std::variant<Tell, Announce, Admit, Propose, Look, Adopt, Leave>;
using Actions = std::vector<Action>;

/// How many members of an epoch must go on together.
struct Quorum {
  /// 0: more than half of them.
  std::int64_t least = 0;
  [[nodiscard]] bool is_met(std::size_t remaining, std::size_t members) const;
};

class Agreement {
 public:
  enum class Phase : std::uint8_t { kServing, kAgreeing, kEnded };

  /// `epoch` has this member. A process that joins begins with the epoch that lets it in.
  Agreement(MemberId self, Epoch epoch, Quorum quorum);

  // What happens. `step`: the steps that this member has made; counts only while it serves.

  /// The connection with a member has ended, or it has given no sign of life for too long.
  Actions lose(MemberId peer, std::int64_t step);
  Actions hear(const Report& report, std::int64_t step);
  /// A process asks to join, over a connection of its own.
  Actions welcome(const std::string& newcomer, std::int64_t step);
  /// A member tells an epoch.
  Actions learn(const Epoch& epoch);
  /// The store answers to Propose or Look.
  Actions find(const Epoch& latest);

  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] const Epoch& epoch() const { return epoch_; }
  /// Writes all that it knows, for logs.
  friend std::ostream& operator<<(std::ostream& out, const Agreement& agreement);

 private:
  void stop(std::int64_t step);
  /// Tells a member this one's report, unless it has.
  void tell(MemberId peer, Actions& actions);
  void tell_all(Actions& actions);
  /// Whether the peer is a member that is not lost.
  [[nodiscard]] bool reaches(MemberId peer) const;
  [[nodiscard]] std::vector<MemberId> reached() const;
  [[nodiscard]] const Report* report_of(MemberId peer) const;
  [[nodiscard]] Report own_report() const;
  /// The members that can go on together, as far as this one knows.
  [[nodiscard]] std::vector<MemberId> remaining() const;
  [[nodiscard]] bool has_heard(const std::vector<MemberId>& members) const;
  [[nodiscard]] Epoch successor(const std::vector<MemberId>& remaining) const;
  /// Proposes or looks if it is time, or tells the report to whom should propose.
  void decide(Actions& actions);
  void adopt(const Epoch& epoch, Actions& actions);
  void leave(Leave::Why why, Actions& actions);

  MemberId self_;
  Epoch epoch_;
  Quorum quorum_;
  Phase phase_ = Phase::kServing;
  /// While it agrees: the steps that it has made.
  std::int64_t step_ = 0;
  std::set<MemberId> lost_;
  std::set<std::string> newcomers_;
  /// The latest report of each other member, of this epoch or a later one.
  std::map<MemberId, Report> reports_;
  /// Who has this member's present report.
  std::set<MemberId> told_;
  /// What it has proposed as the successor of epoch_; number 0: nothing.
  Epoch proposed_;
  /// Too few are left, unless the store knows better.
  bool is_looking_ = false;
};

}  // namespace gossamer::membership
