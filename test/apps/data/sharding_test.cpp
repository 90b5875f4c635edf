#include "apps/data/sharding.hpp"

#include "test/base/thrown.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer::apps {
namespace {

using Alpha = std::optional<double>;
using Shards = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kLabels = 10;

std::vector<std::int64_t> make_labels(std::int64_t count) {
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(i * 7 % kLabels);
  return labels;
}

void expect_disjoint_and_equal(const Shards& shards, std::int64_t num_samples, int num_ranks) {
  ASSERT_EQ(std::ssize(shards), num_ranks);
  std::set<std::int64_t> seen;
  for (const auto& shard : shards) {
    EXPECT_EQ(std::ssize(shard), num_samples / num_ranks);
    for (const std::int64_t sample : shard) {
      EXPECT_GE(sample, 0);
      EXPECT_LT(sample, num_samples);
      EXPECT_TRUE(seen.insert(sample).second) << "sample " << sample << " was dealt twice";
    }
  }
}

/// How far a shard's labels are from the whole set's: 0 equal, towards 1 nothing in common (total
/// variation distance; the whole set is balanced).
double skew(const std::vector<std::int64_t>& shard, const std::vector<std::int64_t>& labels) {
  std::map<std::int64_t, double> counts;
  for (const std::int64_t sample : shard) ++counts[labels[static_cast<std::size_t>(sample)]];
  double sum = 0;
  for (std::int64_t label = 0; label < kLabels; ++label) {
    sum += std::abs(counts[label] / static_cast<double>(shard.size()) - 1.0 / kLabels);
  }
  return sum / 2;
}

TEST(Sharding, IsDisjointAndEqualForEveryNumberOfRanks) {
  const std::vector<std::int64_t> labels = make_labels(1003);
  for (int num_ranks = 1; num_ranks <= 17; ++num_ranks) {
    for (const Alpha alpha : {Alpha(), Alpha(10.0), Alpha(0.5), Alpha(0.05)}) {
      SCOPED_TRACE(std::to_string(num_ranks) + " ranks, alpha " +
                   std::to_string(alpha.value_or(0)));
      const Shards shards = shard_samples(labels, num_ranks, 11, alpha);
      expect_disjoint_and_equal(shards, 1003, num_ranks);
      EXPECT_EQ(shards, shard_samples(labels, num_ranks, 11, alpha)) << "not deterministic";
      EXPECT_NE(shards, shard_samples(labels, num_ranks, 12, alpha)) << "ignores the seed";
    }
  }
}

TEST(Sharding, EndsWithEqualShardsAtExtremeConcentrations) {
  const std::vector<std::int64_t> labels = make_labels(6400);
  for (const double alpha : {1e-6, 1e-3, 0.01, 1e9}) {
    for (const int num_ranks : {2, 64, 200, 6400}) {
      SCOPED_TRACE(std::to_string(num_ranks) + " ranks, alpha " + std::to_string(alpha));
      expect_disjoint_and_equal(shard_samples(labels, num_ranks, 1, alpha), 6400, num_ranks);
    }
  }
}

TEST(Sharding, WorksForLabelsOfAnyValueAndFrequency) {
  std::vector<std::int64_t> labels(500, 1'000'000'000'000);
  labels[17] = 3;
  labels[400] = 5;
  for (const Alpha alpha : {Alpha(), Alpha(0.01)}) {
    expect_disjoint_and_equal(shard_samples(labels, 7, 2, alpha), 500, 7);
  }
}

TEST(Sharding, OneRankGetsEverything) {
  for (const Alpha alpha : {Alpha(), Alpha(0.05)}) {
    Shards shards = shard_samples(make_labels(40), 1, 1, alpha);
    std::ranges::sort(shards[0]);
    std::vector<std::int64_t> all(40);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(shards[0], all);
  }
}

TEST(Sharding, SkewGrowsAsConcentrationFalls) {
  const std::vector<std::int64_t> labels = make_labels(8000);
  std::vector<double> skews;
  for (const Alpha alpha : {Alpha(), Alpha(10.0), Alpha(0.5), Alpha(0.05)}) {
    double sum = 0;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      for (const auto& shard : shard_samples(labels, 8, seed, alpha)) sum += skew(shard, labels);
    }
    skews.push_back(sum / 40);
  }
  EXPECT_LT(skews[0], 0.05);
  EXPECT_GT(skews[1], skews[0] + 0.1);
  EXPECT_GT(skews[2], skews[1] + 0.1);
  EXPECT_GT(skews[3], skews[2] + 0.02);
  EXPECT_GT(skews[3], 0.6);
}

TEST(Sharding, LastRankIsAsSkewedAsTheFirst) {
  const std::vector<std::int64_t> labels = make_labels(4000);
  double first = 0;
  double last = 0;
  constexpr int kSeeds = 200;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Shards shards = shard_samples(labels, 8, seed, 1.0);
    first += skew(shards.front(), labels) / kSeeds;
    last += skew(shards.back(), labels) / kSeeds;
  }
  EXPECT_NEAR(first, last, 0.05);
}

TEST(Sharding, RefusesMoreRanksThanSamples) {
  for (const Alpha alpha : {Alpha(), Alpha(0.5)}) {
    EXPECT_EQ(what_of<ConfigError>([&] { (void)shard_samples(make_labels(4), 5, 1, alpha); }),
              "the training set has 4 samples, too few for 5 ranks; use more data or fewer ranks");
  }
}

TEST(Sharding, RefusesAConcentrationThatIsNotPositive) {
  for (const double alpha : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e-300}) {
    EXPECT_THROW(shard_samples(make_labels(40), 4, 1, alpha), ConfigError) << alpha;
  }
  EXPECT_THROW(shard_samples(make_labels(40), 0, 1, std::nullopt), std::logic_error);
}

TEST(ShuffledShard, DependsOnSeedRankAndEpochAlone) {
  const std::vector<std::int64_t> shard = make_labels(60);
  const auto order = [&](std::uint64_t seed, int rank, std::int64_t epoch) {
    return shuffled_shard(shard, seed, rank, epoch);
  };
  EXPECT_TRUE(std::ranges::is_permutation(order(3, 1, 0), shard));
  EXPECT_EQ(order(3, 1, 0), order(3, 1, 0));
  EXPECT_NE(order(3, 1, 0), shard);
  EXPECT_NE(order(3, 1, 0), order(4, 1, 0));
  EXPECT_NE(order(3, 1, 0), order(3, 2, 0));
  EXPECT_NE(order(3, 1, 0), order(3, 1, 1));
}

}  // namespace
}  // namespace gossamer::apps
