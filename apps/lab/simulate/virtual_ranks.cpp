#include "apps/lab/simulate/virtual_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

// Plans of a longer period are made anew in every turn.
constexpr std::int64_t kMostPlannedRankRounds = std::int64_t{1} << 22;

}  // namespace

VirtualRanks::VirtualRanks(Config config)
    : config_(std::move(config)), pool_(config_.num_threads), push_sum_(config_.world_size) {
  const std::int64_t numel = config_.world_size * config_.dim;
  try {
    x_ = Buffer(numel, DType::kFloat64);
    if (config_.optimizer) {
      gradients_ = Buffer(numel, DType::kFloat64);
      for (int k = 0; k < config_.optimizer->num_states(); ++k) {
        states_.emplace_back(numel, DType::kFloat64);
      }
    }
  } catch (const std::bad_alloc&) {
    throw ConfigError(concat("There is not enough memory for ", config_.world_size, " ranks with ",
                             config_.dim, " parameters each."));
  }
}

Block VirtualRanks::row_of(const Buffer& buffer, std::int64_t row) const {
  auto* const values = static_cast<double*>(buffer.block().data) + row * config_.dim;
  return {values, config_.dim, DType::kFloat64, Device()};
}

std::span<double> VirtualRanks::parameters(int rank) { return row_of(x_, rank).as<double>(); }

void VirtualRanks::for_all(std::int64_t count, const std::function<void(std::int64_t)>& work) {
  pool_.share(count, 1, [&work](const PartRange& range) {
    for (std::int64_t i = range.first; i < range.last; ++i) work(i);
  });
}

void VirtualRanks::for_all_ranks(const std::function<void(int)>& work) {
  for_all(config_.world_size, [&work](std::int64_t rank) { work(static_cast<int>(rank)); });
}

const RoundPlan& VirtualRanks::begin_round() {
  const auto period = config_.topology->period();
  const bool keeps = period && !config_.topology->directed() &&
                     *period <= kMostPlannedRankRounds / config_.world_size;
  const std::int64_t turn = keeps ? num_rounds_ % *period : 0;
  if (!keeps) plans_.clear();
  if (turn == std::ssize(plans_)) {
    plans_.emplace_back(next_round(*config_.topology, num_rounds_, push_sum_), config_.world_size);
  }
  const RoundPlan& plan = plans_[static_cast<std::size_t>(turn)];
  ++num_rounds_;
  if (plan.num_rows() > num_sent_rows_) {
    num_sent_rows_ = plan.num_rows();
    sent_ = Buffer(num_sent_rows_ * config_.dim, DType::kFloat64);
  }
  for_all_ranks([this](int rank) {
    std::memcpy(row_of(sent_, rank).data, row_of(x_, rank).data,
                static_cast<std::size_t>(config_.dim) * sizeof(double));
  });
  for (const auto& layer : plan.sums()) {
    for_all(std::ssize(layer),
            [&](std::int64_t i) { compute_sum(plan, layer[static_cast<std::size_t>(i)]); });
  }
  return plan;
}

void VirtualRanks::inboxes_of(const RoundPlan& plan, const RowWork& work,
                              std::vector<Inbox>& inboxes) const {
  inboxes.clear();
  inboxes.reserve(static_cast<std::size_t>(work.last - work.first));
  for (std::int32_t t = work.first; t < work.last; ++t) {
    const RowTerm& term = plan.terms()[static_cast<std::size_t>(t)];
    inboxes.push_back({row_of(sent_, term.row), term.weight});
  }
}

void VirtualRanks::compute_sum(const RoundPlan& plan, const RowWork& work) {
  std::vector<Inbox> inboxes;
  inboxes_of(plan, work, inboxes);
  const Block sum = row_of(sent_, work.row);
  std::memcpy(sum.data, inboxes.front().block.data,
              static_cast<std::size_t>(config_.dim) * sizeof(double));
  const std::span rest = std::span(inboxes).subspan(1);
  if (rest.empty() && work.keep != 1.0) {
    for (double& value : sum.as<double>()) value *= work.keep;
  } else {
    gossamer::mix(sum, work.keep, rest);
  }
}

void VirtualRanks::mix() {
  const RoundPlan& plan = begin_round();
  for_all(std::ssize(plan.ranks()), [&](std::int64_t i) {
    std::vector<Inbox> inboxes;
    const RowWork& work = plan.ranks()[static_cast<std::size_t>(i)];
    inboxes_of(plan, work, inboxes);
    gossamer::mix(row_of(x_, work.row), work.keep, inboxes);
  });
}

void VirtualRanks::step(const Gradient& gradient, double lr) {
  for_all_ranks([&](int rank) {
    gradient(rank, row_of(x_, rank).as<double>(), row_of(gradients_, rank).as<double>());
  });
  std::vector<const RowWork*> work_of(static_cast<std::size_t>(config_.world_size));
  const RoundPlan* plan = nullptr;
  // Nothing has been sent before the first update.
  if (num_updates_ > 0) {
    plan = &begin_round();
    for (const RowWork& work : plan->ranks()) work_of[static_cast<std::size_t>(work.row)] = &work;
  }
  ++num_updates_;
  for_all_ranks([&](int rank) {
    std::vector<Inbox> inboxes;

    const RowWork* work = work_of[static_cast<std::size_t>(rank)];
    if (work != nullptr) inboxes_of(*plan, *work, inboxes);
    ParameterUpdate update{.parameter = row_of(x_, rank),
                           .gradient = row_of(gradients_, rank),
                           .keep = work == nullptr ? 1.0 : work->keep,
                           .inboxes = inboxes,
                           .step = num_updates_,
                           .lr = lr * (1.0 / push_sum_.weights()[static_cast<std::size_t>(rank)]),
                           .weight_decay = config_.weight_decay};
    for (std::size_t k = 0; k < states_.size(); ++k) {
      update.states[k] = row_of(states_[k], rank).data;
    }
    config_.optimizer->update(update);
  });
}

std::vector<double> VirtualRanks::mean() {
  std::vector<double> mean(static_cast<std::size_t>(config_.dim));
  // Threads share the columns: every sum runs over the ranks in their order.
  pool_.share(config_.dim, 8, [&](const PartRange& range) {
    for (int rank = 0; rank < config_.world_size; ++rank) {
      const std::span<const double> x = parameters(rank);
      const double weight =
          push_sum_.weights()[static_cast<std::size_t>(rank)] / config_.world_size;
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
  for_all_ranks([&](int rank) {
    const std::span<const double> x = parameters(rank);
    double sum = 0.0;
    for (std::size_t d = 0; d < centre.size(); ++d) sum += (x[d] - centre[d]) * (x[d] - centre[d]);
    squares[static_cast<std::size_t>(rank)] = sum;
  });
  double sum = 0.0;
  for (const double square : squares) sum += square;
  return std::sqrt(sum / config_.world_size);
}

}  // namespace gossamer::apps
