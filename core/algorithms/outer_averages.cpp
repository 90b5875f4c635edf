#include "core/algorithms/outer_averages.hpp"

#include <string>
#include <utility>

#include "base/text.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

constexpr LaneSpec kModels{
    .members = LaneMembers::kAll, .result = LaneResult::kMean, .content = "models"};

LaneSpec spec_of(bool follows_topology, bool sends_moves, bool is_hosted) {
  if (follows_topology) return {.content = "models", .is_rare = true, .on_host = is_hosted};
  if (!sends_moves) return kModels;
  // What has arrived says whether all ranks have the same anchor, so no rank forgets it.
  return {.members = LaneMembers::kAll,
          .result = LaneResult::kSum,
          .content = "moves",
          .forgets = false,
          .on_host = is_hosted};
}

/// Says that no rank can use the average, and needs no agreement. Smaller than 1 / the number of
/// ranks.
constexpr double kUnusable = 0x1p-20;

/// A flag behind the move.
std::int64_t one_flag(const Bucket& /*bucket*/) { return 1; }

double last_of(const ConstBlock& block) {
  return block.dtype == DType::kFloat64 ? block.as<double>().back()
                                        : static_cast<double>(block.as<float>().back());
}

void set_last(const Block& block, double value) {
  if (block.dtype == DType::kFloat64) {
    block.as<double>().back() = value;
  } else {
    block.as<float>().back() = static_cast<float>(value);
  }
}

}  // namespace

OuterAverages::OuterAverages(const AlgorithmSetup& setup, const Config& config)
    : setup_(setup),
      config_(config),
      sends_moves_(setup.codec != nullptr && !config.follows_topology &&
                   setup.lanes.num_ranks() > 1),
      is_hosted_((sends_moves_ || (setup.codec != nullptr && config.follows_topology)) &&
                 setup.stream.device().type != DeviceType::kCpu),
      stream_(is_hosted_ ? setup.lanes.host_stream() : setup.stream),
      lanes_(setup, spec_of(config.follows_topology, sends_moves_, is_hosted_),
             sends_moves_ ? one_flag : nullptr),
      models_from_(-config.every),
      written_(-config.every) {
  if (sends_moves_) model_lanes_ = BucketLanes(setup, kModels);
  for (const Bucket& bucket : setup.buckets) {
    const auto allocate = [&, dtype = bucket.spec().dtype](std::int64_t numel) {
      return is_hosted_ ? setup.stream.allocate_host(numel, dtype)
                        : setup.stream.allocate(numel, dtype);
    };
    const std::int64_t numel = bucket.spec().numel;
    if (sends_moves_) moves_.add({.sent = allocate(numel + 1), .error = allocate(numel)});
    if (is_hosted_) copies_.add({.mean = allocate(numel)});
  }
  if (is_hosted_) scope_.emplace(stream_);
}

Lane& OuterAverages::lane_of(const Bucket& bucket) {
  return sends_moves_ && !moves_[bucket].are_sent ? model_lanes_[bucket] : lanes_[bucket];
}

void OuterAverages::start(const Bucket& bucket, std::int64_t step, std::int64_t number,
                          const Buffer& models, const Block& anchor) {
  if (config_.follows_topology) {
    if (!is_hosted_) return lanes_[bucket].start(number, models);
    const Copies& copies = copies_[bucket];
    fetch(bucket, {{copies.mean.block(), models.block()}});
    return lanes_[bucket].start(number, copies.mean);
  }
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
  Block from = anchor;
  if (is_hosted_) {
    from = copies_[bucket].mean.block();
    fetch(bucket, {{move, model}, {from, anchor}});
  } else {
    stream_.copy(move, model);
  }
  enqueue_mix(stream_, move, 1.0, {{from, -1.0}, {moves.error.block(), config_.error_decay}}, {},
              setup_.simd);
  stream_.run([whole, flag = flag_of(moves.began)] { set_last(whole, flag); });
  lanes_[bucket].start(moves.began, moves.sent);
}

