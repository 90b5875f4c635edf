#include "core/algorithms/outer_averages.hpp"

#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

LaneSpec lane_of(bool follows_topology, bool sends_moves) {
  if (follows_topology) return {.content = "models", .is_rare = true};
  return {.members = LaneMembers::kAll,
          .result = sends_moves ? LaneResult::kSum : LaneResult::kMean,
          .content = sends_moves ? "moves" : "models"};
}

}  // namespace

OuterAverages::OuterAverages(const AlgorithmSetup& setup, bool follows_topology)
    : setup_(setup),
      sends_moves_(setup.codec != nullptr && !follows_topology),
      lanes_(setup, lane_of(follows_topology, sends_moves_)) {
  if (!sends_moves_) return;
  for (const Bucket& bucket : setup.buckets) {
    const auto allocate = [&] {
      return setup.stream.allocate(bucket.spec().numel, bucket.spec().dtype);
    };
    moves_.add({.sent = allocate(), .error = allocate()});
  }
}

void OuterAverages::start(const Bucket& bucket, std::int64_t round, const Buffer& models,
                          const Block& anchor) {
  if (!sends_moves_) return lanes_[bucket].start(round, models);
  const Moves& moves = moves_[bucket];
  const Block sent = moves.sent.block();
  setup_.stream.copy(sent, models.block());
  enqueue_mix(setup_.stream, sent, 1.0, {{anchor, -1.0}, {moves.error.block(), 1.0}}, {},
              setup_.simd);
  lanes_[bucket].start(round, moves.sent);
}

void OuterAverages::take(const Bucket& bucket, const Block& model, const Block& anchor) {
  const Intake arrived = lanes_[bucket].take();
  if (!sends_moves_) {
    std::vector<Inbox> inboxes;
    for (const Inbox& inbox : arrived.inboxes) {
      // So that a plain average of few ranks stays exact.
      if (inbox.weight != 0.0) inboxes.push_back(inbox);
    }
    return enqueue_mix(setup_.stream, model, arrived.keep, std::move(inboxes), arrived.exchange,
                       setup_.simd);
  }
  // A single rank has sent nothing.
  if (arrived.inboxes.empty()) return;
  const ConstBlock sum = arrived.inboxes.front().block;
  enqueue_mix(setup_.stream, model, 0.0, {{anchor, 1.0}, {sum, 1.0 / setup_.lanes.num_ranks()}}, {},
              setup_.simd);
  const Block error = moves_[bucket].error.block();
  setup_.stream.zero(error);
  lanes_[bucket].add_left_over(error);
}

void OuterAverages::forget() {
  for (const Moves& moves : moves_) setup_.stream.zero(moves.error.block());
}

void OuterAverages::visit(StateVisitor& visitor) {
  for (const Bucket& bucket : setup_.buckets) {
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      const std::string name = concat(bucket.name(entry), "/outer_error");
      const bool holds = !visitor.loads() || visitor.holds(name);
      if (sends_moves_) {
        const Block error = bucket.part(moves_[bucket].error.block(), entry);
        if (holds) {
          visit_block(visitor, setup_.stream, name, error);
        } else {
          setup_.stream.zero(error);
        }
      } else if (visitor.loads() && holds) {
        const Buffer unused = setup_.stream.allocate(
            bucket.part(bucket.parameters().block(), entry).numel, bucket.spec().dtype);
        visit_block(visitor, setup_.stream, name, unused.block());
      }
    }
  }
}

}  // namespace gossamer
