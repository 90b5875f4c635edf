#include "test/comm/membership/explorer.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/text.hpp"

namespace gossamer::membership {
namespace {

/// The connection has ended.
struct Closed {};
/// The process asks to let it join.
struct Ask {};
using Letter = std::variant<Report, Epoch, Ask, Closed>;
/// To the store.
using Question = std::variant<Propose, Look>;
/// From one process to another.
using Way = std::pair<int, int>;

struct Process {
  bool has_started = true;
  bool is_alive = true;
  /// By its own will.
  bool has_left = false;
  std::int64_t step = 0;
  std::optional<Agreement> agreement = {};
  /// Processes that it does not reach any more.
  std::set<int> closed = {};
  /// Processes that have asked it to let them join, before it was a member itself.
  std::set<int> asking = {};

  [[nodiscard]] bool is_here() const { return has_started && is_alive && !has_left; }
  [[nodiscard]] bool trains() const {
    return is_here() && agreement && agreement->phase() == Agreement::Phase::kServing;
  }
};

class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void require(bool holds, const std::string& what) {
  if (!holds) throw Fault(what);
}

std::string address_of(int process) { return {static_cast<char>('a' + process)}; }
int process_at(const std::string& address) { return address[0] - 'a'; }

std::ostream& operator<<(std::ostream& out, const Letter& letter) {
  if (const auto* epoch = std::get_if<Epoch>(&letter)) return out << *epoch;
  if (const auto* report = std::get_if<Report>(&letter)) return out << *report;
  return out << (std::holds_alternative<Ask>(letter) ? "let me join" : "the end");
}

template <class Thing>
Thing take(std::vector<Thing>& queue) {
  Thing first = std::move(queue.front());
  queue.erase(queue.begin());
  return first;
}

/// A state of the whole run, and what may happen in it.
class Run {
 public:
  explicit Run(const Setting& setting) : left_(setting) {
    Epoch first{.next_id = setting.members};
    for (int id = 0; id < setting.members; ++id) first.members.push_back({id, address_of(id)});
    line_.push_back(first);
    for (int id = 0; id < setting.members; ++id) {
      // They are not all equally far.
      processes_.push_back({.step = id % 2, .agreement = Agreement(id, first, setting.quorum)});
    }
    for (int i = 0; i < setting.joins; ++i) processes_.push_back({.has_started = false});
  }

  struct Event {
    enum class Kind : std::uint8_t { kArrive, kCut, kStore, kAnswer, kStep, kJoin, kDie, kBreak };
    Kind kind = Kind::kArrive;
    int one = 0;
    int other = 0;
  };

  /// What happens sooner or later.
  [[nodiscard]] std::vector<Event> due() const {
    using Kind = Event::Kind;
    std::vector<Event> events;
    for (const auto& [way, letters] : channels_) {
      if (letters.empty() || !processes_[index(way.second)].is_here()) continue;
      events.push_back({Kind::kArrive, way.first, way.second});
      if (letters.size() > 1 && std::holds_alternative<Closed>(letters.back())) {
        events.push_back({Kind::kCut, way.first, way.second});
      }
    }
    for (const auto& [process, questions] : questions_) {
      if (!questions.empty()) events.push_back({Kind::kStore, process});
    }
    for (const auto& [process, answers] : answers_) {
      if (!answers.empty()) events.push_back({Kind::kAnswer, process});
    }
    return events;
  }

  /// What may happen or not.
  [[nodiscard]] std::vector<Event> possible() const {
    using Kind = Event::Kind;
    std::vector<Event> events;
    for (int one = 0; one < num_processes(); ++one) {
      const Process& process = processes_[index(one)];
      if (process.has_started || left_.joins == 0) continue;
      for (const Member& member : line_.back().members) {
        events.push_back({Kind::kJoin, one, process_at(member.address)});
      }
      break;
    }
    for (int one = 0; one < num_processes(); ++one) {
      const Process& process = processes_[index(one)];
      if (!process.is_here()) continue;
      if (left_.steps > 0 && process.trains()) events.push_back({Kind::kStep, one});
      if (left_.deaths > 0) events.push_back({Kind::kDie, one});
      for (int other = one + 1; left_.broken_connections > 0 && other < num_processes(); ++other) {
        if (processes_[index(other)].is_here()) events.push_back({Kind::kBreak, one, other});
      }
    }
    return events;
  }

