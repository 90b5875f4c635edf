// Tests sums over ranks whose messages a codec encodes, and all-reduce with them.

#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/core/problem.hpp"
#include "test/support/sanitized.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "core/exchange/peer_lanes.hpp"

namespace gossamer {
namespace {

/// Elements of a block: those that a codec may encode, and those behind them.
struct Size {
  std::int64_t coded = 0;
  std::int64_t plain = 0;
};

struct SumCase {
  std::string codec;
  int num_ranks = 1;
  DType dtype = DType::kFloat32;
  std::vector<Size> sizes = {};
  int num_rounds = 1;
};

/// The block of a rank: numbers between -1 and 1, then zeros and ones.
std::vector<double> values_of(const Size& size, int rank, int round) {
  Random random(static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(rank));
  std::vector<double> values;
  for (std::int64_t e = 0; e < size.coded; ++e) {
    // Exact in float32.
    values.push_back(static_cast<double>(static_cast<float>(random.uniform(-1.0, 1.0))));
  }
  for (std::int64_t e = 0; e < size.plain; ++e) values.push_back((rank + e) % 3 == 0 ? 1.0 : 0.0);
  return values;
}

/// Changes the blocks of a rank before they are sent.
using Edit = std::function<void(int rank, std::vector<double>& values)>;

struct SumResults {
  /// Of the last round: blocks[rank][lane].
  std::vector<std::vector<std::vector<double>>> blocks;
  /// The residuals of the ranks.
  std::vector<std::vector<std::vector<double>>> residuals;
  std::vector<double> bytes_sent;
};

/// Sums blocks of all sizes at the same time, with a lane for each.
SumResults sum_of(
    const SumCase& c, const Edit& edit = [](int, std::vector<double>&) {}) {
  SumResults results;
  results.blocks.resize(static_cast<std::size_t>(c.num_ranks));
  results.residuals.resize(static_cast<std::size_t>(c.num_ranks));
  results.bytes_sent.resize(static_cast<std::size_t>(c.num_ranks));
  run_ranks(c.num_ranks, [&](Communicator& communicator, const World& world) {
    const auto rank = static_cast<std::size_t>(world.rank);
    InlineStream stream;
    PipelineMetrics metrics;
    PeerLanes factory({.stream = stream,
                       .communicator = communicator,
                       .topology = nullptr,
                       .codec = find_codec(c.codec),
                       .metrics = metrics});
    std::vector<Lane*> lanes;
    std::vector<Buffer> blocks;
    for (const Size& size : c.sizes) {
      const std::int64_t numel = size.coded + size.plain;
      lanes.push_back(&factory.make_lane({.members = LaneMembers::kAll,
                                          .result = LaneResult::kSum,
                                          .bucket = std::ssize(lanes),
                                          .numel = numel,
                                          .num_coded = size.coded,
                                          .dtype = c.dtype}));
      blocks.emplace_back(numel, c.dtype);
    }
    for (int round = 0; round < c.num_rounds; ++round) {
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        std::vector<double> values = values_of(c.sizes[i], world.rank, round);
        edit(world.rank, values);
        write_block(blocks[i].block(), values);
        lanes[i]->start(round, blocks[i]);
      }
      results.blocks[rank].clear();
      results.residuals[rank].clear();
      for (Lane* const lane : lanes) {
        lane->wait();
        const Intake sum = lane->take();
        EXPECT_EQ(sum.keep, 0.0);
        ASSERT_EQ(sum.inboxes.size(), 1U);
        EXPECT_EQ(sum.inboxes.front().weight, 1.0);
        results.blocks[rank].push_back(read_block(sum.inboxes.front().block));
        EXPECT_TRUE(lane->take().inboxes.empty());
        const Buffer rest(sum.inboxes.front().block.numel, c.dtype);
        lane->accumulate_residual(rest.block());
        results.residuals[rank].push_back(read_block(rest.block()));
      }
    }
    results.bytes_sent[rank] = metrics.bytes_sent;
  });
  return results;
}

double largest_of(const std::vector<double>& values, std::int64_t count) {
  double largest = 0.0;
  for (std::int64_t e = 0; e < count; ++e) {
    largest = std::max(largest, std::abs(values[static_cast<std::size_t>(e)]));
  }
  return largest;
}

/// How far the sent form of `x` may be from it, where `largest` is the largest size in the block.
double rounding(std::string_view codec, double x, double largest) {
  if (codec == "bf16") return std::ldexp(std::abs(x), -8);
  if (codec == "fp16") return std::max(std::ldexp(std::abs(x), -11), std::ldexp(1.0, -25));
  return largest / (codec == "int8" ? 254.0 : 14.0) * (1.0 + 1e-6);
}

/// Compares the sum of a lane with the one in double.
void expect_near_sum(const SumCase& c, const Size& size, const std::vector<double>& found) {
  std::vector<std::vector<double>> blocks;
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    blocks.push_back(values_of(size, rank, c.num_rounds - 1));
  }
  std::vector<double> exact(blocks.front().size());
  std::vector<double> bound(exact.size());
  for (const std::vector<double>& block : blocks) {
    const double largest = largest_of(block, size.coded);
    for (std::size_t e = 0; e < exact.size(); ++e) {
      exact[e] += block[e];
      bound[e] += rounding(c.codec, block[e], largest) + 1e-6;
    }
  }
  const double most = largest_of(exact, size.coded) + *std::ranges::max_element(bound);
  double furthest = 0.0;
  for (std::size_t e = 0; e < exact.size(); ++e) {
    if (static_cast<std::int64_t>(e) >= size.coded) {
      ASSERT_EQ(found[e], exact[e]) << "plain element " << e;
      continue;
    }
    const double second = rounding(c.codec, std::abs(exact[e]) + bound[e], most);
    ASSERT_NEAR(found[e], exact[e], c.num_ranks == 1 ? 0.0 : bound[e] + second) << e;
    furthest = std::max(furthest, std::abs(found[e] - exact[e]));
  }
  if (size.coded >= 1000) {
    EXPECT_EQ(furthest > 1e-5, c.num_ranks > 1);
  }
}

