#include "core/algorithms/outer_averages.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "base/text.hpp"
#include "core/bucket/host_values.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

constexpr LaneSpec kModels{
    .members = LaneMembers::kAll, .result = LaneResult::kMean, .content = "models"};

LaneSpec spec_of(bool follows_topology, bool sends_moves) {
  if (follows_topology) return {.content = "models", .is_rare = true};
  if (!sends_moves) return kModels;
  // What has arrived says whether all ranks have the same anchor, so no rank forgets it.
  return {.members = LaneMembers::kAll,
          .result = LaneResult::kSum,
          .content = "moves",
          .forgets = false};
}

/// Says that no rank can use the average, and needs no agreement. Smaller than 1 / the number of
/// ranks.
constexpr double kUnusable = 0x1p-20;

/// A flag behind the move.
std::int64_t one_flag(const Bucket& /*bucket*/) { return 1; }

/// The flags that a rank may send. Copies of them go to messages, so nothing writes them again.
constexpr std::array kFlags = {0.0, 1.0, kUnusable};

/// Host memory for kFlags, and behind them for the sum of the ranks' flags.
Buffer make_flags(Stream& stream, DType dtype) {
  const Buffer flags = stream.allocate_host(std::ssize(kFlags) + 1, dtype);
  const Block block = flags.block();
  for (std::size_t i = 0; i < kFlags.size(); ++i) {
    set_host_value(block, static_cast<std::int64_t>(i), kFlags[i]);
  }
  return flags;
}

Block flag_in(const Buffer& flags, double value) {
  return part_of(flags.block(), std::ranges::find(kFlags, value) - kFlags.begin(), 1);
}

}  // namespace

OuterAverages::OuterAverages(const AlgorithmSetup& setup, const Config& config)
    : setup_(setup),
      config_(config),
      sends_moves_(setup.codec != nullptr && !config.follows_topology &&
                   setup.lanes.num_ranks() > 1),
      lanes_(setup, spec_of(config.follows_topology, sends_moves_),
             sends_moves_ ? one_flag : nullptr),
      models_from_(-config.every),
      written_(-config.every) {
  if (!sends_moves_) return;
  model_lanes_ = BucketLanes(setup, kModels);
  for (const Bucket& bucket : setup.buckets) {
    const DType dtype = bucket.spec().dtype;
    const std::int64_t numel = bucket.spec().numel;
    moves_.add({.sent = setup.stream.allocate(numel + 1, dtype),
                .error = setup.stream.allocate(numel, dtype),
                .flags = make_flags(setup.stream, dtype)});
  }
}

Lane& OuterAverages::lane_of(const Bucket& bucket) {
  return sends_moves_ && !moves_[bucket].are_sent ? model_lanes_[bucket] : lanes_[bucket];
}

void OuterAverages::start(const Bucket& bucket, std::int64_t step, std::int64_t number,
                          const Buffer& models, const Block& anchor) {
  if (config_.follows_topology) return lanes_[bucket].start(number, models);
  if (!sends_moves_) return lanes_[bucket].start(step, models);
  Moves& moves = moves_[bucket];
  moves.began = step;
  moves.are_sent = step < models_from_ || step >= models_from_ + config_.every;
  if (moves.are_sent) {
    send_move(bucket, models.block(), anchor);
  } else {
    model_lanes_[bucket].start(step, models);
  }
}

void OuterAverages::send_move(const Bucket& bucket, const Block& model, const Block& anchor) {
  const Moves& moves = moves_[bucket];
  const Block whole = moves.sent.block();
  const Block move = part_of(whole, 0, bucket.spec().numel);
  Stream& stream = setup_.stream;
  stream.copy(move, model);
  enqueue_mix(stream, move, 1.0, {{anchor, -1.0}, {moves.error.block(), config_.error_decay}}, {},
              setup_.simd);
  stream.copy(part_of(whole, move.numel, 1), flag_in(moves.flags, flag_of(moves.began)));
  lanes_[bucket].start(moves.began, moves.sent);
}