  void apply(const Event& event) {
    using Kind = Event::Kind;
    switch (event.kind) {
      case Kind::kArrive:
        return arrive(event.one, event.other);
      case Kind::kCut:
        return cut(event.one, event.other);
      case Kind::kStore:
        return answer(event.one);
      case Kind::kAnswer: {
        const Epoch latest = take(answers_[event.one]);
        return perform(event.one, processes_[index(event.one)].agreement->find(latest));
      }
      case Kind::kStep:
        --left_.steps;
        ++processes_[index(event.one)].step;
        return;
      case Kind::kJoin:
        return join(event.one, event.other);
      case Kind::kDie:
        return die(event.one);
      case Kind::kBreak:
        --left_.broken_connections;
        close(event.one, event.other);
        close(event.other, event.one);
        return;
    }
  }

  [[nodiscard]] std::string describe(const Event& event) const {
    using Kind = Event::Kind;
    const std::string one = address_of(event.one);
    const std::string other = address_of(event.other);
    switch (event.kind) {
      case Kind::kArrive: {
        const Letter& letter = channels_.at({event.one, event.other}).front();
        return concat(other, " hears from ", one, ": ", letter);
      }
      case Kind::kCut:
        return concat("what ", one, " has sent to ", other, " is lost");
      case Kind::kStore:
        return concat("the store answers ", one);
      case Kind::kAnswer:
        return concat("the store's answer comes to ", one);
      case Kind::kStep:
        return concat(one, " makes a step");
      case Kind::kJoin:
        return concat(one, " starts, and asks ", other, " first");
      case Kind::kDie:
        return concat(one, " dies");
      case Kind::kBreak:
        return concat("the connection of ", one, " and ", other, " breaks");
    }
    return {};
  }

  /// All that tells this state from others.
  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << left_.deaths << ' ' << left_.broken_connections << ' ' << left_.joins << ' '
        << left_.steps << has_late_epoch_;
    for (const Process& process : processes_) {
      out << '\n' << process.has_started << process.is_alive << process.has_left << process.step;
      for (const int other : process.closed) out << ' ' << other;
      for (const int other : process.asking) out << '?' << other;
      if (process.agreement && process.is_here()) out << *process.agreement;
    }
    for (const auto& [way, letters] : channels_) {
      if (letters.empty()) continue;
      out << '\n' << way.first << '>' << way.second;
      for (const Letter& letter : letters) out << ' ' << letter;
    }
    for (const auto& [process, questions] : questions_) {
      for (const Question& question : questions) {
        out << '\n' << process << '?';
        if (const auto* proposal = std::get_if<Propose>(&question)) {
          out << proposal->expected.number << proposal->desired;
        }
      }
    }
    for (const auto& [process, answers] : answers_) {
      for (const Epoch& epoch : answers) out << '\n' << process << '!' << epoch.number;
    }
    for (const Epoch& epoch : line_) out << '\n' << epoch;
    return out.str();
  }

  /// Checks a state in which nothing is due.
  void check_end(const Setting& setting) const {
    const Epoch& last = line_.back();
    std::size_t num_alive = 0;
    for (const Member& member : last.members) {
      if (processes_[index(process_at(member.address))].is_alive) ++num_alive;
    }
    for (int one = 0; one < num_processes(); ++one) {
      const Process& process = processes_[index(one)];
      if (!process.is_here()) continue;
      require(process.agreement.has_value(), concat(address_of(one), " waits to be let in"));
      require(process.trains(), concat(address_of(one), " waits for ever"));
      require(process.agreement->epoch() == last, concat(address_of(one), " is in an old epoch"));
      require(num_alive == last.members.size(), "an epoch has a dead member");
    }
    if (left_.broken_connections != setting.broken_connections || has_late_epoch_) return;
    if (!setting.quorum.is_met(num_alive, last.members.size())) return;
    require(std::ranges::any_of(processes_, &Process::trains), "all have left in vain");
  }

  [[nodiscard]] bool trains() const { return std::ranges::any_of(processes_, &Process::trains); }
  [[nodiscard]] const Epoch& last() const { return line_.back(); }

 private:
  static std::size_t index(int process) { return static_cast<std::size_t>(process); }
  [[nodiscard]] int num_processes() const { return static_cast<int>(processes_.size()); }

