// Participant::join(): does what the rules of Newcomer say.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "base/error.hpp"
#include "comm/membership/newcomer.hpp"
#include "comm/membership/participant.hpp"

namespace gossamer::membership {

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
      handle(next());
    }
  }

 private:
  static CommError error(std::string_view reason) {
    return CommError({.label = {.what = "joining"}}, reason);
  }

  Event next() {
    const auto end = std::chrono::steady_clock::now() + joined_.config.patience;
    auto event = joined_.inbox->next_before(end, joined_.config.while_waiting);
    if (event) return *std::move(event);
    throw error(
        "the members of the run have not let this process join within comm.timeout_s; they may be "
        "evaluating, or saving a checkpoint; try again, or raise comm.timeout_s");
  }

  void add(const Actions& actions) { std::ranges::copy(actions, std::back_inserter(pending_)); }

  void handle(const Event& event) {
    if (!event.message) {
      joined_.lost.insert(event.from);
      return add(newcomer_.lose(event.from));
    }
    if (const Report* const report = std::get_if<Report>(&*event.message)) {
      add(Newcomer::hear(*report));
    } else if (const Epoch* const epoch = std::get_if<Epoch>(&*event.message)) {
      add(newcomer_.learn(*epoch));
    } else if (const Entry* const entry = std::get_if<Entry>(&*event.message)) {
      joined_.entries[entry->epoch][event.from] = entry->text;
    } else {
      newcomer_.welcome(event.from);
    }
  }

  void carry_out(const Action& action) {
    if (const Ask* const ask = std::get_if<Ask>(&action)) {
      joined_.inbox->mesh().send(ask->to, encode(AskToJoin{}));
    } else if (std::holds_alternative<Look>(action)) {
      add(newcomer_.find(joined_.record.look(joined_.config.patience)));
    } else {
      throw error("no member of the run can be reached");
    }
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
};

std::unique_ptr<Participant> Participant::join(std::unique_ptr<Mesh> mesh, EpochRecord record,
                                               std::size_t first, Config config) {
  auto inbox = std::make_unique<Inbox>(std::move(mesh), config.logger, config.holds);
  Joining joining(
      {.config = std::move(config), .inbox = std::move(inbox), .record = std::move(record)}, first);
  return joining.join();
}

}  // namespace gossamer::membership
