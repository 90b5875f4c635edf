// The benchmark of the kernel runs and moves what it says. No time is asserted here.

#include "apps/lab/bench/kernel_bench.hpp"

#include "test/support/sanitized.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/lab/bench/statistics.hpp"
#include "base/error.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"

namespace gossamer::apps {
namespace {

// Of a bucket. Under sanitizers a product of large matrices takes seconds.
constexpr std::int64_t kNumel = kSanitized ? 16'384 : 131'072;

KernelBenchOptions small(const std::string& optimizer) {
  return {.optimizer = optimizer,
          .threads = 2,
          .bucket_mib = kNumel * 4.0 / (1 << 20),
          .buckets = 3,
          .cycles = 2};
}

TEST(KernelBench, StatesTheLeastTrafficOfEveryOptimizer) {
  const auto least_of = [](const std::string& name, const std::string& yaml) {
    KernelBenchOptions options = small(name);
    options.optimizer_options = yaml;
    return KernelBench(options).run().least_bytes_per_element;
  };
  // Read p, g, inbox and states, write p and states; the accumulator is not read in the first step
  // of a cycle and not written in its last.
  EXPECT_EQ(least_of("sgd", ""), 16.0);
  EXPECT_EQ(least_of("sgd", "momentum: 0.9"), 24.0);
  EXPECT_EQ(least_of("adam", ""), 32.0);
  EXPECT_EQ(least_of("adamw", ""), 32.0);
  EXPECT_EQ(least_of("accum_adam", "accum_iter: 1"), 32.0);
  EXPECT_EQ(least_of("accum_adamw", "accum_iter: 4"), (28.0 + 32.0 + 32.0 + 36.0) / 4.0);
  EXPECT_EQ(least_of("accum_adamw", "accum_iter: 2"), (28.0 + 36.0) / 2.0);
}

TEST(KernelBench, CountsMasterCopiesAndWhatTheModelReads) {
  KernelBenchOptions options = small("adamw");
  options.model = DType::kBFloat16;
  // Read p, inbox, m and v, write p, m and v in float32; read g, write the rounded p in bfloat16.
  EXPECT_EQ(KernelBench(options).run().least_bytes_per_element, 7 * 4.0 + 2 * 2.0);
}

TEST(KernelBench, CountsEncodedBlocks) {
  const auto least_of = [](std::string_view codec) {
    KernelBenchOptions options = small("adamw");
    options.codec = find_codec(codec);
    return KernelBench(options).run().least_bytes_per_element;
  };
  // In place of the plain inbox it reads what was heard and sent, and writes what will be sent.
  EXPECT_EQ(least_of("bf16"), 28.0 + 3 * 2.0);
  EXPECT_EQ(least_of("int8"), 28.0 + 3 * 1.0);
  EXPECT_EQ(least_of("int4"), 28.0 + 3 * 0.5);
}

TEST(KernelBench, CountsWhatTheWorkForASumMoves) {
  const auto least_of = [](std::string_view codec, KernelPass pass) {
    KernelBenchOptions options = small("adamw");
    options.codec = find_codec(codec);
    options.pass = pass;
    return KernelBench(options).run().least_bytes_per_element;
  };
  // 1024 elements take a scale of 4 bytes, and a byte each.
  EXPECT_EQ(least_of("int8", KernelPass::kEncode), 4.0 + 1028.0 / 1024.0);
  EXPECT_EQ(least_of("bf16", KernelPass::kEncode), 4.0 + 2.0);
  // It reads the values once more and what was said, and reads and writes the error.
  EXPECT_EQ(least_of("int8", KernelPass::kFeedback), 16.0 + 2 * 1028.0 / 1024.0);
  // Of 1024 elements 16 go, in 28 bytes.
  EXPECT_EQ(least_of("topk", KernelPass::kFeedback), 16.0 + 2 * 28.0 / 1024.0);
}

TEST(KernelBench, UpdatesSeveralBucketsAtOnceAsOneByOne) {
  std::vector<std::vector<float>> ends;
  for (const int per_launch : {1, 2, 100}) {
    KernelBenchOptions options = small("adamw");
    options.per_launch = per_launch;
    KernelBench bench(options);
    bench.run();
    ends.emplace_back();
    for (const Bucket& bucket : bench.buckets()) {
      std::ranges::copy(bucket.parameters().block().as<float>(), std::back_inserter(ends.back()));
    }
  }
  EXPECT_EQ(ends[1], ends[0]);
  EXPECT_EQ(ends[2], ends[0]);
}

class KernelBenchOf : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Models, KernelBenchOf, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST_P(KernelBenchOf, UpdatesEveryElementOfEveryBucket) {
  for (const std::string& name : optimizer_names()) {
    KernelBenchOptions options = small(name);
    options.model = GetParam();
    KernelBench bench(options);
    std::vector<std::vector<float>> before;
    for (const Bucket& bucket : bench.buckets()) {
      const auto values = bucket.parameters().block().as<float>();
      before.emplace_back(values.begin(), values.end());
    }
    const KernelFigures figures = bench.run();
    EXPECT_EQ(figures.numel, kNumel);
    EXPECT_EQ(bench.num_updates(), 3 * figures.cycle) << "one cycle warms up, two count";
    for (std::size_t b = 0; b < before.size(); ++b) {
      const auto after = bench.buckets()[b].parameters().block().as<float>();
      ASSERT_EQ(static_cast<std::int64_t>(after.size()), figures.numel);
      std::int64_t num_same = 0;
      std::int64_t num_finite = 0;
      for (std::size_t i = 0; i < after.size(); ++i) {
        num_finite += std::isfinite(after[i]) ? 1 : 0;
        num_same += after[i] == before[b][i] ? 1 : 0;
      }
      EXPECT_EQ(num_finite, figures.numel) << name << ", bucket " << b;
      EXPECT_LT(num_same, figures.numel / 1000) << name << ", bucket " << b;
    }
  }
}

TEST(KernelBench, KnowsWhatAPassReadsChangesAndWrites) {
  const auto traffic_of = [](const std::string& name, std::int64_t step, DType model) {
    const PassTraffic traffic =
        make_optimizer(name, Options::parse(options_yaml(name, 4)))->least_traffic(step, model);
    return std::vector{traffic.read, traffic.changed, traffic.written};
  };
  using Bytes = std::vector<std::int64_t>;
  // Gradient and inbox are read; p, m and v change.
  EXPECT_EQ(traffic_of("adamw", 5, DType::kFloat32), (Bytes{8, 12, 0}));
  // The gradient has 2 bytes, and the rounded copy is written.
  EXPECT_EQ(traffic_of("adamw", 5, DType::kBFloat16), (Bytes{6, 12, 2}));
  // The first step of a cycle writes the accumulator and reads m and v; the next ones change it.
  EXPECT_EQ(traffic_of("accum_adamw", 5, DType::kFloat32), (Bytes{16, 4, 4}));
  EXPECT_EQ(traffic_of("accum_adamw", 6, DType::kFloat32), (Bytes{16, 8, 0}));
  // The last one reads it, and changes m and v.
  EXPECT_EQ(traffic_of("accum_adamw", 8, DType::kFloat32), (Bytes{12, 12, 0}));
}

TEST(Yardstick, TouchesEveryElementOfEveryArray) {
  WorkerPool pool(2);
  for (const std::int64_t numel : {1, 63, 5000}) {
    for (const SimdPath path : available_simd_paths()) {
      Yardstick yardstick(numel, 3, pool, path);
      // All arrays begin with ones: 2 are read, 3 are changed, and 2 get the sum.
      EXPECT_GT(yardstick.seconds_per_element({8, 12, 8}), 0.0);
      // 6 bytes are measured as two arrays of 4.
      EXPECT_GT(yardstick.seconds_per_element({6, 12, 6}), 0.0);
      for (std::size_t set = 0; set < 3; ++set) {
        ASSERT_EQ(yardstick.written(set).size(), 2U);
        for (const Buffer& array : yardstick.written(set)) {
          const auto values = array.block().as<float>();
          EXPECT_EQ(std::ranges::count(values, 5.0F), numel) << name_of(path);
        }
      }
    }
  }
}

TEST(KernelBench, GivesFiguresThatBelongTogether) {
  const KernelFigures figures = KernelBench(small("accum_adamw")).run();
  EXPECT_GT(figures.ms, 0.0);
  EXPECT_GT(figures.yardstick_gb_per_s, 0.0);
  EXPECT_NEAR(figures.ratio_to_least, figures.ms / figures.least_ms, 1e-9);
  const double bytes = figures.least_bytes_per_element * static_cast<double>(figures.numel);
  EXPECT_NEAR(figures.least_ms, 1e-6 * bytes / figures.yardstick_gb_per_s, 1e-6 * figures.least_ms);
  EXPECT_LE(figures.ratio_interval.first, figures.ratio_interval.second);
}

TEST(KernelBench, RefusesWhatCannotBe) {
  EXPECT_THROW(KernelBench(small("adamm")), ConfigError);
  KernelBenchOptions options = small("adamw");
  options.buckets = 0;
  EXPECT_THROW(KernelBench{options}, ConfigError);
  options = small("adamw");
  options.bucket_mib = 0.0;
  EXPECT_THROW(KernelBench{options}, ConfigError);
  options = small("adamw");
  options.per_launch = 0;
  EXPECT_THROW(KernelBench{options}, ConfigError);
  options = small("adamw");
  options.codec = find_codec("topk");
  EXPECT_THROW(KernelBench{options}, ConfigError) << "it encodes sums alone";
  options = small("adamw");
  options.pass = KernelPass::kEncode;
  EXPECT_THROW(KernelBench{options}, ConfigError) << "there is no codec";
}

TEST(Statistics, AreThoseOfNumpy) {
  EXPECT_EQ(mean({4.0, 1.0, 4.0}), 3.0);
  EXPECT_THROW(mean({}), std::logic_error);
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
  EXPECT_DOUBLE_EQ(quantile({10.0, 20.0, 30.0, 40.0, 50.0}, 0.1), 14.0);
  EXPECT_EQ(quantile({7.0}, 0.9), 7.0);
  EXPECT_THROW(median({}), std::logic_error);
}

TEST(Statistics, GiveAnIntervalOfTheMedian) {
  const auto numbers = [](int count) {
    std::vector<double> values;
    for (int i = count; i >= 1; --i) values.push_back(i);
    return values;
  };
  using Pair = std::pair<double, double>;
  EXPECT_EQ(median_interval(numbers(1)), Pair(1.0, 1.0));
  EXPECT_EQ(median_interval(numbers(5)), Pair(1.0, 5.0)) << "five are too few for 95 %";
  EXPECT_EQ(median_interval(numbers(6)), Pair(1.0, 6.0));
  EXPECT_EQ(median_interval(numbers(10)), Pair(2.0, 9.0));
  EXPECT_EQ(median_interval(numbers(20)), Pair(6.0, 15.0));
  const auto [low, high] = median_interval(numbers(5000));
  EXPECT_NEAR(low, 2500.0 - 0.98 * std::sqrt(5000.0), 2.0);
  EXPECT_NEAR(high, 2500.0 + 0.98 * std::sqrt(5000.0), 2.0);
}

}  // namespace
}  // namespace gossamer::apps
