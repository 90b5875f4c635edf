#include "apps/data/dealer.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "apps/data/sharding.hpp"
#include "base/random.hpp"

namespace gossamer::apps {
namespace {

// A stream of the run's seed that nothing else uses; sharding.cpp and the loader have others.
constexpr std::uint64_t kRestStream = std::uint64_t{5} << 60U;

}  // namespace

Dealer::Dealer(Setup setup, const std::vector<WorldChange>& changes) : setup_(std::move(setup)) {
  if (setup_.batch_size < 1) throw std::logic_error("Dealer: the batch size must be positive");
  if (changes.empty() || changes.front().step != 0) {
    throw std::logic_error("Dealer: the first change must be that of step 0");
  }
  num_ranks_ = changes.front().num_ranks;
  part_ = whole(0, 0);
  for (const WorldChange& next : std::span(changes).subspan(1)) change(next);
}

const Dealer::Shards& Dealer::shards() const {
  const auto found = shards_.find(num_ranks_);
  if (found != shards_.end()) return found->second;
  return shards_
      .emplace(num_ranks_,
               shard_samples(setup_.labels, num_ranks_, setup_.seed, setup_.dirichlet_alpha))
      .first->second;
}

std::int64_t Dealer::batch_size() const {
  return std::min(setup_.batch_size, std::ssize(shards().front()));
}

std::int64_t Dealer::batches_per_epoch() const {
  return std::ssize(shards().front()) / batch_size();
}

Dealer::Part Dealer::whole(std::int64_t first_step, std::int64_t epoch) const {
  return {.first_step = first_step, .epoch = epoch, .num_batches = batches_per_epoch()};
}

Dealer::Part Dealer::part_at(std::int64_t step) const {
  if (step < part_.first_step) throw std::logic_error("Dealer: a step before the last change");
  const std::int64_t end = part_.first_step + part_.num_batches;
  if (step < end) return part_;
  const std::int64_t num_between = (step - end) / batches_per_epoch();
  return whole(end + num_between * batches_per_epoch(), part_.epoch + 1 + num_between);
}

std::int64_t Dealer::epoch_of(std::int64_t step) const { return part_at(step).epoch; }

std::vector<std::int64_t> Dealer::order_of(const Part& part, int rank) const {
  const auto place = static_cast<std::size_t>(rank);
  if (part.rest) return part.rest->shards.at(place);
  return shuffled_shard(shards().at(place), setup_.seed, rank, part.epoch);
}

std::vector<std::int64_t> Dealer::batch(int rank, std::int64_t step) const {
  const Part part = part_at(step);
  if (cached_.rank != rank || cached_.first_step != part.first_step) {
    cached_ = {.rank = rank, .first_step = part.first_step, .order = order_of(part, rank)};
  }
  const auto first = cached_.order.begin() + (step - part.first_step) * batch_size();
  return {first, first + batch_size()};
}

std::vector<std::int64_t> Dealer::left_of(const Part& part, std::int64_t num_steps) const {
  std::vector<bool> is_used(setup_.labels.size());
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const std::vector<std::int64_t> order = order_of(part, rank);
    const auto end = order.begin() + num_steps * batch_size();
    for (auto sample = order.begin(); sample != end; ++sample) {
      is_used[static_cast<std::size_t>(*sample)] = true;
    }
  }
  std::vector<std::int64_t> samples(setup_.labels.size());
  std::iota(samples.begin(), samples.end(), std::int64_t{0});
  if (part.rest) samples = part.rest->samples;
  std::erase_if(samples,
                [&](std::int64_t sample) { return is_used[static_cast<std::size_t>(sample)]; });
  return samples;
}

Dealer::Shards Dealer::deal(const std::vector<std::int64_t>& samples, std::int64_t epoch,
                            std::int64_t step) const {
  std::vector<std::int64_t> labels;
  for (const std::int64_t sample : samples) {
    labels.push_back(setup_.labels[static_cast<std::size_t>(sample)]);
  }
  Random random(setup_.seed, kRestStream | static_cast<std::uint64_t>(epoch) << 40U |
                                 static_cast<std::uint64_t>(step));
  Shards shards = shard_samples(labels, num_ranks_, random.bits(), setup_.dirichlet_alpha);
  for (std::vector<std::int64_t>& shard : shards) {
    for (std::int64_t& place : shard) place = samples[static_cast<std::size_t>(place)];
  }
  return shards;
}

void Dealer::change(const WorldChange& change) {
  cached_ = {};
  const Part before = part_at(change.step);
  const std::int64_t num_steps = change.step - before.first_step;
  if (num_steps == 0 && !before.rest) {
    num_ranks_ = change.num_ranks;
    part_ = whole(change.step, before.epoch);
    return;
  }
  std::vector<std::int64_t> left = left_of(before, num_steps);
  num_ranks_ = change.num_ranks;
  const std::int64_t num_batches = std::ssize(left) / num_ranks_ / batch_size();
  if (num_batches == 0) {
    part_ = whole(change.step, before.epoch + 1);
    return;
  }
  Shards shards = deal(left, before.epoch, change.step);
  part_ = {.first_step = change.step,
           .epoch = before.epoch,
           .num_batches = num_batches,
           .rest = std::make_shared<const Part::Rest>(
               Part::Rest{.samples = std::move(left), .shards = std::move(shards)})};
}

}  // namespace gossamer::apps
