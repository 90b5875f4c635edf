#include "comm/membership/epoch.hpp"

#include <algorithm>
#include <cstddef>

namespace gossamer::membership {
namespace {

template <class Value>
const Member* find_member(const Epoch& epoch, const Value& value, Value Member::*field) {
  const auto found = std::ranges::find(epoch.members, value, field);
  return found == epoch.members.end() ? nullptr : &*found;
}

}  // namespace

const Member* Epoch::find(MemberId id) const { return find_member(*this, id, &Member::id); }
const Member* Epoch::find(const std::string& address) const {
  return find_member(*this, address, &Member::address);
}

std::ostream& operator<<(std::ostream& out, const Epoch& epoch) {
  out << "epoch " << epoch.number << " at step " << epoch.step << ':';
  for (const Member& member : epoch.members) out << ' ' << member.id << '=' << member.address;
  return out << ", voters " << epoch.num_voters << ", next " << epoch.next_id;
}

bool is_address(const std::string& text) {
  return !text.empty() &&
         std::ranges::none_of(text, [](char letter) { return letter == '\n' || letter == '\r'; });
}

bool Quorum::is_met(const std::vector<MemberId>& remaining, const Epoch& epoch) const {
  if (least > 0) return static_cast<std::int64_t>(remaining.size()) >= least;
  std::int64_t num_voters = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(epoch.num_voters); ++i) {
    if (std::ranges::binary_search(remaining, epoch.members[i].id)) ++num_voters;
  }
  return 2 * num_voters > epoch.num_voters;
}

}  // namespace gossamer::membership
