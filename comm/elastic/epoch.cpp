#include "comm/elastic/epoch.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/text.hpp"

namespace gossamer::membership {
namespace {

template <class Value>
const Member* find_member(const Epoch& epoch, const Value& value, Value Member::*field) {
  const auto found = std::ranges::find(epoch.members, value, field);
  return found == epoch.members.end() ? nullptr : &*found;
}

/// Whether the parts of an epoch fit together.
bool is_sound(const Epoch& epoch) {
  MemberId last = -1;
  for (const Member& member : epoch.members) {
    if (member.id <= last || !is_address(member.address)) return false;
    last = member.id;
  }
  return epoch.number >= 0 && epoch.step >= 0 && epoch.next_id > last && epoch.num_voters > 0 &&
         epoch.num_voters <= std::ssize(epoch.members);
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

std::string to_text(const Epoch& epoch) {
  std::string text =
      concat(epoch.number, " ", epoch.num_voters, " ", epoch.step, " ", epoch.next_id, "\n");
  for (const Member& member : epoch.members) text += concat(member.id, " ", member.address, "\n");
  return text;
}

std::optional<Epoch> epoch_of(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::istringstream numbers(line);
  Epoch epoch;
  numbers >> epoch.number >> epoch.num_voters >> epoch.step >> epoch.next_id;
  if (numbers.fail()) return std::nullopt;
  while (std::getline(lines, line)) {
    Member member;
    const std::size_t space = line.find(' ');
    if (space == std::string::npos ||
        !parse_whole(std::string_view(line).substr(0, space), member.id)) {
      return std::nullopt;
    }
    member.address = line.substr(space + 1);
    epoch.members.push_back(std::move(member));
  }
  return is_sound(epoch) ? std::optional(epoch) : std::nullopt;
}

bool is_address(const std::string& text) {
  return !text.empty() &&
         std::ranges::none_of(text, [](char letter) { return letter == '\n' || letter == '\r'; });
}

bool Quorum::is_met(const std::vector<MemberId>& remaining, const Epoch& epoch) const {
  if (std::ssize(remaining) < least) return false;
  std::int64_t num_voters = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(epoch.num_voters); ++i) {
    if (std::ranges::binary_search(remaining, epoch.members[i].id)) ++num_voters;
  }
  return 2 * num_voters > epoch.num_voters;
}

}  // namespace gossamer::membership