void OuterAverages::fetch(const Bucket& bucket,
                          std::initializer_list<std::pair<Block, ConstBlock>> blocks) {
  setup_.stream.wait(copies_[bucket].is_over);
  for (const auto& [to, from] : blocks) setup_.stream.copy(to, from);
  stream_.wait(setup_.stream.record());
}

void OuterAverages::put_back(const Bucket& bucket, const Block& model) {
  setup_.stream.wait(stream_.record());
  setup_.stream.copy(model, copies_[bucket].mean.block());
}

double OuterAverages::flag_of(std::int64_t began) const {
  if (began < models_from_) return 1.0;
  if (written_ <= models_from_) return 0.0;
  return written_ <= began ? 1.0 : kUnusable;
}

bool OuterAverages::have_one_anchor(const Bucket& bucket, std::int64_t step,
                                    const ConstBlock& sum) {
  stream_.synchronize();
  const double flags = last_of(sum);
  // An average that has begun before an agreement leads to no other one.
  if (flags >= 1.0 && moves_[bucket].began >= models_from_) models_from_ = step + 1;
  return flags == 0.0;
}

OuterAverages::Taken OuterAverages::take(const Bucket& bucket, std::int64_t step,
                                         const Block& model, const Block& anchor) {
  const Taken taken = take_arrived(bucket, step, model, anchor);
  if (is_hosted_) copies_[bucket].is_over = stream_.record();
  return taken;
}

OuterAverages::Taken OuterAverages::take_arrived(const Bucket& bucket, std::int64_t step,
                                                 const Block& model, const Block& anchor) {
  const Intake arrived = lane_of(bucket).take();
  const auto mix_arrived = [&](Stream& stream, const Block& x) {
    enqueue_mix(stream, x, arrived.keep, arrived.inboxes, arrived.exchange, setup_.simd);
  };
  if (!sends_moves_) {
    mix_arrived(stream_, is_hosted_ ? copies_[bucket].mean.block() : model);
    if (is_hosted_) put_back(bucket, model);
    return Taken::kAverage;
  }
  const Block error = moves_[bucket].error.block();
  if (!moves_[bucket].are_sent) {
    mix_arrived(setup_.stream, model);
    stream_.zero(error);
    return Taken::kNewAnchor;
  }
  const ConstBlock sum = arrived.inboxes.front().block;
  if (!have_one_anchor(bucket, step, sum)) return Taken::kNothing;
  const Inbox mean_move{part_of(sum, 0, model.numel), 1.0 / setup_.lanes.num_ranks()};
  if (is_hosted_) {
    enqueue_mix(stream_, copies_[bucket].mean.block(), 1.0, {mean_move}, {}, setup_.simd);
    put_back(bucket, model);
  } else {
    enqueue_mix(stream_, model, 0.0, {{anchor, 1.0}, mean_move}, {}, setup_.simd);
  }
  stream_.zero(error);
  lanes_[bucket].accumulate_residual(error);
  return Taken::kAverage;
}

void OuterAverages::drop(const Bucket& bucket, std::int64_t step) {
  const Intake arrived = lane_of(bucket).take();
  if (sends_moves_ && moves_[bucket].are_sent) {
    static_cast<void>(have_one_anchor(bucket, step, arrived.inboxes.front().block));
  }
  if (is_hosted_) copies_[bucket].is_over = stream_.record();
}

void OuterAverages::distrust(std::int64_t step) {
  if (written_ <= models_from_) written_ = step;
}

void OuterAverages::forget(std::int64_t step) {
  distrust(step);
  for (const Moves& moves : moves_) stream_.zero(moves.error.block());
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
      visit_block(visitor, sends_moves_ ? stream_ : setup_.stream,
                  concat(bucket.name(entry), "/outer_error"),
                  sends_moves_ ? bucket.part(moves_[bucket].error.block(), entry) : unused.block());
    }
    if (!holds && sends_moves_) stream_.zero(moves_[bucket].error.block());
  }
}

}  // namespace gossamer
