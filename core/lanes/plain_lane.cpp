#include "core/lanes/plain_lane.hpp"

#include <stdexcept>
#include <utility>

#include "base/text.hpp"
#include "core/lanes/grid_lane.hpp"

namespace gossamer {

void PlainLane::start(std::int64_t k, const Buffer& send) {
  const RankRound& part = begin(k);
  if (is_idle(part)) return;
  hold(send);
  expect(part.node_size > 1 ? nodes_.start(part, k, send, arriving_) : exchange_blocks(part));
  messages_.count(part, send.block().bytes());
}

const RankRound& PlainLane::begin(std::int64_t k) {
  const RankRound& part = messages_.peers().round(k);
  round_ = k;
  update_scale_ = part.update_scale;
  has_arrived_ = false;
  return part;
}

void PlainLane::hold(const Buffer& send) {
  is_under_way_ = true;
  sent_ = send;
  if (!setup().stream.on_host()) return;
  setup().stream.run([sum = checksum_, block = send.block()] { sum->take(block); });
}

Request PlainLane::exchange_blocks(const RankRound& part) {
  const bool sums = part.kind == RankRound::Kind::kGroup;
  const std::span<const Buffer> inboxes = messages_.reserve(sums ? 1 : part.receive_from.size());
  arriving_ = {.keep = part.keep};
  for (std::size_t i = 0; i < part.take.size(); ++i) {
    arriving_.inboxes.push_back({inboxes[i].block(), part.take[i]});
  }
  return messages_.exchange(part, sent_.block(), inboxes, messages_.context(round_, sent_));
}

void PlainLane::finish(Request also) {
  const bool was_under_way = std::exchange(is_under_way_, false);
  if (!was_under_way && !also.pending()) return;
  const ScopedTimer timer(setup().metrics.wait_s);
  const TimelineScope scope(setup().timeline.get(),
                            {.what = "wait", .bucket = spec().bucket, .round = round_});
  also.wait();
  request_.wait_on(setup().stream);
  if (!was_under_way || !setup().stream.on_host()) return;
  setup().stream.run(
      [sum = checksum_, block = sent_.block(), content = spec().content, bucket = spec().bucket] {
        if (sum->matches(block)) return;
        throw std::logic_error(concat("the ", content, " of bucket ", bucket,
                                      " were written while their exchange was in flight; write "
                                      "parameters in the scope of write_parameters() only"));
      });
}

Intake PlainLane::take() {
  Intake intake{.update_scale = update_scale_};
  if (!std::exchange(has_arrived_, false)) return intake;
  intake.keep = arriving_.keep;
  intake.inboxes = arriving_.inboxes;
  return intake;
}

void PlainLane::visit(StateVisitor& visitor, std::span<const std::string> names) {
  if (spec().result == LaneResult::kMix) GridLane::skip_state(visitor, names);
}

}  // namespace gossamer
