#pragma once
// A membership epoch: the ranks that train together until one dies or a new one comes.
//
// A run is a line of epochs, numbered from 0. The store (comm/store.hpp) holds the latest one, and
// compare_and_set() puts the next in its place. So there is one line of epochs, whichever members
// propose, as long as the store keeps its memory.
//
// Thread safety: values.

#include <compare>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace gossamer::membership {

/// Names a member for the whole run. A run never gives the same id twice.
using MemberId = std::int64_t;

struct Member {
  MemberId id = 0;
  /// The address at which other processes reach the process. It differs from the addresses of all
  /// other processes of the run, earlier processes included.
  std::string address;
  auto operator<=>(const Member&) const = default;
};

struct Epoch {
  std::int64_t number = 0;
  /// The members in the order of their ids. A member's place in this list is its rank.
  std::vector<Member> members = {};
  /// The first so many members count in the quorum. The others have just joined.
  std::int64_t num_voters = 0;
  /// Steps that every member has made when the epoch begins.
  std::int64_t step = 0;
  /// The id of the next process that joins.
  MemberId next_id = 0;
  auto operator<=>(const Epoch&) const = default;

  [[nodiscard]] const Member* find(MemberId id) const;
  [[nodiscard]] const Member* find(const std::string& address) const;
  [[nodiscard]] bool has(MemberId id) const { return find(id) != nullptr; }
  [[nodiscard]] bool has(const std::string& address) const { return find(address) != nullptr; }
};
std::ostream& operator<<(std::ostream& out, const Epoch& epoch);

/// The epoch as lines: its numbers, then a line for each member.
std::string to_text(const Epoch& epoch);
/// The epoch of such lines; nothing if its parts do not fit together.
std::optional<Epoch> epoch_of(const std::string& text);

/// Whether a text can be an address: it has letters, and none that end a line.
bool is_address(const std::string& text);

/// How many members of an epoch must go on together: more than half of its voters.
struct Quorum {
  /// A world also needs so many members, voters or not.
  std::int64_t least = 0;
  /// `remaining`: members of the epoch, in the order of their ids.
  [[nodiscard]] bool is_met(const std::vector<MemberId>& remaining, const Epoch& epoch) const;
};

}  // namespace gossamer::membership
