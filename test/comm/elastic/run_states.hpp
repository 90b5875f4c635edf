#pragma once
// The states of a run that explore() goes through, and the events that lead from one to the next.
//
// A State is a few numbers. Each stands for a Site: a process with all that is under way to it.
// Equal sites have equal numbers. So two states are the same exactly if their numbers are.
//
// What cannot change anything any more is no part of a state, so that fewer states differ:
//   - of a process that is gone, all but how it went and what it has proposed to the store;
//   - proposals of such a process that the store would not take, and its other questions;
//   - epochs and answers under way to a member that is past them: it ignores them, now and later;
//   - epochs that nobody can adopt any more.
// A process that starts has its first answer of the store at once. Before this answer it does
// nothing, and nobody knows it. So what happens in between may as well happen before it starts.
//
// Thread safety: one thread. Errors: Fault where something is wrong.

#include "test/comm/elastic/explorer.hpp"
#include "test/comm/elastic/lone_process.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "comm/elastic/epoch.hpp"

namespace gossamer::membership {

inline constexpr std::size_t kMostProcesses = 5;
using Number = std::uint32_t;
/// The numbers of Happenings or StoreQuestions, the next one first.
using Queue = std::vector<Number>;
/// The epochs that the store has had; the last is there now.
using Line = std::vector<Epoch>;

struct Site {
  Number process = 0;
  /// The queues of messages from each process, of its questions to the store, and of answers.
  std::array<Number, kMostProcesses> messages = {};
  Number questions = 0;
  Number answers = 0;
  bool operator==(const Site&) const = default;
};

/// How often each may still happen.
struct Left {
  std::uint16_t deaths = 0;
  std::uint16_t broken_connections = 0;
  std::uint16_t disturbances = 0;
  std::uint16_t joins = 0;
  std::uint16_t steps = 0;
  bool operator==(const Left&) const = default;
};

struct State {
  std::array<Number, kMostProcesses> sites = {};
  Number line = 0;
  Left left = {};
  /// A bit for each process whose connection with another one has broken.
  std::uint16_t broken = 0;
  bool operator==(const State&) const = default;
};

struct Event {
  enum class Kind : std::uint8_t {
    kArrive,
    kCut,
    kStore,
    kDrop,
    kAnswer,
    kTrain,
    kJoin,
    kDie,
    kBreak
  };
  Kind kind = Kind::kArrive;
  int one = 0;
  /// Another process, a place in the epoch, or what happens in training.
  int other = 0;
};

/// Of texts, lists of numbers, and structs that are nothing but numbers.
struct HashOfBytes {
  template <class Key>
  std::size_t operator()(const Key& key) const {
    if constexpr (std::ranges::range<Key>) {
      return hash(key.data(), key.size() * sizeof(*key.data()));
    } else {
      static_assert(std::has_unique_object_representations_v<Key>);
      return hash(&key, sizeof key);
    }
  }

 private:
  static std::size_t hash(const void* bytes, std::size_t size) {
    return std::hash<std::string_view>{}({static_cast<const char*>(bytes), size});
  }
};

// By what things are known: most by what operator<< writes, which must be all that counts.
inline const Queue& key_of(const Queue& queue) { return queue; }
inline const Site& key_of(const Site& site) { return site; }
inline std::string key_of(const Line& line) { return join(line, "\n"); }
template <class Thing>
std::string key_of(const Thing& thing) {
  return concat(thing);
}

/// Gives equal things equal numbers, in the order in which it sees them first.
template <class Thing>
class Numbered {
 public:
  Number operator()(const Thing& thing) {
    const auto next = static_cast<Number>(things_.size());
    const auto [found, is_new] = numbers_.try_emplace(key_of(thing), next);
    if (is_new) things_.push_back(thing);
    return found->second;
  }
  const Thing& operator[](Number number) const { return things_[number]; }

 private:
  using Key = std::remove_cvref_t<decltype(key_of(std::declval<const Thing&>()))>;
  std::unordered_map<Key, Number, HashOfBytes> numbers_;
  std::deque<Thing> things_;
};

class RunStates {
 public:
  explicit RunStates(const Setting& setting);

  [[nodiscard]] State first();
  /// What happens sooner or later.
  [[nodiscard]] std::vector<Event> due(const State& state) const;
  /// What may happen or not.
  [[nodiscard]] std::vector<Event> possible(const State& state) const;
  [[nodiscard]] State after(const State& state, const Event& event);
  [[nodiscard]] std::string describe(const State& state, const Event& event) const;
  /// Checks a state in which nothing is due.
  void check_end(const State& state) const;
  [[nodiscard]] bool trains(const State& state) const;
  /// The store's.
  [[nodiscard]] const Epoch& epoch(const State& state) const { return lines_[state.line].back(); }

 private:
  /// A state whose sites are at hand.
  struct Run {
    std::array<Site, kMostProcesses> sites = {};
    Number line = 0;
    Left left = {};
    std::uint16_t broken = 0;
  };
  struct KnownReaction {
    Number after = 0;
    std::vector<std::pair<int, Number>> sent = {};
    Queue questions = {};
    std::vector<Epoch> adopted = {};
    std::optional<Leave::Why> why_left = {};
  };

  static std::size_t index(int process) { return static_cast<std::size_t>(process); }
  static std::uint16_t bit(int process) { return static_cast<std::uint16_t>(1U << index(process)); }
  static bool has_broken(const Run& run, int one) { return (run.broken & bit(one)) != 0; }
  /// Whether the mate of a process, if it has one, is gone, or a connection of the mate has broken.
  [[nodiscard]] bool has_lost_mate(const Run& run, int one) const {
    const int mate = mate_of(one);
    return mate >= 0 && (has_broken(run, mate) || process(run.sites[index(mate)]).is_gone());
  }
  [[nodiscard]] const Site& site(const State& state, int one) const {
    return sites_[state.sites[index(one)]];
  }
  [[nodiscard]] const Process& process(const Site& site) const { return processes_[site.process]; }
  [[nodiscard]] bool should_confirm(const Process& process) const;
  [[nodiscard]] bool ends(Number queue) const;
  /// The happening that an event brings to a process.
  [[nodiscard]] std::optional<Happening> happening(const State& state, const Event& event) const;

  const KnownReaction& reaction(Number process, Number happening);
  void happen(Run& run, int one, Number happening);
  /// Whether a process leaves for a good reason. `last`: what has happened to it.
  void check_leaving(const Run& run, int one, Leave::Why why, const Happening& last) const;
  void send(Run& run, int from, int to, Number message);
  void end(Run& run, int one);
  void answer(Run& run, int one);
  /// Whether the store may take what `proposer` proposes.
  void check_proposal(const Run& run, int proposer, const Propose& proposal) const;
  Number take(Number& queue);
  void add(Number& queue, Number entry);
  template <class Predicate>
  void drop_if(Number& queue, const Predicate& predicate);
  /// Leaves out what cannot change anything any more.
  void tidy(Run& run);
  void tidy_line(Run& run);
  [[nodiscard]] bool has_quorum(const std::vector<MemberId>& members, const Epoch& epoch) const;

  Setting setting_;
  int num_processes_;
  Numbered<Process> processes_;
  Numbered<Happening> happenings_;
  Numbered<StoreQuestion> questions_;
  Numbered<Queue> queues_;
  Numbered<Line> lines_;
  Numbered<Site> sites_;
  /// By process and happening.
  std::unordered_map<std::uint64_t, KnownReaction> reactions_;
};

}  // namespace gossamer::membership
