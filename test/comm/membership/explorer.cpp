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
#include "comm/membership/agreement.hpp"
#include "comm/membership/newcomer.hpp"

namespace gossamer::membership {
namespace {

/// The connection has ended.
struct Closed {};
/// The process asks to let it join.
struct Question {};
using Letter = std::variant<Report, Epoch, Question, Closed>;
/// To the store.
using StoreQuestion = std::variant<Propose, Look>;
/// Of the store: the epoch in which it was asked, and the one that it has.
using Answer = std::pair<std::int64_t, Epoch>;
/// From one process to another.
using Way = std::pair<int, int>;

struct Process {
  bool has_started = true;
  bool is_alive = true;
  /// By its own will.
  bool has_left = false;
  std::int64_t step = 0;
  /// While it is no member.
  std::optional<Newcomer> newcomer = {};
  std::optional<Agreement> agreement = {};
  /// Processes that it does not reach any more.
  std::set<int> closed = {};

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
  return out << (std::holds_alternative<Question>(letter) ? "let me join" : "the end");
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
    Epoch first{.num_voters = setting.members, .next_id = setting.members};
    for (int id = 0; id < setting.members; ++id) first.members.push_back({id, address_of(id)});
    line_.push_back(first);
    for (int id = 0; id < setting.members; ++id) {
      // They are not all equally far.
      processes_.push_back({.step = id % 2, .agreement = Agreement(id, first, setting.quorum)});
    }
    for (int i = 0; i < setting.joins; ++i) processes_.push_back({.has_started = false});
  }

  struct Event {
    enum class Kind : std::uint8_t {
      kArrive,
      kCut,
      kStore,
      kDrop,
      kAnswer,
      kConfirm,
      kStep,
      kJoin,
      kDie,
      kBreak
    };
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
      if (questions.empty()) continue;
      events.push_back({Kind::kStore, process});
      if (!processes_[index(process)].is_here()) events.push_back({Kind::kDrop, process});
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
      for (int first = 0; first < std::ssize(line_.back().members); ++first) {
        events.push_back({Kind::kJoin, one, first});
      }
      break;
    }
    for (int one = 0; one < num_processes(); ++one) {
      const Process& process = processes_[index(one)];
      if (!process.is_here()) continue;
      if (left_.steps > 0 && process.trains()) events.push_back({Kind::kStep, one});
      if (process.trains() && should_confirm(one)) events.push_back({Kind::kConfirm, one});
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
      case Kind::kDrop:
        take(questions_[event.one]);
        return;
      case Kind::kAnswer:
        return find(event.one);
      case Kind::kConfirm: {
        Process& process = processes_[index(event.one)];
        return perform(event.one, process.agreement->confirm(process.step));
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
      case Kind::kDrop:
        return concat("the store never hears what ", one, " has asked");
      case Kind::kConfirm:
        return concat(one, " lets all members vote");
      case Kind::kAnswer:
        return concat("the store's answer comes to ", one);
      case Kind::kStep:
        return concat(one, " makes a step");
      case Kind::kJoin:
        return concat(one, " starts, and asks member ", event.other, " first");
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
      if (!process.is_here()) continue;
      if (process.agreement) out << *process.agreement;
      if (process.newcomer) out << *process.newcomer;
    }
    for (const auto& [way, letters] : channels_) {
      if (letters.empty()) continue;
      out << '\n' << way.first << '>' << way.second;
      for (const Letter& letter : letters) out << ' ' << letter;
    }
    for (const auto& [process, questions] : questions_) {
      for (const StoreQuestion& question : questions) {
        out << '\n' << process << '?';
        if (const auto* proposal = std::get_if<Propose>(&question)) {
          out << proposal->expected.number << proposal->desired;
        }
      }
    }
    for (const auto& [process, answers] : answers_) {
      for (const auto& [asked, epoch] : answers) {
        out << '\n' << process << '!' << asked << ' ' << epoch.number;
      }
    }
    for (const Epoch& epoch : line_) out << '\n' << epoch;
    return out.str();
  }

  /// Checks a state in which nothing is due.
  void check_end(const Setting& setting) const {
    const Epoch& last = line_.back();
    std::vector<MemberId> alive;
    std::size_t num_here = 0;
    for (const Member& member : last.members) {
      const Process& process = processes_[index(process_at(member.address))];
      if (process.is_alive) alive.push_back(member.id);
      if (process.is_here()) ++num_here;
    }
    for (int one = 0; one < num_processes(); ++one) {
      const Process& process = processes_[index(one)];
      if (!process.is_here()) continue;
      require(process.agreement.has_value(), concat(address_of(one), " waits to be let in"));
      require(process.trains(), concat(address_of(one), " waits for ever"));
      require(process.agreement->epoch() == last, concat(address_of(one), " is in an old epoch"));
      require(num_here == last.members.size(), "an epoch has a member that is gone");
    }
    if (left_.broken_connections != setting.broken_connections || has_late_epoch_) return;
    if (setting.quorum.is_met(alive, last)) require(trains(), "all have left in vain");
  }

  [[nodiscard]] bool trains() const { return std::ranges::any_of(processes_, &Process::trains); }
  [[nodiscard]] const Epoch& last() const { return line_.back(); }

 private:
  static std::size_t index(int process) { return static_cast<std::size_t>(process); }
  [[nodiscard]] int num_processes() const { return static_cast<int>(processes_.size()); }

