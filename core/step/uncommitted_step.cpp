#include "core/step/uncommitted_step.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

/// What a rank tells the others.
struct Record {
  /// -1: the rank joins.
  std::int64_t num_steps = -1;
  /// 1: the rank holds the step after these, with gradients of its own.
  std::int64_t holds_own = 0;
};

std::string bytes_of(const Record& record) {
  static_assert(std::has_unique_object_representations_v<Record>);
  std::string bytes(sizeof record, '\0');
  std::memcpy(bytes.data(), &record, sizeof record);
  return bytes;
}

Record record_of(const std::string& bytes) {
  Record record;
  if (bytes.size() != sizeof record) {
    throw CommError({.label = {.what = "step"}},
                    concat("another rank tells its steps in ", bytes.size(), " bytes in place of ",
                           sizeof record, "; all ranks need the same version of gossamer"));
  }
  std::memcpy(&record, bytes.data(), sizeof record);
  return record;
}

}  // namespace

UncommittedStep::Agreement UncommittedStep::agree(Communicator& communicator,
                                                  std::int64_t num_steps, bool joins) const {
  const Record own =
      joins ? Record{} : Record{.num_steps = num_steps, .holds_own = is_pending() && is_own_};
  Agreement agreement;
  for (const std::string& bytes : communicator.all_gather(bytes_of(own))) {
    const Record record = record_of(bytes);
    if (record.num_steps < 0) continue;
    if (record.num_steps > agreement.num_steps) agreement.num_holders = 0;
    agreement.num_steps = std::max(agreement.num_steps, record.num_steps);
    if (record.num_steps == agreement.num_steps) agreement.num_holders += record.holds_own;
  }
  return agreement;
}

void UncommittedStep::begin_again(std::int64_t num_holders) {
  is_own_ = is_pending() && is_own_;
  state_ = State::kNone;
  lr_.reset();
  num_summed_ = num_holders;
}

}  // namespace gossamer
