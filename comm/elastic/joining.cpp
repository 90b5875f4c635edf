// Participant::join(): does what the rules of Newcomer say.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/elastic/newcomer.hpp"
#include "comm/elastic/participant.hpp"

namespace gossamer::membership {
namespace {

using JoinClock = std::chrono::steady_clock;

/// Between two looks at the store while a member cannot be reached, which may be dead: the others
/// then go on without it.
constexpr auto kLookPause = std::chrono::seconds(1);
/// So long a wait needs no explanation.
constexpr auto kQuietTime = std::chrono::seconds(5);

CommError joining_error(std::string_view reason, ExitCode code = ExitCode::kPeerLost) {
  return CommError({.label = {.what = "joining"}, .code = code}, reason);
}

}  // namespace

class Participant::Joining {
 public:
  Joining(Joined joined, std::size_t first)
      : joined_(std::move(joined)),
        address_(joined_.inbox->mesh().address()),
        newcomer_(address_, first) {}

  std::unique_ptr<Participant> join() {
    add(newcomer_.begin());
    while (true) {
      while (!pending_.empty()) {
        const Action action = std::move(pending_.front());
        pending_.pop_front();
        if (const Adopt* const adopt = std::get_if<Adopt>(&action)) return become(adopt->epoch);
        carry_out(action);
      }
      wait();
    }
  }

 private:
  /// Waits for an event, and handles it.
  void wait() {
    const auto now = JoinClock::now();
    const auto patience = joined_.config.patience;
    const auto quiet = std::min<std::chrono::milliseconds>(patience, kQuietTime);
    const auto end =
        has_asked_ ? now + (says_waiting_ ? patience : quiet) : std::min(next_look_, meet_by_);
    if (const auto event = joined_.inbox->next_before(end, joined_.config.while_waiting)) {
      return handle(*event);
    }
    if (has_asked_ && !says_waiting_) {
      says_waiting_ = true;
      joined_.config.logger.info(
          "is connected with all members, and waits to be let in; they may be evaluating, or "
          "saving "
          "a checkpoint");
      return;
    }
    if (has_asked_) {
      throw joining_error(
          "the members of the run have not let this process join within comm.timeout_s; they may "
          "be evaluating, or saving a checkpoint; try again, or raise comm.timeout_s");
    }
    if (JoinClock::now() >= meet_by_) throw unreachable();
    look();
  }

  void add(const Actions& actions) { std::ranges::copy(actions, std::back_inserter(pending_)); }

  void handle(const Event& event) {
    if (!event.message) return event.has_met ? meet(event.from) : lose(event);
    if (const Report* const report = std::get_if<Report>(&*event.message)) {
      // A member counts this process, and is told to send its epoch.
      for (const Action& action : Newcomer::hear(*report)) {
        if (const Ask* const ask = std::get_if<Ask>(&action)) send_question(ask->to);
      }
    } else if (const Epoch* const epoch = std::get_if<Epoch>(&*event.message)) {
      epoch->has(address_) ? add(newcomer_.learn(*epoch)) : consider(*epoch);
    } else if (const Entry* const entry = std::get_if<Entry>(&*event.message)) {
      joined_.entries[entry->epoch][event.from] = entry->text;
    } else if (const Refuse* const refuse = std::get_if<Refuse>(&*event.message)) {
      throw joining_error(concat("the run does not let this process join: ", visible(refuse->why),
                                 "; give it the configuration of the run"),
                          ExitCode::kConfig);
    } else {
      newcomer_.welcome(event.from);
    }
  }

  void carry_out(const Action& action) {
    if (const Ask* const ask = std::get_if<Ask>(&action)) {
      asked_ = ask->to;
      has_asked_ = false;
      return ask_if_met();
    }
    if (std::holds_alternative<Look>(action)) return look();
    // All members of the latest epoch are lost. Others may have come in their place.
    asked_.clear();
    has_asked_ = false;
  }

  void look() {
    next_look_ = JoinClock::now() + kLookPause;
    const Epoch latest = find_record();
    if (latest.has(address_)) return add(newcomer_.find(latest));
    consider(latest);
  }

