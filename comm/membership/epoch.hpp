#pragma once
// A membership epoch: the ranks that train together until one dies or a new one comes.
//
// A run is a line of epochs, numbered from 0. The store (comm/store.hpp) holds the latest one, and
// compare_and_set() puts the next in its place. So there is one line only, whoever proposes.
//
// Thread safety: values.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace gossamer::membership {

/// Names a member for the whole run. A run never gives the same id twice.
using MemberId = std::int64_t;

struct Member {
  MemberId id = 0;
  /// How others reach the process. Differs from those of all other processes of the run, earlier
  /// ones included.
  std::string address;
  auto operator<=>(const Member&) const = default;
};

struct Epoch {
  std::int64_t number = 0;
  /// In the order of their ids. The place in this list is the rank.
  std::vector<Member> members = {};
  /// Steps that every member has made when the epoch begins.
  std::int64_t step = 0;
  /// The id of the next process that joins.
  MemberId next_id = 0;
  auto operator<=>(const Epoch&) const = default;

  [[nodiscard]] bool has(MemberId id) const;
  [[nodiscard]] bool has(const std::string& address) const;
};
std::ostream& operator<<(std::ostream& out, const Epoch& epoch);

}  // namespace gossamer::membership
