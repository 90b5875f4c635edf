#include "comm/membership/record.hpp"

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
  std::string text = concat(kHead, "\n", epoch.number, " ", epoch.step, " ", epoch.next_id, "\n");
  for (const Member& member : epoch.members) text += concat(member.id, " ", member.address, "\n");
  return text;
}

Epoch epoch_of(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  Epoch epoch;
  std::getline(lines, line);
  const bool has_head = line == kHead;
  std::getline(lines, line);
  std::istringstream numbers(line);
  numbers >> epoch.number >> epoch.step >> epoch.next_id;
  bool is_whole = has_head && !numbers.fail();
  while (is_whole && std::getline(lines, line)) {
    Member member;
    const std::size_t space = line.find(' ');
    is_whole = space != std::string::npos &&
               parse_whole(std::string_view(line).substr(0, space), member.id);
    if (is_whole) member.address = line.substr(space + 1);
    epoch.members.push_back(std::move(member));
  }
  if (!is_whole || epoch.members.empty()) {
    throw record_error(
        "the record of the run's members is not one that this version of gossamer writes; all "
        "ranks "
        "need the same version");
  }
  return epoch;
}

}  // namespace

EpochRecord::EpochRecord(std::shared_ptr<Store> store, const std::string& run, std::string secret,
                         Quorum quorum)
    : store_(std::move(store)),
      key_(concat(run, "/epoch")),
      secret_(std::move(secret)),
      quorum_(quorum) {}

Epoch EpochRecord::begin(const Epoch& first) {
  return read(store_->compare_and_set(key_, "", written(first)));
}

Epoch EpochRecord::look(std::chrono::milliseconds limit) { return read(store_->get(key_, limit)); }

Epoch EpochRecord::propose(const Propose& proposal) {
  const std::string desired = written(proposal.desired);
  std::string now = store_->compare_and_set(key_, written(proposal.expected), desired);
  if (now.empty()) {
    if (quorum_.least > 0) {
      throw record_error(concat(
          "the store has lost the run's record; with fault.min_ranks: ", quorum_.least,
          " nobody can tell whether other ranks have gone on (majority allows a store to forget)"));
    }
    now = store_->compare_and_set(key_, "", desired);
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
