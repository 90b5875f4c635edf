#pragma once
// The rules by which the members of a run agree on the next epoch. Each member has an Agreement. It
// does nothing itself: it is told what happens, and returns what the member has to do.
//
// Protocol:
//
//   serving    The member exchanges. It stops when it loses a peer, when an exchange fails, when a
//              process asks to join, or when another member's report says that one has stopped.
//   agreeing   The member exchanges nothing and makes no step. It has a report: how many steps it
//              has made, whom it cannot reach, who wants to join. It sends the report to the member
//              that should propose. If it has itself lost a peer or been asked to let a process in,
//              it sends the report to all that it reaches.
//   ended      The member has left: the others go on without it, or too few are left.
//
// How the members of the next epoch are found:
//
//   1. The candidates are the members that this member reaches.
//   2. While two candidates do not reach each other, the candidate with the most lost links is
//      dropped; among equals, the one with the highest id.
//   3. The candidate with the lowest id proposes the next epoch when it has the reports of all
//      candidates. The epoch begins at the largest step of a report.
//   4. The store accepts one successor of an epoch, and answers every other proposal with it. So
//      two members may propose at the same time.
//
// Where only one end of a link reports the link as lost, the proposer waits until both ends do, or
// until it loses the silent end itself. The silent member may have died after its report; without
// the wait the epoch would keep the dead member and drop the living one.
//
// Example with the members 0, 1 and 2: the link between 1 and 2 breaks. 1 and 2 have one lost link
// each, so 2 is dropped, and 0 proposes an epoch of 0 and 1.
//
// A lost peer stays lost. If too few candidates are left for a quorum, the lowest of them looks at
// the store, because the lost members may have agreed before. If they have not, the lowest
// candidate leaves, and the next candidate looks.
//
// Cohorts (comm/cohort.hpp): an epoch has all processes of a cohort or none. A member that has lost
// its mate leaves at once. The others drop a cohort as a whole, and do not wait for what is left of
// it. Processes of a new cohort are let in when one member has been asked by all of them.
//
// Voters: a process that has just joined does not count in the quorum of its first epoch. So a host
// full of new processes that dies at once does not end the run. It counts from the next epoch on,
// which the members begin by disturb() when all have exchanged (Membership::all_vote).
//
// The duties of the code around an Agreement:
//   - Connections deliver reports in order, each of them, or end.
//   - Where lose() is called for a peer, the connection is closed in both directions, and is not
//     opened again. So the peer loses this member too.
//   - While a member agrees it watches over all members that it has told or heard, whether or not
//     it has exchanged with them before.
//   - A step under way when the member stops counts as made, since it will be.
//
// Safety, as long as the store keeps its memory:
//
// - An epoch has one successor.
// - A member that is counted has stopped before, and its steps are no more than the epoch's.
// - With the quorum `majority` two halves of a run cannot both go on.
//
// test/comm/elastic/explorer.hpp explores all orders of events for small runs.
//
// Thread safety: one thread.

#include <compare>
#include <cstdint>
#include <map>
#include <ostream>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "comm/elastic/epoch.hpp"

namespace gossamer::membership {

/// The report that a member sends to the other members when it has stopped.
struct Report {
  Member from = {};
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

/// Send the report to a process, by its address.
struct Tell {
  std::string to;
  Report report;
};
/// Send the epoch to a process: a member of this epoch or an earlier one, or a process that has
/// asked to join and is a member now.
struct Announce {
  std::string to;
  Epoch epoch;
};
/// Replaces `expected` by `desired` in the store (compare and set). find() takes the epoch that is
/// in the store afterwards. The caller may try again when no answer comes.
struct Propose {
  Epoch expected;
  Epoch desired;
};
/// Ask the store for its epoch, for find().
struct Look {
  /// The number of the epoch in which the member asks.
  std::int64_t epoch = 0;
};
/// Make the missing steps without exchanges, up to the epoch's. Then lose() the members whose
/// connection has ended, earlier or now, and exchange with the others. The member may have to stop
/// again at once; then Tell or Propose follow.
struct Adopt {
  Epoch epoch;
};
/// Ask a member to let this process join.
struct Ask {
  std::string to;
};
/// Leave the run.
struct Leave {
  enum class Why : std::uint8_t {
    /// An epoch without this member has begun.
    kFenced,
    /// A member of its cohort is lost.
    kBroken,
    /// Fewer members than the quorum reach each other.
    kTooFew,
    /// The store does not answer.
    kNoStore,
    /// Two epochs have the same number, or an epoch counts a member that has not reported. The
    /// store has lost its memory, or holds an old record that was put back.
    kForked
  };
  Why why = Why::kFenced;
};
using Action = std::variant<Tell, Announce, Propose, Look, Adopt, Ask, Leave>;
using Actions = std::vector<Action>;

class Agreement {
 public:
  enum class Phase : std::uint8_t { kServing, kAgreeing, kEnded };

