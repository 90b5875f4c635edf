#include "comm/membership/record.hpp"

#include <cstddef>
#include <iterator>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer::membership {
namespace {

constexpr OpLabel kLabel = {.what = "membership"};
constexpr std::string_view kHead = "gossamer epoch 1";

CommError record_error(std::string_view reason) { return CommError({.label = kLabel}, reason); }

/// A head, the numbers of the epoch, and a line for each member.
std::string text_of(const Epoch& epoch) {
  std::string text = concat(kHead, "\n", epoch.number, " ", epoch.num_voters, " ", epoch.step, " ",
                            epoch.next_id, "\n");
  for (const Member& member : epoch.members) text += concat(member.id, " ", member.address, "\n");
  return text;
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

Epoch epoch_of(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  Epoch epoch;
  std::getline(lines, line);
  bool is_whole = line == kHead && std::getline(lines, line);
  std::istringstream numbers(line);
  numbers >> epoch.number >> epoch.num_voters >> epoch.step >> epoch.next_id;
  is_whole = is_whole && !numbers.fail();
  while (is_whole && std::getline(lines, line)) {
    Member member;
    const std::size_t space = line.find(' ');
    is_whole = space != std::string::npos &&
               parse_whole(std::string_view(line).substr(0, space), member.id);
    if (is_whole) member.address = line.substr(space + 1);
    epoch.members.push_back(std::move(member));
  }
  if (is_whole && is_sound(epoch)) return epoch;
  throw record_error(
      "the record of the run's members is not one that this version of gossamer writes; all ranks "
      "need the same version");
}

}  // namespace

EpochRecord::EpochRecord(std::shared_ptr<Store> store, const std::string& run, std::string secret)
    : store_(std::move(store)), key_(concat(run, "/epoch")), secret_(std::move(secret)) {}

Epoch EpochRecord::begin(const Epoch& first) {
  return read(store_->compare_and_set(key_, "", written(first)));
}

Epoch EpochRecord::look(std::chrono::milliseconds limit) { return read(store_->get(key_, limit)); }

Epoch EpochRecord::propose(const Propose& proposal) {
  const std::string now =
      store_->compare_and_set(key_, written(proposal.expected), written(proposal.desired));
  if (now.empty()) {
    throw record_error(
        "the store has lost the run's record, and nobody can tell whether other ranks have gone "
        "on; start the run again from its last checkpoint");
  }
  Epoch latest = read(now);
  if (latest.number >= proposal.expected.number) return latest;
  throw record_error(concat("the store has epoch ", latest.number, " of the run, and epoch ",
                            proposal.expected.number,
                            " has begun before; somebody has put an old record there"));
}

std::string EpochRecord::written(const Epoch& epoch) const {
  return sealed(secret_, concat("epoch ", key_), text_of(epoch));
}

Epoch EpochRecord::read(const std::string& record) const {
  if (const auto text = opened(secret_, concat("epoch ", key_), record)) return epoch_of(*text);
  throw record_error(
      "the record of the run's members is not signed with this rank's secret; give all ranks the "
      "same GOSSAMER_SECRET");
}

}  // namespace gossamer::membership
