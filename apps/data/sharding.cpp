#include "apps/data/sharding.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

using Shards = std::vector<std::vector<std::int64_t>>;

/// Mixtures consist of a single label even at larger values of alpha. Below this value, logarithms
/// would overflow.
constexpr double kMinAlpha = 1e-6;

/// The use of a stream of random numbers.
enum class Use : std::uint8_t { kDeal = 1, kMixtures = 2, kBatches = 3 };

Random stream(std::uint64_t seed, Use use, std::int64_t rank = 0, std::int64_t epoch = 0) {
  return Random(seed, static_cast<std::uint64_t>(use) << 60U |
                          static_cast<std::uint64_t>(rank) << 40U |
                          static_cast<std::uint64_t>(epoch));
}

Shards deal_evenly(std::int64_t num_samples, std::int64_t shard_size, int num_ranks,
                   std::uint64_t seed) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(num_samples));
  std::iota(samples.begin(), samples.end(), std::int64_t{0});
  Random random = stream(seed, Use::kDeal);
  random.shuffle(std::span<std::int64_t>(samples));
  Shards shards;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    const auto first = samples.begin() + rank * shard_size;
    shards.emplace_back(first, first + shard_size);
  }
  return shards;
}

/// The samples left of each label, in random order.
using Pools = std::vector<std::vector<std::int64_t>>;

Pools make_pools(std::span<const std::int64_t> labels, Random& random) {
  std::map<std::int64_t, std::vector<std::int64_t>> by_label;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    by_label[labels[i]].push_back(static_cast<std::int64_t>(i));
  }
  Pools pools;
  for (auto& [label, samples] : by_label) {
    random.shuffle(std::span<std::int64_t>(samples));
    pools.push_back(std::move(samples));
  }
  return pools;
}

/// The logarithm of a Gamma(shape) number: Gamma(a) = Gamma(a + 1) * U^(1/a). For a shape of 0.01
/// most draws themselves would be 0 in floating point.
double log_gamma_draw(double shape, Random& random) {
  const double log_larger = std::log(random.gamma(shape + 1.0));
  return log_larger + std::log(1.0 - random.uniform()) / shape;
}

/// The mixture of labels of one rank, drawn from a Dirichlet distribution. Weights are kept as
/// logarithms, so that labels of tiny weight still have an order when the heavier ones have run
/// out.
class Mixture {
 public:
  Mixture(const Pools& pools, double alpha, std::size_t num_samples, Random& random) {
    for (const auto& pool : pools) {
      const double share = static_cast<double>(pool.size()) / static_cast<double>(num_samples);
      log_weights_.push_back(log_gamma_draw(alpha * share, random));
    }
    restrict_to(pools);
  }

  /// Removes the labels that have run out; at least one label must be left.
  void restrict_to(const Pools& pools) {
    double heaviest = -std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < pools.size(); ++k) {
      if (!pools[k].empty()) heaviest = std::max(heaviest, log_weights_[k]);
    }
    cumulative_.clear();
    double sum = 0;
    for (std::size_t k = 0; k < pools.size(); ++k) {
      if (!pools[k].empty()) sum += std::exp(log_weights_[k] - heaviest);
      cumulative_.push_back(sum);
    }
  }

  /// Draws the index of a label that has not run out.
  [[nodiscard]] std::size_t draw(Random& random) const {
    const double point = random.uniform() * cumulative_.back();
    // The first sum above the point belongs to a label with a weight > 0. If rounding has carried
    // the point to the very end, take the first sum that reaches the point instead.
    auto found = std::ranges::upper_bound(cumulative_, point);
    if (found == cumulative_.end()) found = std::ranges::lower_bound(cumulative_, point);
    return static_cast<std::size_t>(found - cumulative_.begin());
  }

 private:
  std::vector<double> log_weights_;
  std::vector<double> cumulative_;
};

/// Ranks take turns and draw one sample per turn; the rank that begins changes with every turn. If
/// one rank filled its shard before the next rank began, the last ranks would get only leftovers,
/// whatever their mixtures. With turns, a label runs out for all ranks at the same time, and only
/// then do they use the rest of their mixtures. Every turn takes exactly one sample per rank, and
/// the pools hold enough samples. So the loop ends, with shards of equal size.
Shards deal_by_mixture(std::span<const std::int64_t> labels, std::int64_t shard_size, int num_ranks,
                       std::uint64_t seed, double alpha) {
  Random random = stream(seed, Use::kMixtures);
  Pools pools = make_pools(labels, random);
  std::vector<Mixture> mixtures;
  mixtures.reserve(static_cast<std::size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    mixtures.emplace_back(pools, alpha, labels.size(), random);
  }
  Shards shards(static_cast<std::size_t>(num_ranks));
  std::int64_t left = shard_size * num_ranks;
  for (std::int64_t turn = 0; turn < shard_size; ++turn) {
    for (std::int64_t i = 0; i < num_ranks; ++i) {
      const auto rank = static_cast<std::size_t>((turn + i) % num_ranks);
      std::vector<std::int64_t>& pool = pools[mixtures[rank].draw(random)];
      shards[rank].push_back(pool.back());
      pool.pop_back();
      --left;
      if (pool.empty() && left > 0) {
        for (Mixture& mixture : mixtures) mixture.restrict_to(pools);
      }
    }
  }
  return shards;
}

}  // namespace

std::vector<std::vector<std::int64_t>> shard_samples(std::span<const std::int64_t> labels,
                                                     int num_ranks, std::uint64_t seed,
                                                     std::optional<double> dirichlet_alpha) {
  if (num_ranks < 1) throw std::logic_error("shard_samples: there must be at least one rank");
  const auto num_samples = static_cast<std::int64_t>(labels.size());
  if (num_samples < num_ranks) {
    throw ConfigError(concat("the training set has ", num_samples, " samples, too few for ",
                             num_ranks, " ranks; use more data or fewer ranks"));
  }
  const std::int64_t shard_size = num_samples / num_ranks;
  if (!dirichlet_alpha) return deal_evenly(num_samples, shard_size, num_ranks, seed);
  if (!(*dirichlet_alpha >= kMinAlpha) || !std::isfinite(*dirichlet_alpha)) {
    throw ConfigError(concat("the Dirichlet concentration of the labels is ",
                             shortest(*dirichlet_alpha),
                             ", allowed: a finite number >= ", shortest(kMinAlpha)));
  }
  return deal_by_mixture(labels, shard_size, num_ranks, seed, *dirichlet_alpha);
}

std::vector<std::int64_t> shuffled_shard(std::vector<std::int64_t> shard, std::uint64_t seed,
                                         int rank, std::int64_t epoch) {
  // From the same start every time, so that a resumed run finds the order without going through the
  // earlier epochs.
  Random random = stream(seed, Use::kBatches, rank, epoch);
  random.shuffle(std::span<std::int64_t>(shard));
  return shard;
}

}  // namespace gossamer::apps