  /// The process with this id.
  [[nodiscard]] int process_of(MemberId id) const {
    for (const Epoch& epoch : line_) {
      const auto found = std::ranges::find(epoch.members, id, &Member::id);
      if (found != epoch.members.end()) return process_at(found->address);
    }
    throw Fault(concat("nobody has the id ", id));
  }

  void send(int from, int to, Letter letter) {
    std::vector<Letter>& letters = channels_[{from, to}];
    const bool has_ended = !letters.empty() && std::holds_alternative<Closed>(letters.back());
    const Process& receiver = processes_[index(to)];
    if (has_ended || processes_[index(from)].closed.contains(to) ||
        receiver.closed.contains(from) || !receiver.is_alive || receiver.has_left) {
      return;
    }
    letters.push_back(std::move(letter));
  }
  void close(int from, int to) { send(from, to, Closed{}); }

  void end(int one) {
    for (int other = 0; other < num_processes(); ++other) {
      if (other == one) continue;
      close(one, other);
      channels_[{other, one}].clear();
    }
    // What it has asked the store may still come there.
    answers_.erase(one);
  }

  void die(int one) {
    --left_.deaths;
    processes_[index(one)].is_alive = false;
    end(one);
  }

  void join(int one, int other) {
    --left_.joins;
    processes_[index(one)].has_started = true;
    send(one, other, Ask{});
  }

  /// What a process does that has lost the member that it has asked.
  void ask(int one) {
    Process& process = processes_[index(one)];
    if (line_.back().has(address_of(one))) return learn(one, line_.back());
    for (const Member& member : line_.back().members) {
      const int other = process_at(member.address);
      if (!process.closed.contains(other)) return send(one, other, Ask{});
    }
    process.has_left = true;
    end(one);
  }

  void arrive(int from, int to) {
    const Letter letter = take(channels_[{from, to}]);
    Process& process = processes_[index(to)];
    const std::int64_t step = process.step;
    if (std::holds_alternative<Closed>(letter)) return lose(from, to);
    if (const auto* epoch = std::get_if<Epoch>(&letter)) return learn(to, *epoch);
    if (!process.agreement) {
      // A report means that somebody counts this process already.
      if (std::holds_alternative<Report>(letter)) send(to, from, Ask{});
      if (std::holds_alternative<Ask>(letter)) process.asking.insert(from);
      return;
    }
    if (const auto* report = std::get_if<Report>(&letter)) {
      return perform(to, process.agreement->hear(*report, step));
    }
    perform(to, process.agreement->welcome(address_of(from), step));
  }

  void cut(int from, int to) { channels_[{from, to}] = {Closed{}}; }

  void lose(int from, int to) {
    close(to, from);
    Process& process = processes_[index(to)];
    process.closed.insert(from);
    if (!process.agreement) return ask(to);
    lose_closed(to);
  }

  /// Members whose connection has ended.
  void lose_closed(int one) {
    Process& process = processes_[index(one)];
    const std::vector<Member> members = process.agreement->epoch().members;
    for (const Member& member : members) {
      if (!process.closed.contains(process_at(member.address))) continue;
      perform(one, process.agreement->lose(member.id, process.step));
    }
  }

  void answer(int one) {
    const Question question = take(questions_[one]);
    const bool is_here = processes_[index(one)].is_here();
    if (const auto* proposal = std::get_if<Propose>(&question)) {
      if (line_.back() == proposal->expected || !left_.store_compares) {
        succeed(*proposal);
        if (!is_here) has_late_epoch_ = true;
      }
    }
    if (is_here) answers_[one].push_back(line_.back());
  }

  /// The proposal becomes the next epoch.
  void succeed(const Propose& proposal) {
    const Epoch& before = proposal.expected;
    const Epoch& next = proposal.desired;
    require(next.number == before.number + 1, "an epoch has a wrong number");
    std::size_t num_kept = 0;
    for (const Member& member : next.members) {
      const Process& process = processes_[index(process_at(member.address))];
      if (!before.has(member.id)) {
        require(member.id >= before.next_id && member.id < next.next_id, "an id is given twice");
        require(!before.has(member.address), "a process is counted twice");
        continue;
      }
      ++num_kept;
      if (!process.is_here()) continue;
      require(!process.trains() || process.agreement->epoch().number < before.number,
              concat(member.address, " trains while others go on"));
      require(process.step <= next.step, concat(member.address, " would go back"));
    }
    const std::int64_t least = left_.quorum.least;
    require(least > 0 ? static_cast<std::int64_t>(num_kept) >= least
                      : num_kept > before.members.size() - num_kept,
            "an epoch has no quorum");
    line_.push_back(next);
  }