double OuterAverages::flag_of(std::int64_t began) const {
  if (began < models_from_) return 1.0;
  if (written_ <= models_from_) return 0.0;
  return written_ <= began ? 1.0 : kUnusable;
}

bool OuterAverages::have_one_anchor(const Bucket& bucket, std::int64_t step,
                                    const ConstBlock& sum) {
  Stream& stream = setup_.stream;
  const Block flag = moves_[bucket].flags.block();
  // The host waits. A grid vote may be read a step later, because the old grid goes on until then.
  // This flag decides whether the sum moves the model of this very step. Read later, the flag would
  // come after the update, and after the next message of a model that must not have moved.
  stream.copy(part_of(flag, std::ssize(kFlags), 1), part_of(sum, sum.numel - 1, 1));
  if (const EventPtr copied = stream.record()) copied->wait();
  stream.check();
  const double flags = host_value(flag, flag.numel - 1);
  // An average that has begun before an agreement leads to no other one.
  if (flags >= 1.0 && moves_[bucket].began >= models_from_) models_from_ = step + 1;
  return flags == 0.0;
}

OuterAverages::Taken OuterAverages::take(const Bucket& bucket, std::int64_t step,
                                         const Block& model, const Block& anchor) {
  Stream& stream = setup_.stream;
  const Intake arrived = lane_of(bucket).take();
  if (!sends_moves_ || !moves_[bucket].are_sent) {
    enqueue_mix(stream, model, arrived.keep, arrived.inboxes, arrived.exchange, setup_.simd);
    if (!sends_moves_) return Taken::kAverage;
    stream.zero(moves_[bucket].error.block());
    return Taken::kNewAnchor;
  }
  const ConstBlock sum = arrived.inboxes.front().block;
  if (!have_one_anchor(bucket, step, sum)) return Taken::kNothing;
  const Inbox mean_move{part_of(sum, 0, model.numel), 1.0 / setup_.lanes.num_ranks()};
  enqueue_mix(stream, model, 0.0, {{anchor, 1.0}, mean_move}, {}, setup_.simd);
  const Block error = moves_[bucket].error.block();
  stream.zero(error);
  lanes_[bucket].accumulate_residual(error);
  return Taken::kAverage;
}

void OuterAverages::drop(const Bucket& bucket, std::int64_t step) {
  const Intake arrived = lane_of(bucket).take();
  if (sends_moves_ && moves_[bucket].are_sent) {
    static_cast<void>(have_one_anchor(bucket, step, arrived.inboxes.front().block));
  }
}

void OuterAverages::distrust(std::int64_t step) {
  if (written_ <= models_from_) written_ = step;
}

void OuterAverages::forget(std::int64_t step) {
  distrust(step);
  for (const Moves& moves : moves_) setup_.stream.zero(moves.error.block());
}

void OuterAverages::visit(StateVisitor& visitor) {
  constexpr const char* kModelsFrom = "run/outer_models_from";
  constexpr const char* kWritten = "run/outer_written";
  if (!visitor.loads() && !sends_moves_) return;
  const bool holds = !visitor.loads() || visitor.holds(kModelsFrom);
  if (holds) {
    visitor.number(kModelsFrom, models_from_);
    visitor.number(kWritten, written_);
  } else {
    // Ranks that have sent no moves may have different anchors.
    models_from_ = -config_.every;
    written_ = models_from_ + 1;
  }
  for (const Bucket& bucket : setup_.buckets) {
    for (std::int64_t entry = 0; holds && entry < bucket.num_entries(); ++entry) {
      const Block parameter = bucket.part(bucket.parameters().block(), entry);
      const Buffer unused =
          sends_moves_ ? Buffer() : setup_.stream.allocate(parameter.numel, parameter.dtype);
      visit_block(visitor, setup_.stream, concat(bucket.name(entry), "/outer_error"),
                  sends_moves_ ? bucket.part(moves_[bucket].error.block(), entry) : unused.block());
    }
    if (!holds && sends_moves_) setup_.stream.zero(moves_[bucket].error.block());
  }
}

}  // namespace gossamer