class EveryCodedSum : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodedSum, testing::Values("bf16", "fp16", "int8", "int4"),
                         own_name);

TEST_P(EveryCodedSum, IsNearTheSumAndTheSameOnAllRanks) {
  for (int n = 1; n <= (kSanitized ? 4 : 9); ++n) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      SumCase c{.codec = GetParam(), .num_ranks = n, .dtype = dtype, .num_rounds = 2};
      for (const std::int64_t numel : {1, 2, n - 1, n, n + 1, 1000, 4097}) {
        for (const std::int64_t plain : {1, 3, 20}) c.sizes.push_back({numel, plain});
        if (numel > 0) c.sizes.push_back({numel, 0});
      }
      const SumResults results = sum_of(c);
      for (std::size_t i = 0; i < c.sizes.size(); ++i) {
        SCOPED_TRACE(concat(n, " ranks, ", name_of(dtype), ", ", c.sizes[i].coded, " elements and ",
                            c.sizes[i].plain));
        expect_near_sum(c, c.sizes[i], results.blocks.front()[i]);
        for (const auto& blocks : results.blocks) EXPECT_EQ(blocks[i], results.blocks.front()[i]);
      }
    }
  }
}

TEST_P(EveryCodedSum, SendsShardsTwice) {
  const auto ceiling = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  for (const int n : {1, 2, 3, 4}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const Size& size : {Size{1000, 3}, {4097, 20}, {1, 1}, {10'000, 0}}) {
        const std::int64_t shard = ceiling(size.coded, n);
        const std::int64_t scales = 4 * ceiling(shard, 1024);
        const std::int64_t coded = GetParam() == "int8"   ? shard + scales
                                   : GetParam() == "int4" ? ceiling(shard, 2) + scales
                                                          : 2 * shard;
        const std::int64_t message = coded + ceiling(size.plain, n) * size_of(dtype);
        const SumCase c{.codec = GetParam(), .num_ranks = n, .dtype = dtype, .sizes = {size}};
        const auto plain = static_cast<double>((size.coded + size.plain) * size_of(dtype));
        for (const double bytes : sum_of(c).bytes_sent) {
          EXPECT_EQ(bytes, static_cast<double>(2 * (n - 1) * message));
          if (size.coded >= 1000 && n > 1) {
            EXPECT_LT(bytes, 0.51 * 2.0 * (n - 1) / n * plain);
          }
        }
      }
    }
  }
}

TEST_P(EveryCodedSum, ShowsAllRanksWhatIsNotFinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> strange = {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(),
                                 1e300};
  if (GetParam() == "fp16") strange.push_back(65520.0);
  for (const double bad : strange) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      const SumCase c{.codec = GetParam(), .num_ranks = 3, .dtype = dtype, .sizes = {{6000, 7}}};
      constexpr std::size_t kPlace = 2005;
      const SumResults good = sum_of(c);
      const SumResults found = sum_of(c, [bad](int rank, std::vector<double>& values) {
        if (rank == 1) values[kPlace] = bad;
      });
      for (const auto& blocks : found.blocks) {
        const std::vector<double>& block = blocks.front();
        EXPECT_FALSE(std::isfinite(block[kPlace])) << bad;
        // Beside it, at most the elements that share its scale.
        for (std::size_t e = 0; e < block.size(); ++e) {
          if (e >= 2000 && e < 3024) continue;
          ASSERT_EQ(block[e], good.blocks.front().front()[e]) << e;
        }
      }
    }
  }
}

