#include "test/comm/elastic/lone_process.hpp"

#include <array>

#include "base/text.hpp"
#include "comm/cohort.hpp"

namespace gossamer::membership {
namespace {

template <class... Calls>
struct OneOf : Calls... {
  using Calls::operator()...;
};

class Reacting {
 public:
  Reacting(const Process& before, Quorum quorum)
      : quorum_(quorum), reaction_{.after = before}, process_(reaction_.after) {}

  Reaction to(const Happening& happening) {
    std::visit([this](const auto& what) { happen(what); }, happening);
    if (reaction_.why_left) {
      process_ = {.number = process_.number, .place = Process::Place::kLeft};
    }
    return std::move(reaction_);
  }

 private:
  void happen(const Report& report) {
    perform(process_.newcomer ? Newcomer::hear(report)
                              : process_.agreement->hear(report, process_.step));
  }
  void happen(const Epoch& epoch) {
    perform(process_.newcomer ? process_.newcomer->learn(epoch) : process_.agreement->learn(epoch));
  }
  void happen(const Question& question) {
    const std::string address = address_of(question.from);
    if (process_.newcomer) return process_.newcomer->welcome(address);
    perform(process_.agreement->welcome(address, process_.step));
  }
  void happen(const Closed& closed) {
    send(closed.from, Closed{process_.number});
    process_.closed.insert(closed.from);
    if (process_.newcomer) return perform(process_.newcomer->lose(address_of(closed.from)));
    lose_closed();
  }
  void happen(const Answer& answer) {
    perform(process_.newcomer ? process_.newcomer->find(answer.latest)
                              : process_.agreement->find(answer.asked, answer.latest));
  }
  void happen(const Start& start) {
    process_.place = Process::Place::kHere;
    process_.newcomer = Newcomer(address_of(process_.number), start.first);
    const Actions actions = process_.newcomer->begin();
    require(actions.size() == 1 && std::holds_alternative<Look>(actions.front()),
            "a process does not begin with a look at the store");
    perform(process_.newcomer->find(start.latest));
  }
  void happen(Training training) {
    if (training == Training::kStep) {
      ++process_.step;
    } else {
      perform(process_.agreement->disturb(process_.step));
    }
  }

  void send(int to, Happening message) {
    if (!process_.closed.contains(to)) reaction_.sent.emplace_back(to, std::move(message));
  }

  void perform(const Actions& actions) {
    std::optional<Epoch> adopted;
    for (const Action& action : actions) {
      std::visit(
          OneOf{[&](const Tell& tell) { send(process_at(tell.to), tell.report); },
                [&](const Announce& announce) { send(process_at(announce.to), announce.epoch); },
                [&](const Ask& ask) { send(process_at(ask.to), Question{process_.number}); },
                [&](const Propose& propose) { reaction_.questions.emplace_back(propose); },
                [&](const Look& look) { reaction_.questions.emplace_back(look); },
                [&](const Adopt& adopt) { adopted = adopt.epoch; },
                [&](const Leave& leave) { reaction_.why_left = leave.why; }},
          action);
      if (reaction_.why_left) return;
    }
    if (adopted) adopt(*adopted);
  }

  void adopt(const Epoch& epoch) {
    require(process_.step <= epoch.step, concat(address_of(process_.number), " goes back"));
    process_.step = epoch.step;
    reaction_.adopted.push_back(epoch);
    const std::optional<Newcomer> newcomer = std::exchange(process_.newcomer, std::nullopt);
    if (newcomer) {
      process_.agreement = Agreement(epoch.find(address_of(process_.number))->id, epoch, quorum_);
    }
    lose_closed();
    if (!newcomer) return;
    for (const std::string& other : newcomer->asking()) {
      perform(process_.agreement->welcome(other, process_.step));
    }
  }

  /// Members whose connection has ended.
  void lose_closed() {
    const std::vector<Member> members = process_.agreement->epoch().members;
    for (const Member& member : members) {
      if (process_.closed.contains(process_at(member.address))) {
        perform(process_.agreement->lose(member.id, process_.step));
      }
    }
  }

  Quorum quorum_;
  Reaction reaction_;
  Process& process_;
};

}  // namespace

void require(bool holds, const std::string& what) {
  if (!holds) throw Fault(what);
}

int mate_of(int process) {
  if (first_of_pair < 0) return -1;
  const int place = process - first_of_pair;
  return place == 0 ? process + 1 : place == 1 ? process - 1 : -1;
}

std::string address_of(int process) {
  const std::string name = {static_cast<char>('a' + process)};
  if (mate_of(process) < 0) return name;
  return with_cohort(name, {.name = "pair", .place = process - first_of_pair, .size = 2});
}
int process_at(const std::string& address) { return address[0] - 'a'; }

std::ostream& operator<<(std::ostream& out, const Happening& happening) {
  constexpr std::array kTraining = {"makes a step", "lets all members vote",
                                    "could not exchange, though it has lost nobody"};
  std::visit(
      OneOf{[&](const Report& report) {
              out << "hears from " << report.from.address << ": " << report;
            },
            [&](const Epoch& epoch) { out << "hears of " << epoch; },
            [&](const Question& question) { out << "is asked by " << address_of(question.from); },
            [&](const Closed& closed) { out << "loses " << address_of(closed.from); },
            [&](const Answer& answer) {
              out << "hears from the store, which it asked in epoch " << answer.asked << ": "
                  << answer.latest;
            },
            [&](const Start& start) {
              out << "starts, would ask number " << start.first << " first, and finds "
                  << start.latest;
            },
            [&](Training training) { out << kTraining.at(static_cast<std::size_t>(training)); }},
      happening);
  return out;
}

std::ostream& operator<<(std::ostream& out, const StoreQuestion& question) {
  if (const auto* const look = std::get_if<Look>(&question)) return out << "look " << look->epoch;
  const Propose& proposal = std::get<Propose>(question);
  return out << proposal.expected << " -> " << proposal.desired;
}

std::ostream& operator<<(std::ostream& out, const Process& process) {
  out << address_of(process.number) << ' ' << static_cast<int>(process.place) << " at step "
      << process.step << ", closed:";
  for (const int other : process.closed) out << ' ' << other;
  if (process.newcomer) out << "; " << *process.newcomer;
  if (process.agreement) out << "; " << *process.agreement;
  return out;
}

Reaction react(const Process& before, const Happening& happening, Quorum quorum) {
  return Reacting(before, quorum).to(happening);
}

}  // namespace gossamer::membership