  void learn(int one, const Epoch& epoch) {
    Process& process = processes_[index(one)];
    if (process.agreement) return perform(one, process.agreement->learn(epoch));
    const auto found = std::ranges::find(epoch.members, address_of(one), &Member::address);
    if (found == epoch.members.end()) return;
    process.agreement = Agreement(found->id, epoch, left_.quorum);
    adopt(one, epoch);
    lose_closed(one);
    for (const int other : std::exchange(process.asking, {})) {
      perform(one, process.agreement->welcome(address_of(other), process.step));
    }
  }

  void adopt(int one, const Epoch& epoch) {
    Process& process = processes_[index(one)];
    require(index(static_cast<int>(epoch.number)) < line_.size() &&
                line_[index(static_cast<int>(epoch.number))] == epoch,
            concat(address_of(one), " adopts an epoch that the store never had"));
    require(process.step <= epoch.step, concat(address_of(one), " goes back"));
    process.step = epoch.step;
  }

  void perform(int one, const Actions& actions) {
    bool has_adopted = false;
    for (const Action& action : actions) {
      if (const auto* tell = std::get_if<Tell>(&action)) {
        send(one, process_of(tell->to), tell->report);
      } else if (const auto* announce = std::get_if<Announce>(&action)) {
        send(one, process_of(announce->to), announce->epoch);
      } else if (const auto* admit = std::get_if<Admit>(&action)) {
        send(one, process_at(admit->to), admit->epoch);
      } else if (const auto* propose = std::get_if<Propose>(&action)) {
        questions_[one].emplace_back(*propose);
      } else if (std::holds_alternative<Look>(action)) {
        questions_[one].emplace_back(Look{});
      } else if (const auto* adoption = std::get_if<Adopt>(&action)) {
        adopt(one, adoption->epoch);
        has_adopted = true;
      } else {
        processes_[index(one)].has_left = true;
        end(one);
        return;
      }
    }
    if (has_adopted) lose_closed(one);
  }

  std::vector<Process> processes_;
  std::map<Way, std::vector<Letter>> channels_;
  /// To the store.
  std::map<int, std::vector<Question>> questions_;
  std::map<int, std::vector<Epoch>> answers_;
  /// The epochs that the store has had; the last is there now.
  std::vector<Epoch> line_;
  /// The store has taken a proposal of a process that was gone. Others may have left before.
  bool has_late_epoch_ = false;
  /// What may still happen.
  Setting left_;
};

class Explorer {
 public:
  explicit Explorer(const Setting& setting) : setting_(setting) {}

  Exploration run() {
    try {
      visit(Run(setting_));
    } catch (const Fault& fault) {
      result_.fault = fault.what();
      Run run(setting_);
      for (const Run::Event& event : way_) {
        result_.fault += concat("\n  ", run.describe(event));
        // The last event may be the one at fault.
        if (&event != &way_.back()) run.apply(event);
      }
    }
    result_.states = static_cast<std::int64_t>(seen_.size());
    return result_;
  }

 private:
  void visit(const Run& run) {
    const std::size_t hash = std::hash<std::string>{}(run.text());
    const auto [found, is_new] = seen_.try_emplace(hash, true);
    if (!is_new) {
      require(!found->second, "the same state comes again: the members may talk for ever");
      return;
    }
    result_.epochs = std::max(result_.epochs, run.last().number);
    const std::vector<Run::Event> due = run.due();
    if (due.empty()) {
      ++result_.ends;
      if (run.trains()) ++result_.training;
      run.check_end(setting_);
    }
    for (const auto& events : {due, run.possible()}) {
      for (const Run::Event& event : events) {
        way_.push_back(event);
        Run next = run;
        next.apply(event);
        visit(next);
        way_.pop_back();
      }
    }
    seen_[hash] = false;
  }

  Setting setting_;
  /// States by their hash; true: on the way to the present one.
  std::unordered_map<std::size_t, bool> seen_;
  /// The events that lead to the present state.
  std::vector<Run::Event> way_;
  Exploration result_;
};

}  // namespace

Exploration explore(const Setting& setting) { return Explorer(setting).run(); }

}  // namespace gossamer::membership
