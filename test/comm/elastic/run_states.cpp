#include "test/comm/elastic/run_states.hpp"

#include <algorithm>
#include <iterator>
#include <variant>

namespace gossamer::membership {
RunStates::RunStates(const Setting& setting)
    : setting_(setting), num_processes_(setting.members + setting.joins) {
  if (index(num_processes_) > kMostProcesses) throw std::logic_error("too many processes");
  first_of_pair = setting.first_of_pair;
  // Number 0 is the empty queue.
  (void)queues_({});
}

State RunStates::first() {
  Epoch epoch{.num_voters = setting_.members, .next_id = setting_.members};
  for (int id = 0; id < setting_.members; ++id) epoch.members.push_back({id, address_of(id)});
  State state;
  state.line = lines_({epoch});
  for (int one = 0; one < num_processes_; ++one) {
    Process process{.number = one};
    if (one < setting_.members) {
      // They are not all equally far.
      process.step = one % 2;
      process.agreement = Agreement(one, epoch, setting_.quorum);
    } else {
      process.place = Process::Place::kNotStarted;
    }
    state.sites[index(one)] = sites_({.process = processes_(process)});
  }
  const auto count = [](int times) { return static_cast<std::uint16_t>(times); };
  state.left = {.deaths = count(setting_.deaths),
                .broken_connections = count(setting_.broken_connections),
                .disturbances = count(setting_.disturbances),
                .joins = count(setting_.joins),
                .steps = count(setting_.steps)};
  return state;
}

std::vector<Event> RunStates::due(const State& state) const {
  using Kind = Event::Kind;
  std::vector<Event> events;
  for (int one = 0; one < num_processes_; ++one) {
    const Site& at = site(state, one);
    const bool is_here = process(at).is_here();
    for (int from = 0; is_here && from < num_processes_; ++from) {
      const Number messages = at.messages[index(from)];
      if (messages == 0) continue;
      events.push_back({Kind::kArrive, one, from});
      if (queues_[messages].size() > 1 && ends(messages)) events.push_back({Kind::kCut, one, from});
    }
    if (at.questions != 0) {
      events.push_back({Kind::kStore, one});
      if (!is_here) events.push_back({Kind::kDrop, one});
    }
    if (at.answers != 0) events.push_back({Kind::kAnswer, one});
  }
  return events;
}

std::vector<Event> RunStates::possible(const State& state) const {
  using Kind = Event::Kind;
  std::vector<Event> events;
  const auto train = [&](int one, Training training) {
    events.push_back({Kind::kTrain, one, static_cast<int>(training)});
  };
  bool may_start = state.left.joins > 0;
  for (int one = 0; one < num_processes_; ++one) {
    const Process& known = process(site(state, one));
    if (known.place == Process::Place::kNotStarted && std::exchange(may_start, false)) {
      // Mates ask the same member.
      const std::int64_t num_first = mate_of(one) < 0 ? std::ssize(epoch(state).members) : 1;
      for (int first = 0; first < num_first; ++first) {
        events.push_back({Kind::kJoin, one, first});
      }
    }
    if (!known.is_here()) continue;
    if (known.trains()) {
      if (state.left.steps > 0) train(one, Training::kStep);
      if (state.left.disturbances > 0) train(one, Training::kDisturb);
      if (should_confirm(known)) train(one, Training::kConfirm);
    }
    if (state.left.deaths > 0) events.push_back({Kind::kDie, one});
    for (int other = one + 1; state.left.broken_connections > 0 && other < num_processes_;
         ++other) {
      const Process& peer = process(site(state, other));
      if (!peer.is_here() || peer.closed.contains(one) || known.closed.contains(other)) continue;
      events.push_back({Kind::kBreak, one, other});
    }
  }
  return events;
}

bool RunStates::should_confirm(const Process& process) const {
  const Epoch& epoch = process.agreement->epoch();
  return epoch.num_voters < std::ssize(epoch.members) &&
         epoch.members.front().address == address_of(process.number);
}

/// Whether the connection ends after these messages.
bool RunStates::ends(Number queue) const {
  const Queue& messages = queues_[queue];
  return !messages.empty() && std::holds_alternative<Closed>(happenings_[messages.back()]);
}

std::optional<Happening> RunStates::happening(const State& state, const Event& event) const {
  using Kind = Event::Kind;
  const Site& at = site(state, event.one);
  switch (event.kind) {
    case Kind::kArrive:
      return happenings_[queues_[at.messages[index(event.other)]].front()];
    case Kind::kAnswer:
      return happenings_[queues_[at.answers].front()];
    case Kind::kTrain:
      return static_cast<Training>(event.other);
    case Kind::kJoin:
      return Start{.first = index(event.other), .latest = epoch(state)};
    default:
      return std::nullopt;
  }
}

std::string RunStates::describe(const State& state, const Event& event) const {
  using Kind = Event::Kind;
  const std::string one = address_of(event.one);
  if (const auto what = happening(state, event)) return concat(one, ' ', *what);
  switch (event.kind) {
    case Kind::kCut:
      return concat("what ", address_of(event.other), " has sent to ", one, " is lost");
    case Kind::kStore:
      return concat("the store answers ", one);
    case Kind::kDrop:
      return concat("the store never hears what ", one, " has asked");
    case Kind::kDie:
      return concat(one, " dies");
    default:
      return concat("the connection of ", one, " and ", address_of(event.other), " breaks");
  }
}

State RunStates::after(const State& state, const Event& event) {
  using Kind = Event::Kind;
  Run run{.line = state.line, .left = state.left, .broken = state.broken};
  for (int one = 0; one < num_processes_; ++one) run.sites[index(one)] = site(state, one);
  Site& at = run.sites[index(event.one)];
  switch (event.kind) {
    case Kind::kArrive:
      happen(run, event.one, take(at.messages[index(event.other)]));
      break;
    case Kind::kCut: {
      Number& messages = at.messages[index(event.other)];
      messages = queues_({queues_[messages].back()});
      break;
    }
    case Kind::kStore:
      answer(run, event.one);
      break;
    case Kind::kDrop:
      take(at.questions);
      break;
    case Kind::kAnswer:
      happen(run, event.one, take(at.answers));
      break;
    case Kind::kTrain:
      if (event.other == static_cast<int>(Training::kStep)) --run.left.steps;
      if (event.other == static_cast<int>(Training::kDisturb)) --run.left.disturbances;
      happen(run, event.one, happenings_(*happening(state, event)));
      break;
    case Kind::kJoin:
      --run.left.joins;
      happen(run, event.one, happenings_(*happening(state, event)));
      break;
    case Kind::kDie:
      --run.left.deaths;
      at.process = processes_({.number = event.one, .place = Process::Place::kDead});
      end(run, event.one);
      break;
    case Kind::kBreak:
      --run.left.broken_connections;
      run.broken = static_cast<std::uint16_t>(run.broken | bit(event.one) | bit(event.other));
      send(run, event.one, event.other, happenings_(Closed{event.one}));
      send(run, event.other, event.one, happenings_(Closed{event.other}));
      break;
  }
  tidy(run);
  State next{.line = run.line, .left = run.left, .broken = run.broken};
  for (int one = 0; one < num_processes_; ++one) {
    const Site& now = run.sites[index(one)];
    next.sites[index(one)] = now == site(state, one) ? state.sites[index(one)] : sites_(now);
  }
  return next;
}

const RunStates::KnownReaction& RunStates::reaction(Number process, Number happening) {
  const std::uint64_t key = (std::uint64_t{process} << 32U) | happening;
  const auto found = reactions_.find(key);
  if (found != reactions_.end()) return found->second;
  const Reaction reaction = react(processes_[process], happenings_[happening], setting_.quorum);
  KnownReaction known{.after = processes_(reaction.after),
                      .adopted = reaction.adopted,
                      .why_left = reaction.why_left};
  for (const auto& [to, message] : reaction.sent) known.sent.emplace_back(to, happenings_(message));
  for (const StoreQuestion& question : reaction.questions) {
    known.questions.push_back(questions_(question));
  }
  return reactions_.emplace(key, std::move(known)).first->second;
}

void RunStates::happen(Run& run, int one, Number happening) {
  Site& at = run.sites[index(one)];
  const KnownReaction& known = reaction(at.process, happening);
  const Line& line = lines_[run.line];
  for (const Epoch& epoch : known.adopted) {
    require(std::ranges::find(line, epoch) != line.end(),
            concat(address_of(one), " adopts an epoch that the store never had"));
  }
  if (known.why_left) check_leaving(run, one, *known.why_left, happenings_[happening]);
  at.process = known.after;
  for (const auto& [to, message] : known.sent) send(run, one, to, message);
  for (const Number question : known.questions) add(at.questions, question);
  if (known.why_left) end(run, one);
}

void RunStates::send(Run& run, int from, int to, Number message) {
  Site& at = run.sites[index(to)];
  Number& messages = at.messages[index(from)];
  const Process& receiver = process(at);
  if (receiver.is_gone() || receiver.closed.contains(from) || ends(messages)) {
    return;
  }
  add(messages, message);
}

/// A process has died or left. What it has asked the store may still come there.
void RunStates::end(Run& run, int one) {
  Site& at = run.sites[index(one)];
  at = {.process = at.process, .questions = at.questions};
  const Number closed = happenings_(Closed{one});
  for (int other = 0; other < num_processes_; ++other) {
    if (other != one) send(run, one, other, closed);
  }
}

void RunStates::answer(Run& run, int one) {
  Site& at = run.sites[index(one)];
  const StoreQuestion& question = questions_[take(at.questions)];
  const auto* const proposal = std::get_if<Propose>(&question);
  if (proposal != nullptr &&
      (lines_[run.line].back() == proposal->expected || !setting_.store_compares)) {
    check_proposal(run, one, *proposal);
    Line longer = lines_[run.line];
    longer.push_back(proposal->desired);
    run.line = lines_(longer);
  }
  if (!process(at).is_here()) return;
  const std::int64_t asked =
      proposal != nullptr ? proposal->expected.number : std::get<Look>(question).epoch;
  add(at.answers, happenings_(Answer{.asked = asked, .latest = lines_[run.line].back()}));
}

Number RunStates::take(Number& queue) {
  Queue rest = queues_[queue];
  const Number first = rest.front();
  rest.erase(rest.begin());
  queue = queues_(rest);
  return first;
}

void RunStates::add(Number& queue, Number entry) {
  Queue longer = queues_[queue];
  longer.push_back(entry);
  queue = queues_(longer);
}

template <class Predicate>
void RunStates::drop_if(Number& queue, const Predicate& predicate) {
  const Queue& before = queues_[queue];
  if (std::ranges::none_of(before, predicate)) return;
  Queue rest = before;
  std::erase_if(rest, predicate);
  queue = queues_(rest);
}

void RunStates::tidy(Run& run) {
  tidy_line(run);
  const Epoch& last = lines_[run.line].back();
  for (int one = 0; one < num_processes_; ++one) {
    Site& at = run.sites[index(one)];
    const Process& known = process(at);
    if (known.is_gone()) {
      drop_if(at.questions, [&](Number question) {
        const auto* const proposal = std::get_if<Propose>(&questions_[question]);
        return proposal == nullptr || (setting_.store_compares && proposal->expected != last);
      });
    }
    if (!known.is_here() || !known.agreement) continue;
    const Epoch& own = known.agreement->epoch();
    const auto is_past = [&](const Epoch& epoch) {
      return epoch.number < own.number || epoch == own;
    };
    for (Number& messages : at.messages) {
      drop_if(messages, [&](Number message) {
        const auto* const epoch = std::get_if<Epoch>(&happenings_[message]);
        return epoch != nullptr && is_past(*epoch);
      });
    }
    drop_if(at.answers, [&](Number number) {
      const Answer& answer = std::get<Answer>(happenings_[number]);
      return answer.asked < own.number && is_past(answer.latest);
    });
  }
}

void RunStates::tidy_line(Run& run) {
  const Line& line = lines_[run.line];
  auto first = line.end() - 1;
  for (int one = 0; one < num_processes_; ++one) {
    const Process& known = process(run.sites[index(one)]);
    if (!known.is_here()) continue;
    first = std::min(first, std::ranges::find_if(line, [&](const Epoch& epoch) {
                       return known.agreement ? epoch == known.agreement->epoch()
                                              : epoch.has(address_of(one));
                     }));
  }
  if (first != line.begin()) run.line = lines_(Line(first, line.end()));
}

bool RunStates::trains(const State& state) const {
  for (int one = 0; one < num_processes_; ++one) {
    if (process(site(state, one)).trains()) return true;
  }
  return false;
}

}  // namespace gossamer::membership
