#include "core/exchange/plain_lane.hpp"

#include <stdexcept>
#include <utility>

#include "base/text.hpp"
#include "core/exchange/grid_lane.hpp"

namespace gossamer {

void PlainLane::start(std::int64_t k, const Buffer& send) {
  const RankRound& part = begin(k);
  if (is_idle(part)) return;
  hold(send);
  if (part.node_size > 1) {
    expect(nodes_.start(part, k, send, arriving_));
  } else {
    expect(exchange_blocks(part));
  }
  messages_.count(part, send.block().bytes());
}

const RankRound& PlainLane::begin(std::int64_t k) {
  const RankRound& part = messages_.peers().round(k);
  round_ = k;
  update_scale_ = part.update_scale;
  has_arrived_ = false;
  return part;
}

std::vector<PartUnderWay> PlainLane::exchange_blocks(const RankRound& part) {
  const bool sums = part.kind == RankRound::Kind::kGroup;
  const std::span<const Buffer> inboxes = messages_.reserve(sums ? 1 : part.receive_from.size());
  arriving_ = {.keep = part.keep};
  for (std::size_t i = 0; i < part.take.size(); ++i) {
    arriving_.inboxes.push_back({inboxes[i].block(), part.take[i]});
  }
  return messages_.exchange_in_parts(part, sent_.block(), inboxes,
                                     messages_.context(round_, sent_));
}

void PlainLane::expect(Request request) {
  std::vector<PartUnderWay> whole;
  whole.push_back({sent_.block().numel, std::move(request)});
  expect(std::move(whole));
}

void PlainLane::expect(std::vector<PartUnderWay> parts) {
  parts_ = std::move(parts);
  num_over_ = 0;
  has_arrived_ = true;
  if (!setup().stream.on_host()) return;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (i == checksums_.size()) checksums_.push_back(std::make_shared<BlockChecksum>());
    const ConstBlock block = part_of(sent_.block(), first, parts_[i].last - first);
    setup().stream.run([sum = checksums_[i], block] { sum->take(block); });
    first = parts_[i].last;
  }
}

void PlainLane::finish(Request also) {
  if (!is_under_way() && !also.pending()) return;
  const ScopedTimer timer(setup().metrics.wait_s);
  const TimelineScope scope(setup().timeline.get(), wait_label());
  also.wait();
  while (is_under_way()) finish_part();
}

void PlainLane::finish_part() {
  const std::int64_t first = num_over_ == 0 ? 0 : parts_[num_over_ - 1].last;
  const auto& sum = checksums_[num_over_];
  PartUnderWay& part = parts_[num_over_++];
  part.request.wait_on(setup().stream);
  if (!setup().stream.on_host()) return;
  setup().stream.run([sum, block = part_of(sent_.block(), first, part.last - first),
                      content = spec().content, bucket = spec().bucket] {
    if (sum->matches(block)) return;
    throw std::logic_error(concat("the ", content, " of bucket ", bucket,
                                  " were written while their exchange was in flight; write "
                                  "parameters in the scope of write_parameters() only"));
  });
}

std::int64_t PlainLane::wait_for_more() {
  const ScopedTimer timer(setup().metrics.wait_s);
  const TimelineScope scope(setup().timeline.get(), wait_label());
  do {
    finish_part();
  } while (is_under_way() && parts_[num_over_].request.done());
  return parts_[num_over_ - 1].last;
}

Intake PlainLane::take() {
  Intake intake{.update_scale = update_scale_};
  if (!std::exchange(has_arrived_, false)) return intake;
  intake.keep = arriving_.keep;
  intake.inboxes = arriving_.inboxes;
  return intake;
}

Intake PlainLane::receive() {
  const bool is_whole = parts_.size() < 2 || num_over_ > 0 || setup().waits_whole;
  if (is_whole || !has_arrived_ || !setup().stream.immediate()) return Lane::receive();
  Intake intake = take();
  intake.exchange.wait_for_more = [this] { return wait_for_more(); };
  return intake;
}

void PlainLane::visit(StateVisitor& visitor, std::span<const std::string> names) {
  if (spec().result == LaneResult::kMix) GridLane::skip_state(visitor, names);
}

}  // namespace gossamer