  /// The epoch of the store. Says so when it has to wait for one.
  Epoch find_record() {
    const auto patience = joined_.config.patience;
    const auto quiet = std::min<std::chrono::milliseconds>(patience, kQuietTime);
    try {
      return joined_.record.look(quiet);
    } catch (const RecordError&) {
      throw;
    } catch (const CommError& error) {
      if (patience <= quiet) throw;
      joined_.config.logger.warning(
          concat("waits for a run to join: ", error.reason(), "; is its --run-id another one?"));
    }
    return joined_.record.look(patience - quiet);
  }

  /// Connects with the members of an epoch, which has not this process, and asks one of them.
  void consider(const Epoch& epoch) {
    const bool is_later = latest_.members.empty() || epoch.number > latest_.number;
    if (!is_later && (has_asked_ || epoch != latest_)) return;
    if (is_later) {
      latest_ = epoch;
      meet_by_ = JoinClock::now() + 2 * joined_.config.meeting;
      next_look_ = JoinClock::now() + kLookPause;
      for (const Member& member : latest_.members) joined_.inbox->mesh().watch(member.address);
    }
    add(newcomer_.find(latest_));
  }

  void meet(const std::string& address) {
    met_.insert(address);
    ask_if_met();
  }

  void lose(const Event& event) {
    joined_.lost.try_emplace(event.from, event.reason);
    // A member that was never met will not be. The others go on without it if it is dead, else this
    // process stays out.
    if (latest_.has(event.from) && !met_.contains(event.from)) {
      meet_by_ = std::min(meet_by_, JoinClock::now() + joined_.config.meeting);
    }
    if (event.from == asked_) has_asked_ = false;
    add(newcomer_.lose(event.from));
  }

  void ask_if_met() {
    if (asked_.empty() || has_asked_) return;
    const auto is_met = [this](const Member& one) { return met_.contains(one.address); };
    if (!std::ranges::all_of(latest_.members, is_met)) return;
    has_asked_ = true;
    send_question(asked_);
  }

  void send_question(const std::string& to) {
    joined_.inbox->mesh().send(
        to, encode(AskToJoin{.epoch = latest_.number, .trains = joined_.config.trains}));
  }

  [[nodiscard]] CommError unreachable() const {
    std::vector<std::string> missing;
    for (const Member& member : latest_.members) {
      if (met_.contains(member.address)) continue;
      const auto lost = joined_.lost.find(member.address);
      missing.push_back(concat("member ", member.id, " at ", member.address, ": ",
                               lost != joined_.lost.end() ? lost->second : "it does not answer"));
    }
    if (missing.empty()) return joining_error("no member of the run can be reached any more");
    return joining_error(
        concat("this process, which listens at ", address_,
               ", cannot join, because it and every member must reach each other: ",
               gossamer::join(missing, "; "),
               "; check comm.interface, comm.security and the firewalls between the hosts"));
  }

  std::unique_ptr<Participant> become(const Epoch& epoch) {
    std::unique_ptr<Participant> member(
        new Participant(std::move(joined_), epoch.find(address_)->id, epoch));
    member->begin(newcomer_.asking());
    return member;
  }

  Joined joined_;
  std::string address_;
  Newcomer newcomer_;
  std::deque<Action> pending_;
  /// The latest epoch that it knows.
  Epoch latest_;
  /// Processes that are connected with this one in both directions, or have been.
  std::set<std::string> met_;
  /// The member that lets it in; empty: there is none.
  std::string asked_;
  bool has_asked_ = false;
  bool says_waiting_ = false;
  /// When it gives up to meet the members of `latest_`.
  JoinClock::time_point meet_by_;
  JoinClock::time_point next_look_;
};

std::unique_ptr<Participant> Participant::join(std::unique_ptr<Mesh> mesh, EpochRecord record,
                                               std::size_t first, Config config) {
  auto inbox = std::make_unique<Inbox>(std::move(mesh), inbox_config(config));
  Joining joining(
      {.config = std::move(config), .inbox = std::move(inbox), .record = std::move(record)}, first);
  return joining.join();
}

}  // namespace gossamer::membership