  [[nodiscard]] bool should_confirm(int one) const {
    const Epoch& epoch = processes_[index(one)].agreement->epoch();
    return epoch.num_voters < std::ssize(epoch.members) &&
           epoch.members.front().address == address_of(one);
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

  void join(int one, int first) {
    --left_.joins;
    Process& process = processes_[index(one)];
    process.has_started = true;
    process.newcomer = Newcomer(address_of(one), static_cast<std::size_t>(first));
    perform(one, process.newcomer->begin());
  }

  void arrive(int from, int to) {
    const Letter letter = take(channels_[{from, to}]);
    if (std::holds_alternative<Closed>(letter)) return lose(from, to);
    Process& process = processes_[index(to)];
    if (process.newcomer) {
      Newcomer& newcomer = *process.newcomer;
      if (std::holds_alternative<Question>(letter)) return newcomer.welcome(address_of(from));
      const auto* const epoch = std::get_if<Epoch>(&letter);
      return perform(
          to, epoch != nullptr ? newcomer.learn(*epoch) : Newcomer::hear(std::get<Report>(letter)));
    }
    Agreement& agreement = *process.agreement;
    if (const auto* epoch = std::get_if<Epoch>(&letter)) {
      perform(to, agreement.learn(*epoch));
    } else if (const auto* report = std::get_if<Report>(&letter)) {
      perform(to, agreement.hear(*report, process.step));
    } else {
      perform(to, agreement.welcome(address_of(from), process.step));
    }
  }

  void cut(int from, int to) { channels_[{from, to}] = {Closed{}}; }

  void lose(int from, int to) {
    close(to, from);
    Process& process = processes_[index(to)];
    process.closed.insert(from);
    if (process.newcomer) return perform(to, process.newcomer->lose(address_of(from)));
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
    const StoreQuestion question = take(questions_[one]);
    const Process& process = processes_[index(one)];
    const auto* const proposal = std::get_if<Propose>(&question);
    if (proposal != nullptr && (line_.back() == proposal->expected || !left_.store_compares)) {
      succeed(*proposal);
      if (!process.is_here()) has_late_epoch_ = true;
    }
    const std::int64_t asked =
        proposal != nullptr ? proposal->expected.number : std::get<Look>(question).epoch;
    if (process.is_here()) answers_[one].push_back({asked, line_.back()});
  }

  void find(int one) {
    const auto [asked, latest] = take(answers_[one]);
    Process& process = processes_[index(one)];
    perform(one, process.newcomer ? process.newcomer->find(latest)
                                  : process.agreement->find(asked, latest));
  }

  /// The proposal becomes the next epoch.
  void succeed(const Propose& proposal) {
    const Epoch& before = proposal.expected;
    const Epoch& next = proposal.desired;
    require(next.number == before.number + 1, "an epoch has a wrong number");
    std::vector<MemberId> kept;
    std::set<std::string> addresses;
    for (const Member& member : next.members) {
      require(addresses.insert(member.address).second, "a process is counted twice");
      if (!before.has(member.id)) {
        require(member.id >= before.next_id && member.id < next.next_id, "an id is given twice");
        continue;
      }
      require(before.find(member.id)->address == member.address, "an id has changed its process");
      kept.push_back(member.id);
      const Process& process = processes_[index(process_at(member.address))];
      if (!process.is_here()) continue;
      require(process.agreement && process.agreement->epoch() == before &&
                  process.agreement->phase() == Agreement::Phase::kAgreeing,
              concat(member.address, " has not stopped, and others go on"));
      require(process.step <= next.step, concat(member.address, " would go back"));
    }
    require(next.num_voters == std::ssize(kept), "a process votes in its first epoch");
    check_quorum(kept, before);
    line_.push_back(next);
  }

  void check_quorum(const std::vector<MemberId>& kept, const Epoch& before) const {
    std::int64_t num_voters = 0;
    for (std::int64_t i = 0; i < before.num_voters; ++i) {
      const MemberId voter = before.members[static_cast<std::size_t>(i)].id;
      if (std::ranges::find(kept, voter) != kept.end()) ++num_voters;
    }
    const std::int64_t least = left_.quorum.least;
    require(least > 0 ? std::ssize(kept) >= least : num_voters > before.num_voters - num_voters,
            "an epoch has no quorum");
  }

  void adopt(int one, const Epoch& epoch) {
    Process& process = processes_[index(one)];
    require(index(static_cast<int>(epoch.number)) < line_.size() &&
                line_[index(static_cast<int>(epoch.number))] == epoch,
            concat(address_of(one), " adopts an epoch that the store never had"));
    require(process.step <= epoch.step, concat(address_of(one), " goes back"));
    process.step = epoch.step;
    if (!process.newcomer) return;
    process.agreement = Agreement(epoch.find(address_of(one))->id, epoch, left_.quorum);
    const Newcomer newcomer = *std::exchange(process.newcomer, std::nullopt);
    for (const std::string& other : newcomer.asking()) {
      perform(one, process.agreement->welcome(other, process.step));
    }
  }

  void perform(int one, const Actions& actions) {
    bool has_adopted = false;
    for (const Action& action : actions) {
      if (const auto* tell = std::get_if<Tell>(&action)) {
        send(one, process_at(tell->to), tell->report);
      } else if (const auto* announce = std::get_if<Announce>(&action)) {
        send(one, process_at(announce->to), announce->epoch);
      } else if (const auto* ask = std::get_if<Ask>(&action)) {
        send(one, process_at(ask->to), Question{});
      } else if (const auto* propose = std::get_if<Propose>(&action)) {
        questions_[one].emplace_back(*propose);
      } else if (const auto* look = std::get_if<Look>(&action)) {
        questions_[one].emplace_back(*look);
      } else if (const auto* adoption = std::get_if<Adopt>(&action)) {
        adopt(one, adoption->epoch);
        has_adopted = true;
      } else {
        require(std::get<Leave>(action).why != Leave::Why::kForked, "two lines of epochs");
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
  std::map<int, std::vector<StoreQuestion>> questions_;
  std::map<int, std::vector<Answer>> answers_;
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
