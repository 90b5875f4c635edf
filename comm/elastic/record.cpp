#include "comm/elastic/record.hpp"

#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer::membership {
namespace {

constexpr OpLabel kLabel = {.what = "membership"};

RecordError record_error(std::string_view reason) { return RecordError({.label = kLabel}, reason); }
constexpr std::string_view kHead = "gossamer epoch 1\n";

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
  return sealed(secret_, concat("epoch ", key_), concat(kHead, to_text(epoch)));
}

Epoch EpochRecord::read(const std::string& record) const {
  if (const auto text = opened(secret_, concat("epoch ", key_), record)) {
    if (text->starts_with(kHead)) {
      if (const auto epoch = epoch_of(text->substr(kHead.size()))) return *epoch;
    }
    throw record_error(
        "the record of the run's members is not one that this version of gossamer writes; all "
        "ranks need the same version");
  }
  throw record_error(concat("the record of the run's members ",
                            why_not_opened(secret_, concat("epoch ", key_), record)));
}

}  // namespace gossamer::membership
