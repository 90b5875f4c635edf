#pragma once
// One process of a run that explore() goes through: what can happen to it, and what it does then.
// It is what Participant is to a real run, without connections, threads and time. Since it knows
// of the others only what happens to it, explore() works out each reaction once.
//
// Thread safety: values.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "comm/elastic/agreement.hpp"
#include "comm/elastic/newcomer.hpp"

namespace gossamer::membership {

/// What explore() finds wrong.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
void require(bool holds, const std::string& what);

// Processes have the numbers 0, 1, ... and the addresses a, b, ...
std::string address_of(int process);
int process_at(const std::string& address);

/// The connection with a process has ended.
struct Closed {
  int from = 0;
};
/// A process asks to let it join.
struct Question {
  int from = 0;
};
/// Of the store: the number of the epoch in which it was asked, and the epoch that it had.
struct Answer {
  std::int64_t asked = 0;
  Epoch latest = {};
};
/// The process starts and looks at the store, which has `latest`.
struct Start {
  std::size_t first = 0;
  Epoch latest = {};
};
/// The member makes a step, finds that all have exchanged, or that an exchange has failed.
enum class Training : std::uint8_t { kStep, kConfirm, kDisturb };

using Happening = std::variant<Report, Epoch, Question, Closed, Answer, Start, Training>;
std::ostream& operator<<(std::ostream& out, const Happening& happening);

/// To the store.
using StoreQuestion = std::variant<Propose, Look>;
std::ostream& operator<<(std::ostream& out, const StoreQuestion& question);

/// The first of two processes that are a cohort (Setting::first_of_pair), by which they are named.
inline thread_local int first_of_pair = -1;  // NOLINT(*-non-const-global-variables)
/// The other process of a process's cohort; -1: it has none.
int mate_of(int process);

struct Process {
  enum class Place : std::uint8_t { kNotStarted, kHere, kLeft, kDead };
  int number = 0;
  Place place = Place::kHere;
  std::int64_t step = 0;
  /// While it is no member.
  std::optional<Newcomer> newcomer = {};
  std::optional<Agreement> agreement = {};
  /// Processes that it does not reach any more.
  std::set<int> closed = {};

  [[nodiscard]] bool is_here() const { return place == Place::kHere; }
  [[nodiscard]] bool is_gone() const { return place == Place::kLeft || place == Place::kDead; }
  [[nodiscard]] bool trains() const {
    return is_here() && agreement && agreement->phase() == Agreement::Phase::kServing;
  }
};
std::ostream& operator<<(std::ostream& out, const Process& process);

struct Reaction {
  Process after;
  /// In this order, each to a process.
  std::vector<std::pair<int, Happening>> sent = {};
  std::vector<StoreQuestion> questions = {};
  std::vector<Epoch> adopted = {};
  /// It has left for this reason. `after` knows nothing any more.
  std::optional<Leave::Why> why_left = {};
};

/// What a process does when something happens to it. Throws Fault if its steps would go back.
Reaction react(const Process& before, const Happening& happening, Quorum quorum);

}  // namespace gossamer::membership