  /// `epoch` has this member. A process that joins begins with the epoch that lets it in. Throws
  /// std::logic_error if the epoch lacks the member.
  Agreement(MemberId self, Epoch epoch, Quorum quorum);

  // An event. `step`: the steps that this member has made; it counts only while the member serves.

  /// The connection with a member has ended, or it has given no sign of life for too long.
  [[nodiscard]] Actions lose(MemberId peer, std::int64_t step);
  [[nodiscard]] Actions hear(const Report& report, std::int64_t step);
  /// A process asks to join, over a connection of its own. One without an address is ignored. One
  /// whose cohort has not asked as a whole waits.
  [[nodiscard]] Actions welcome(const std::string& newcomer, std::int64_t step);
  /// An exchange has failed, and this member has lost no other member; or all members have
  /// exchanged, and all may vote from now on. An epoch with the same members follows, unless
  /// another member has lost one.
  [[nodiscard]] Actions disturb(std::int64_t step);
  /// A member tells an epoch.
  [[nodiscard]] Actions learn(const Epoch& epoch);
  /// The store has `latest`. `asked`: the number of Propose::expected, or Look::epoch.
  [[nodiscard]] Actions find(std::int64_t asked, const Epoch& latest);
  /// The store does not answer, and the member will ask no more.
  [[nodiscard]] Actions give_up();

  /// While it agrees: the members from which it must hear before an epoch can begin.
  [[nodiscard]] std::vector<MemberId> awaited() const;

  [[nodiscard]] Phase phase() const { return phase_; }
  [[nodiscard]] const Epoch& epoch() const { return epoch_; }
  /// Writes all that it knows, for logs.
  friend std::ostream& operator<<(std::ostream& out, const Agreement& agreement);

 private:
  void stop(std::int64_t step);
  /// This member's report has changed, or it has a reason of its own to stop: tells all.
  void report_anew(std::int64_t step, Actions& actions);
  /// Sends this member's report to another member, unless that member has it.
  void tell(MemberId peer, Actions& actions);
  void tell_all(Actions& actions);
  /// Whether the peer is a member, and no process of its cohort is lost.
  [[nodiscard]] bool reaches(MemberId peer) const;
  [[nodiscard]] std::vector<MemberId> reached() const;
  /// The lowest member that is not lost itself, whatever has become of its cohort.
  [[nodiscard]] MemberId lowest_here() const;
  [[nodiscard]] const Report* report_of(MemberId peer) const;
  [[nodiscard]] Report own_report() const;
  /// The part of `members` that can go on together, as far as this member knows.
  [[nodiscard]] std::vector<MemberId> without_conflicts(std::vector<MemberId> members) const;
  /// The members whose reports are still needed before `members` can be proposed: members that have
  /// not reported, and both ends of a link that only one end reports as lost.
  [[nodiscard]] std::vector<MemberId> missing(const std::vector<MemberId>& members) const;
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
  /// The names of the cohorts that have lost a member.
  std::set<std::string> broken_;
  std::set<std::string> newcomers_;
  /// The latest report of each other member, of this epoch or a later one.
  std::map<MemberId, Report> reports_;
  /// Who has this member's present report.
  std::set<MemberId> told_;
  /// The epoch that this member has proposed as the successor of epoch_; number 0: none.
  Epoch proposed_;
  /// Too few are left, unless the store knows better.
  bool is_looking_ = false;
};

}  // namespace gossamer::membership