// Error feedback: the ranks together keep what the sum lacks.
TEST(CodedSum, LeavesNothingOut) {
  for (const CodecEntry& entry : codec_table()) {
    if (entry.codec == nullptr) continue;
    for (const int n : {1, 2, 3, 5}) {
      SumCase c{.codec = std::string(entry.name),
                .num_ranks = n,
                .dtype = DType::kFloat64,
                .num_rounds = 2};
      for (const std::int64_t numel : {1, 2, n + 1, 1000, 4097, 9000}) {
        c.sizes.push_back({numel, 3});
      }
      const SumResults results = sum_of(c);
      for (std::size_t i = 0; i < c.sizes.size(); ++i) {
        SCOPED_TRACE(concat(entry.name, ", ", n, " ranks, ", c.sizes[i].coded, " elements"));
        std::vector<double> lacking = results.blocks.front()[i];
        for (double& value : lacking) value = -value;
        double furthest = 0.0;
        for (int rank = 0; rank < n; ++rank) {
          const std::vector<double> sent = values_of(c.sizes[i], rank, 1);
          const auto& rest = results.residuals[static_cast<std::size_t>(rank)][i];
          for (std::size_t e = 0; e < sent.size(); ++e) {
            lacking[e] += sent[e] - rest[e];
            furthest = std::max(furthest, std::abs(rest[e]));
          }
        }
        for (std::size_t e = 0; e < lacking.size(); ++e) EXPECT_NEAR(lacking[e], 0.0, 1e-13) << e;
        if (c.sizes[i].coded >= 1000) {
          EXPECT_EQ(furthest > 1e-5, n > 1);
        }
      }
    }
  }
}

TEST_P(EveryCodedSum, ShowsAllRanksASumBeyondTheRange) {
  const double large = GetParam() == "fp16" ? 60'000.0 : 3e38;
  const SumCase c{.codec = GetParam(), .num_ranks = 2, .sizes = {{10, 1}}};
  const SumResults found =
      sum_of(c, [large](int, std::vector<double>& values) { values[7] = large; });
  for (const auto& blocks : found.blocks) EXPECT_FALSE(std::isfinite(blocks.front()[7]));
}

TEST_P(EveryCodedSum, ForgetsWhatHasArrived) {
  run_ranks(2, [](Communicator& communicator, const World& world) {
    InlineStream stream;
    PipelineMetrics metrics;
    PeerLanes factory({.stream = stream,
                       .communicator = communicator,
                       .topology = nullptr,
                       .codec = find_codec(GetParam()),
                       .metrics = metrics});
    Lane& lane = factory.make_lane(
        {.members = LaneMembers::kAll, .result = LaneResult::kSum, .numel = 4, .num_coded = 4});
    const Buffer block(4, DType::kFloat32);
    for (int round = 0; round < 3; ++round) {
      write_block(block.block(), std::vector<double>(4, round + world.rank));
      lane.start(round, block);
      lane.drain();
      if (round == 1) lane.forget();
      const Intake sum = lane.take();
      EXPECT_EQ(sum.inboxes.empty(), round == 1);
      EXPECT_EQ(sum.keep, round == 1 ? 1.0 : 0.0);
      if (round != 1) {
        for (const double value : read_block(sum.inboxes.front().block)) {
          EXPECT_NEAR(value, 2 * round + 1, 1e-5);
        }
      }
    }
  });
}

/// All-reduce with int8, which rounds by the largest gradient of a shard. recursion_test.cpp has
/// the codecs that round each element by itself.
Problem scaled_sums(const char* options, int num_ranks) {
  return {.num_ranks = num_ranks,
          .algorithm = "allreduce",
          .algorithm_options = options,
          .codec = "int8",
          .same_start = true};
}

void expect_near_plain_sums(Problem coded) {
  const Trajectory found = run_pipeline(coded);
  for (const auto& ranks : found) {
    for (const std::vector<double>& x : ranks) EXPECT_EQ(x, ranks.front());
  }
  coded.codec = "fp32";
  const double difference = largest_difference(found, run_pipeline(coded));
  // The parameters move by up to 2.
  EXPECT_LT(difference, 0.05);
  EXPECT_GT(difference, 1e-5);
}

TEST(AllReduceInBytes, StaysNearPlainSumsAndKeepsTheRanksEqual) {
  for (const auto& [algorithm, options] : algorithm_variants()) {
    if (std::string_view(algorithm) != "allreduce") continue;
    for (const int n : {2, 3, 4}) {
      SCOPED_TRACE(concat(options, ", ", n, " ranks"));
      Problem problem = scaled_sums(options, n);
      expect_near_plain_sums(problem);
      problem.dtype = DType::kFloat32;
      problem.present = some_are_missing;
      problem.gradients = {.nonfinite = NonFinite::kSkip};
      problem.breaks = [n](int rank, int step) { return step % 4 == 1 && rank == step % n; };
      expect_near_plain_sums(problem);
    }
  }
}

TEST(AllReduceInBytes, GivesTheSameBitsWhereverStreamsLag) {
  for (const char* options : {"", "delay: 1"}) {
    Problem problem = scaled_sums(options, 3);
    problem.dtype = DType::kFloat32;
    const Trajectory expected = run_pipeline(problem);
    for (const Where where : {Where::kLagging, Where::kRelayed}) {
      problem.where = where;
      EXPECT_EQ(run_pipeline(problem), expected) << name_of(where);
    }
  }
}

}  // namespace
}  // namespace gossamer
