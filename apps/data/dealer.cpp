#include "apps/data/dealer.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "apps/data/sharding.hpp"
#include "base/error.hpp"
#include "base/random.hpp"

namespace gossamer::apps {
namespace {

// A stream of the run's seed that nothing else uses; sharding.cpp and the loader have others.
constexpr std::uint64_t kRestStream = std::uint64_t{5} << 60U;

bool can_be(const WorldChange& change) {
  // Products of these fit in 64 bits.
  constexpr std::int64_t kMostSteps = 1'000'000'000'000;
  constexpr std::int64_t kMost = 1'000'000;
  return change.step >= 0 && change.step <= kMostSteps && change.num_ranks >= 1 &&
         change.batch_size >= 1 && change.batch_size <= kMost && change.accumulate >= 1 &&
         change.accumulate <= kMost;
}

}  // namespace

std::vector<std::int64_t> numbers_of(const std::vector<WorldChange>& changes) {
  std::vector<std::int64_t> numbers;
  for (const auto& [step, num_ranks, batch_size, accumulate] : changes) {
    numbers.insert(numbers.end(), {step, num_ranks, batch_size, accumulate});
  }
  return numbers;
}

std::vector<WorldChange> changes_of(const std::vector<std::int64_t>& numbers) {
  constexpr std::int64_t kMostRanks = 1'000'000;
  std::vector<WorldChange> changes;
  for (std::size_t i = 0; i + kNumbersOfChange <= numbers.size(); i += kNumbersOfChange) {
    const WorldChange change{
        .step = numbers[i],
        .num_ranks = static_cast<int>(std::clamp<std::int64_t>(numbers[i + 1], 0, kMostRanks)),
        .batch_size = numbers[i + 2],
        .accumulate = numbers[i + 3]};
    const bool is_next = changes.empty() ? change.step == 0 : change.step >= changes.back().step;
    if (!is_next || !can_be(change)) {
      throw CheckpointError("the changes of the number of ranks are none that a run makes");
    }
    changes.push_back(change);
  }
  return changes;
}

Dealer::Dealer(Setup setup, const std::vector<WorldChange>& changes) : setup_(std::move(setup)) {
  if (changes.empty() || changes.front().step != 0) {
    throw std::logic_error("Dealer: the first change must be that of step 0");
  }
  if (!std::ranges::all_of(changes, can_be)) throw std::logic_error("Dealer: no such change");
  now_ = changes.front();
  part_ = whole(0, 0);
  for (const WorldChange& next : std::span(changes).subspan(1)) change(next);
}

const Dealer::Shards& Dealer::shards() const {
  const auto found = shards_.find(now_.num_ranks);
  if (found != shards_.end()) return found->second;
  return shards_
      .emplace(now_.num_ranks,
               shard_samples(setup_.labels, now_.num_ranks, setup_.seed, setup_.dirichlet_alpha))
      .first->second;
}

std::int64_t Dealer::batch_size() const {
  return std::min(now_.batch_size, std::ssize(shards().front()));
}

std::int64_t Dealer::batches_per_epoch() const {
  return std::ssize(shards().front()) / batch_size();
}

std::int64_t Dealer::step_after(std::int64_t epochs) const {
  const std::int64_t num_batches =
      part_.num_batches + (epochs - part_.epoch - 1) * batches_per_epoch();
  return now_.step + num_batches / now_.accumulate;
}

Dealer::Part Dealer::whole(std::int64_t first_batch, std::int64_t epoch) const {
  return {.first_batch = first_batch, .epoch = epoch, .num_batches = batches_per_epoch()};
}

Dealer::Part Dealer::part_at(std::int64_t number) const {
  if (number < part_.first_batch) throw std::logic_error("Dealer: a batch before the last change");
  const std::int64_t end = part_.first_batch + part_.num_batches;
  if (number < end) return part_;
  const std::int64_t num_between = (number - end) / batches_per_epoch();
  return whole(end + num_between * batches_per_epoch(), part_.epoch + 1 + num_between);
}

std::int64_t Dealer::epoch_of(std::int64_t number) const { return part_at(number).epoch; }

std::vector<std::int64_t> Dealer::order_of(const Part& part, int rank) const {
  const auto place = static_cast<std::size_t>(rank);
  if (part.rest) return part.rest->shards.at(place);
  return shuffled_shard(shards().at(place), setup_.seed, rank, part.epoch);
}

std::vector<std::int64_t> Dealer::batch(int rank, std::int64_t number) const {
  const Part part = part_at(number);
  if (cached_.rank != rank || cached_.first_batch != part.first_batch) {
    cached_ = {.rank = rank, .first_batch = part.first_batch, .order = order_of(part, rank)};
  }
  const auto first = cached_.order.begin() + (number - part.first_batch) * batch_size();
  return {first, first + batch_size()};
}

std::vector<std::int64_t> Dealer::left_of(const Part& part, std::int64_t num_batches) const {
  std::vector<bool> is_used(setup_.labels.size());
  for (int rank = 0; rank < now_.num_ranks; ++rank) {
    const std::vector<std::int64_t> order = order_of(part, rank);
    const auto end = order.begin() + num_batches * batch_size();
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

Dealer::Shards Dealer::deal(const std::vector<std::int64_t>& samples, std::int64_t epoch) const {
  std::vector<std::int64_t> labels;
  for (const std::int64_t sample : samples) {
    labels.push_back(setup_.labels[static_cast<std::size_t>(sample)]);
  }
  Random random(setup_.seed, kRestStream | static_cast<std::uint64_t>(epoch) << 40U |
                                 static_cast<std::uint64_t>(first_batch_));
  Shards shards = shard_samples(labels, now_.num_ranks, random.bits(), setup_.dirichlet_alpha);
  for (std::vector<std::int64_t>& shard : shards) {
    for (std::int64_t& place : shard) place = samples[static_cast<std::size_t>(place)];
  }
  return shards;
}

void Dealer::change(const WorldChange& change) {
  if (!can_be(change)) throw std::logic_error("Dealer: no such change");
  cached_ = {};
  const std::int64_t number = first_batch_of(change.step);
  const Part before = part_at(number);
  const std::int64_t num_had = number - before.first_batch;
  const bool is_whole = num_had == 0 && !before.rest;
  std::vector<std::int64_t> left;
  if (!is_whole) left = left_of(before, num_had);
  now_ = change;
  first_batch_ = number;
  const std::int64_t num_batches = std::ssize(left) / now_.num_ranks / batch_size();
  if (num_batches == 0) {
    part_ = whole(number, is_whole ? before.epoch : before.epoch + 1);
    return;
  }
  Shards shards = deal(left, before.epoch);
  part_ = {.first_batch = number,
           .epoch = before.epoch,
           .num_batches = num_batches,
           .rest = std::make_shared<const Part::Rest>(
               Part::Rest{.samples = std::move(left), .shards = std::move(shards)})};
}

}  // namespace gossamer::apps
