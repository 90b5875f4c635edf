#include "apps/lab/simulate/virtual_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/block_update.hpp"

namespace gossamer::apps {

VirtualRanks::VirtualRanks(Config config)
    : config_(std::move(config)),
      pool_(config_.num_threads),
      network_(config_.topology, config_.world_size, config_.codec) {
  const std::int64_t numel = config_.world_size * config_.dim;
  try {
    x_ = Buffer(numel, DType::kFloat64);
    if (config_.optimizer) gradients_ = Buffer(numel, DType::kFloat64);
  } catch (const std::bad_alloc&) {
    throw ConfigError(concat("There is not enough memory for ", config_.world_size, " ranks with ",
                             config_.dim, " parameters each."));
  }
  if (!config_.optimizer) return;
  if (!config_.schedule) throw std::logic_error("VirtualRanks: training needs a schedule");
  config_.algorithm.check({.topology = config_.topology.get(),
                           .codec = config_.codec,
                           .optimizer = config_.optimizer.get()});
}

Block VirtualRanks::row_of(const Buffer& buffer, std::int64_t row) const {
  auto* const values = static_cast<double*>(buffer.block().data) + row * config_.dim;
  return {values, config_.dim, DType::kFloat64, Device()};
}

std::span<double> VirtualRanks::parameters(int rank) { return row_of(x_, rank).as<double>(); }

void VirtualRanks::for_all_ranks(const std::function<void(std::size_t)>& work) {
  pool_.share(config_.world_size, 1, [&work](const PartRange& range) {
    for (std::int64_t rank = range.first; rank < range.last; ++rank) {
      work(static_cast<std::size_t>(rank));
    }
  });
}

void VirtualRanks::begin_at(const std::function<void(int, std::span<double>)>& write) {
  for_all_ranks([&](std::size_t r) {
    const auto rank = static_cast<int>(r);
    write(rank, parameters(rank));
  });
}

void VirtualRanks::mix() {
  if (mixing_lanes_.empty()) {
    for (int rank = 0; rank < config_.world_size; ++rank) {
      mixing_lanes_.push_back(
          &network_.lanes_of(rank).make_lane({.numel = config_.dim, .dtype = DType::kFloat64}));
    }
  }
  for_all_ranks([this](std::size_t r) {
    const Block x = row_of(x_, static_cast<std::int64_t>(r));
    mixing_lanes_[r]->start(num_rounds_, Buffer(x_.owner(), x));
  });
  network_.deliver(pool_);
  ++num_rounds_;
  for_all_ranks([this](std::size_t r) {
    const Intake arrived = mixing_lanes_[r]->take();
    gossamer::mix(row_of(x_, static_cast<std::int64_t>(r)), arrived.keep, arrived.inboxes,
                  arrived.exchange, best_simd_path());
  });
}

void VirtualRanks::begin_training() {
  const std::vector<ParameterInfo> parameters = {{.name = "x",
                                                  .shape = {config_.dim},
                                                  .dtype = DType::kFloat64,
                                                  .weight_decay = config_.weight_decay}};
  const BucketSpec spec{.dtype = DType::kFloat64,
                        .model_dtype = DType::kFloat64,
                        .entries = {{.parameter = 0, .offset = 0}},
                        .numel = config_.dim};
  buckets_.reserve(static_cast<std::size_t>(config_.world_size));
  for (int rank = 0; rank < config_.world_size; ++rank) {
    const Buffer row(x_.owner(), row_of(x_, rank));
    buckets_.emplace_back(0, spec, parameters, Bucket::Memory{.model = {.parameters = row}},
                          *config_.optimizer, stream_);
  }
  for (int rank = 0; rank < config_.world_size; ++rank) {
    algorithms_.push_back(config_.algorithm.make(
        {.buckets = std::span(buckets_).subspan(static_cast<std::size_t>(rank), 1),
         .lanes = network_.lanes_of(rank),
         .progress = progress_,
         .schedule = *config_.schedule,
         .stream = stream_,
         .codec = config_.codec}));
  }
}

PhasedStep VirtualRanks::step_of(std::size_t rank) {
  return {*algorithms_[rank], std::span(buckets_).subspan(rank, 1)};
}

void VirtualRanks::step(const Gradient& gradient) {
  if (buckets_.empty()) begin_training();
  for_all_ranks([&](std::size_t r) {
    const auto rank = static_cast<int>(r);
    const Block g = row_of(gradients_, rank);
    gradient(rank, row_of(x_, rank).as<double>(), g.as<double>());
    buckets_[r].offer(0, g);
    step_of(r).send_gradients();
  });
  network_.deliver(pool_);
  const double lr = config_.schedule->lr(progress_.num_updates());
  for_all_ranks([&](std::size_t r) { step_of(r).update(lr); });
  for_all_ranks([&](std::size_t r) { step_of(r).send_parameters(); });
  network_.deliver(pool_);
  ++progress_.num_steps;
  for_all_ranks([&](std::size_t r) { step_of(r).mix(stream_); });
}

std::vector<double> VirtualRanks::mean() {
  std::vector<double> mean(static_cast<std::size_t>(config_.dim));
  // Threads share the columns, so every sum runs over the ranks in their order.
  pool_.share(config_.dim, 8, [&](const PartRange& range) {
    for (int rank = 0; rank < config_.world_size; ++rank) {
      const std::span<const double> x = parameters(rank);
      const double weight = network_.weights()[static_cast<std::size_t>(rank)] / config_.world_size;
      for (auto d = static_cast<std::size_t>(range.first); d < static_cast<std::size_t>(range.last);
           ++d) {
        mean[d] += weight * x[d];
      }
    }
  });
  return mean;
}

double VirtualRanks::distance_from(std::span<const double> centre) {
  std::vector<double> squares(static_cast<std::size_t>(config_.world_size));
  for_all_ranks([&](std::size_t rank) {
    const std::span<const double> x = parameters(static_cast<int>(rank));
    double sum = 0.0;
    for (std::size_t d = 0; d < centre.size(); ++d) sum += (x[d] - centre[d]) * (x[d] - centre[d]);
    squares[rank] = sum;
  });
  double sum = 0.0;
  for (const double square : squares) sum += square;
  return std::sqrt(sum / config_.world_size);
}

}  // namespace gossamer::apps
