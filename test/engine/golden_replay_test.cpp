// Parity with decent-dp 0.2.3: the pipeline on recorded gradients repeats the recorded parameters,
// whatever the buckets and whatever order the gradients come in.

#include "engine/golden_case.hpp"
#include "engine/ranks.hpp"
#include "engine/toy_model.hpp"

#include <cmath>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "gossamer/core/base/random.hpp"
#include "gossamer/core/base/text.hpp"
#include "gossamer/core/engine/consensus.hpp"

namespace gossamer {
namespace {

constexpr double kTolerance = 2e-6;

struct Replay {
  std::int64_t bucket_bytes = 0;
  bool shuffles = false;
};

std::vector<double> as_doubles(std::span<const float> values) {
  return {values.begin(), values.end()};
}

double largest_difference(const std::vector<double>& actual, std::span<const float> expected) {
  double largest = 0.0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(actual[i] - static_cast<double>(expected[i]));
    largest = std::max(largest, std::isnan(difference) ? HUGE_VAL : difference);
  }
  return largest;
}

/// The sum of the micro-batches' gradients, added in float32 as autograd does.
std::vector<double> gradient_of(const GoldenCase& golden, std::int64_t step, int rank) {
  const std::int64_t micro_batches = golden.json.at("micro_batches");
  std::vector<float> sum(golden.init.values.size());
  for (std::int64_t b = 0; b < micro_batches; ++b) {
    const auto gradient = golden.grads.row({step * micro_batches + b, rank});
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  return as_doubles(sum);
}

BucketManager::Config config_of(const GoldenCase& golden) {
  return {.algorithm = "gossip",
          .topology = std::make_shared<RecordedTopology>(golden.json),
          .optimizer = make_optimizer(golden.optimizer(), golden.optimizer_options()),
          .schedule = std::make_shared<RecordedSchedule>(golden.json.at("lrs"))};
}

void train_step(const GoldenCase& golden, const Replay& replay, std::int64_t step, int rank,
                ToyModel& model) {
  std::vector<std::int64_t> order = golden.order;
  if (replay.shuffles) {
    Random random(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step));
    random.shuffle(std::span(order));
  }
  const std::vector<double> gradient = gradient_of(golden, step, rank);
  for (const std::int64_t parameter : order) model.offer(parameter, gradient);
  model.manager().finish_step();
}

/// One rank; returns its largest difference from the record.
double replay_rank(const GoldenCase& golden, const Replay& replay, Communicator& communicator) {
  const int rank = communicator.rank();
  const BucketPlan plan = plan_buckets(golden.parameters, golden.order, replay.bucket_bytes);
  ToyModel model(communicator, config_of(golden), golden.parameters, plan,
                 as_doubles(golden.init.values));
  double largest = 0.0;
  for (std::int64_t step = 0; step < golden.steps(); ++step) {
    train_step(golden, replay, step, rank, model);
    const double error = largest_difference(model.values(), golden.expected.row({step, rank}));
    EXPECT_LE(error, kTolerance) << "step " << step + 1 << ", rank " << rank;
    largest = std::max(largest, error);
  }
  const std::vector<double> own = model.values();
  model.manager().drain();
  EXPECT_EQ(model.values(), own) << "what arrives is mixed in by the next step only";

  ModelAverage average(communicator, model.manager().blocks());
  const double error = largest_difference(model.values(), golden.final_avg.values);
  EXPECT_LE(error, kTolerance) << "average, rank " << rank;
  if (rank == 0) {
    const double distance = golden.json.at("distance_to_center_rank0");
    EXPECT_NEAR(average.distance(), distance, 1e-5 * distance);
  }
  average.restore();
  EXPECT_EQ(model.values(), own);
  return std::max(largest, error);
}

double replay_all(const GoldenCase& golden, const Replay& replay) {
  SCOPED_TRACE(concat("buckets of ", replay.bucket_bytes, " bytes, shuffled: ", replay.shuffles));
  std::mutex mutex;
  double largest = 0.0;
  run_ranks(
      golden.world_size(),
      [&](Communicator& communicator, const World&) {
        const double mine = replay_rank(golden, replay, communicator);
        const std::lock_guard lock(mutex);
        largest = std::max(largest, mine);
      },
      golden.local_world_size());
  return largest;
}

/// The parameters lie one after the other, which ToyModel takes for granted.
void expect_flat_layout(const GoldenCase& golden) {
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < golden.parameters.size(); ++i) {
    ASSERT_EQ(golden.json.at("params").at(i).at("offset"), offset);
    offset += golden.parameters[i].numel();
  }
  ASSERT_EQ(golden.init.values.size(), static_cast<std::size_t>(offset));
}

class GoldenReplay : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cases, GoldenReplay, testing::ValuesIn(golden_names()), own_name);

TEST_P(GoldenReplay, RepeatsTheRecord) {
  if (!std::filesystem::exists(golden_folder() / GetParam())) {
    GTEST_SKIP() << "no folder " << golden_folder() / GetParam();
  }
  const GoldenCase golden = read_golden_case(GetParam());
  if (golden.json.at("grad_clip_norm") != 0.0) GTEST_SKIP() << "gradients are not clipped yet";
  ASSERT_NO_FATAL_FAILURE(expect_flat_layout(golden));
  constexpr std::int64_t kOneParameterEach = 1;
  constexpr std::int64_t kOneBucket = std::numeric_limits<std::int64_t>::max();
  double largest = 0.0;
  for (const std::int64_t limit : {golden.bucket_bytes(), kOneParameterEach, kOneBucket}) {
    for (const bool shuffles : {false, true}) {
      largest = std::max(largest, replay_all(golden, {limit, shuffles}));
    }
  }
  RecordProperty("largest_difference", concat(largest));
}

TEST(GoldenCases, AreAllReplayed) {
  if (!std::filesystem::exists(golden_folder())) GTEST_SKIP() << "no folder " << golden_folder();
  std::vector<std::string> present;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    if (entry.is_directory()) present.push_back(entry.path().filename());
  }
  std::ranges::sort(present);
  EXPECT_EQ(present, golden_names());
}

TEST(GoldenCases, LaunchWhatTheyMixOneStepLater) {
  if (!std::filesystem::exists(golden_folder())) GTEST_SKIP() << "no folder " << golden_folder();
  for (const std::string& name : golden_names()) {
    const nlohmann::json json = read_golden_json(name);
    const auto& launch_edge = json.at("launch_edge");
    const auto& mix_edge = json.at("mix_edge");
    for (std::size_t k = 0; k + 1 < mix_edge.size(); ++k) {
      EXPECT_EQ(launch_edge.at(k), mix_edge.at(k + 1)) << name;
    }
  }
}

}  // namespace
}  // namespace gossamer
