#include "core/exchange/operations_lane.hpp"

namespace gossamer {

void OperationsLane::wait() {
  if (!is_under_way()) return;
  const ScopedTimer timer(setup_.metrics.wait_s);
  const TimelineScope scope(setup_.timeline.get(),
                            {.what = "wait", .bucket = spec_.bucket, .round = round_});
  for (Request& request : requests_) request.wait_on(setup_.stream);
  requests_.clear();
}

Intake OperationsLane::take() {
  if (!std::exchange(has_arrived_, false)) return {};
  return {.keep = arriving_.keep, .inboxes = arriving_.inboxes};
}

}  // namespace gossamer
