// Training whose ranks make different numbers of steps.

#include "test/apps/folder.hpp"
#include "test/apps/train/config_text.hpp"
#include "test/apps/train/train_run.hpp"
#include "test/core/ranks.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/checkpointer.hpp"
#include "apps/train/stop_signals.hpp"
#include "apps/train/training_loop.hpp"
#include "base/text.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {
namespace {

/// The mean number of steps of the ranks, rounded down.
std::int64_t mean_steps(const nlohmann::json& record) {
  const auto ranks = record.at("rank_steps").get<std::vector<double>>();
  const double sum = std::accumulate(ranks.begin(), ranks.end(), 0.0);
  return static_cast<std::int64_t>(sum / static_cast<double>(ranks.size()));
}

/// Samples that take their time.
class SlowSamples : public Samples {
 public:
  explicit SlowSamples(std::shared_ptr<const Samples> samples)
      : Samples(samples->kind(), samples->target(), samples->shape(), samples->size()),
        samples_(std::move(samples)) {}
  [[nodiscard]] std::span<const std::int64_t> labels() const override { return samples_->labels(); }
  void copy_array(std::int64_t index, std::span<float> out) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    samples_->copy_array(index, out);
  }

 private:
  std::shared_ptr<const Samples> samples_;
};

struct AsyncRun {
  int steps = 24;
  std::string algorithm = "async_gossip";
  std::string rest = "";
  int num_ranks = 3;

  [[nodiscard]] std::string yaml() const {
    return concat("run: {seed: 3, steps: ", steps, ", checkpoint_every: 12, keep: 9}\n",
                  "model: {name: mlp, hidden: 8}\n",
                  "data: {name: glyphs, train_size: 60, val_size: 30, batch_size: 4}\n",
                  "log: {every: 6, eval_every: 12, level: warning}\nalgorithm: ", algorithm,
                  "\ntopology: {name: static-exp}\noptimizer: {lr: 0.01}\n", rest);
  }
};

/// Trains with a slow last rank. `resumes`: from the newest checkpoint in the folder.
void train_into(const AsyncRun& run, const std::string& path, bool resumes = false,
                bool reshapes = false) {
  const StopSignals stop;
  const Dataset data = read_text(run.yaml()).data->load(1);
  const std::string checkpoint = resumes ? newest_in(path) : "";
  run_ranks(run.num_ranks, [&](Communicator& communicator, const World& world) {
    const RunConfig config = read_text(run.yaml(), {}, world);
    auto mine = std::make_shared<Dataset>(data);
    if (world.rank == world.size - 1) mine->train = std::make_shared<SlowSamples>(mine->train);
    TrainingLoop loop(config, {.communicator = communicator,
                               .world = world,
                               .logger = {},
                               .data = mine,
                               .observer = [](const ProgressState&) {},
                               .stop = &stop,
                               .saves_checkpoints = true,
                               .resumes = resumes,
                               .reshapes = reshapes});
    loop.run(folder_of_rank(world, path, config, resumes), checkpoint);
  });
}

/// The records follow one another, at most one for each multiple of log.every, and end with the
/// run.
void expect_points(const std::vector<nlohmann::json>& records, std::int64_t steps) {
  std::map<std::string, std::int64_t> last;
  for (const nlohmann::json& record : records) {
    const std::int64_t step = record["step"];
    const std::string kind = record["kind"];
    EXPECT_GT(step, last[kind]) << record;
    if (kind == "step") {
      EXPECT_TRUE(step / 6 > last[kind] / 6 || step == steps) << record;
      EXPECT_EQ(step, std::min(steps, mean_steps(record))) << record;
    }
    last[kind] = step;
    for (const char* key : {"loss", "loss_mean_model", "samples_per_s", "lr"}) {
      EXPECT_TRUE(!record.contains(key) || record[key].is_number()) << record;
    }
  }
  EXPECT_EQ(last, (std::map<std::string, std::int64_t>{
                      {"eval", steps}, {"final", steps}, {"step", steps}}));
  EXPECT_EQ(records.back()["kind"], "final");
}

/// A number of every rank in the newest checkpoint.
template <class Number>
std::vector<Number> numbers_of(const std::string& path, int num_ranks, const std::string& name) {
  std::vector<Number> numbers(static_cast<std::size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    const SafetensorsFile file(concat(newest_in(path), "/", rank_file_name(rank)));
    const TensorEntry* found = file.find(name);
    if (found == nullptr || found->num_bytes() != sizeof(Number)) {
      ADD_FAILURE() << name;
      continue;
    }
    file.read(*found, &numbers[static_cast<std::size_t>(rank)]);
  }
  return numbers;
}

template <class Number>
Number total(const std::vector<Number>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), Number{0});
}

TEST(AsynchronousTraining, ReachesThePointsOfTheRun) {
  for (const char* options :
       {"", ", mode: asynchronous", ", max_staleness: 1, rate_correction: true"}) {
    const Folder folder;
    const AsyncRun run{
        .steps = 25,
        .algorithm = concat("{name: async_gossip", options, "}"),
        .rest = "lr_schedule: {name: cosine_with_warmup}\ntrain: {nonfinite: skip}\n"};
    SCOPED_TRACE(run.algorithm);
    const std::string out = folder.file("out");
    train_into(run, out);
    const std::vector<nlohmann::json> records = read_records(out);
    expect_points(records, 25);
    for (const nlohmann::json& record : records) {
      if (record["kind"] != "step") continue;
      EXPECT_GT(record["lr"], 0.0);
      EXPECT_LE(record["lr"], 0.01);
      EXPECT_EQ(record["skipped_steps"], 0);
    }
    EXPECT_EQ(Json::parse(read_file(out + "/status.json"))["step"], 25);
    EXPECT_GE(total(numbers_of<std::int64_t>(out, 3, "train/own_step")), 3 * 25);
    EXPECT_NEAR(total(numbers_of<double>(out, 3, "run/mass")), 3.0, 1e-9);
  }
}

TEST(AsynchronousTraining, RunsWithoutSignalsAndRecords) {
  // One rank has nobody to wait for.
  for (const int num_ranks : {1, 2}) {
    const std::string yaml =
        "run: {steps: 10}\nmodel: {name: mlp, hidden: 8}\nlog: {every: 0, level: off}\n"
        "data: {name: glyphs, train_size: 40, val_size: 10, batch_size: 4}\n"
        "algorithm: async_gossip\n";
    const auto data = std::make_shared<const Dataset>(read_text(yaml).data->load(1));
    const Folder folder;
    run_ranks(num_ranks, [&](Communicator& communicator, const World& world) {
      const RunConfig config = read_text(yaml, {}, world);
      TrainingLoop loop(config, {.communicator = communicator,
                                 .world = world,
                                 .logger = {},
                                 .data = data,
                                 .observer = [](const ProgressState&) {}});
      loop.run(folder_of_rank(world, folder.file("out"), config));
    });
    const std::vector<nlohmann::json> records = read_records(folder.file("out"));
    ASSERT_EQ(records.size(), 2U);
    EXPECT_EQ(records[0]["kind"], "eval");
    EXPECT_EQ(records[1]["step"], 10);
  }
}

TEST(AsynchronousTraining, GoesOnFromACheckpoint) {
  const Folder folder;
  const std::string out = folder.file("out");
  train_into({.steps = 24}, out);
  const auto before = numbers_of<std::int64_t>(out, 3, "train/own_step");
  train_into({.steps = 42}, out, /*resumes=*/true);
  const auto after = numbers_of<std::int64_t>(out, 3, "train/own_step");
  EXPECT_EQ(read_manifest(newest_in(out)).step, 42);
  EXPECT_GE(total(after), 3 * 42);
  for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_GE(after[rank], before[rank]);
  const std::vector<nlohmann::json> records = read_records(out);
  for (std::size_t i = 1; i < records.size(); ++i) {
    EXPECT_GE(records[i]["step"], records[i - 1]["step"]) << records[i];
  }
  EXPECT_EQ(records.back()["step"], 42);
}

TEST(AsynchronousTraining, GoesOnFromTheMeanByTheMasses) {
  const Folder folder;
  const std::string out = folder.file("out");
  train_into({.steps = 24}, out);
  const auto mean = floats_of(newest_in(out) + "/" + std::string(kMeanModelName));
  fs::remove(out + "/model.safetensors");
  // No step is left to make, so the model at the end is the mean.
  train_into({.steps = 24, .num_ranks = 2}, out, /*resumes=*/true, /*reshapes=*/true);
  expect_near(floats_of(out + "/model.safetensors"), mean);
  train_into({.steps = 36, .num_ranks = 2}, out, /*resumes=*/true, /*reshapes=*/true);
  EXPECT_EQ(read_manifest(newest_in(out)).step, 36);
  EXPECT_NEAR(total(numbers_of<double>(out, 2, "run/mass")), 2.0, 1e-9);
}

TEST(AsynchronousTraining, RefusesWhatAllRanksWouldDoAfterTheSameStep) {
  const std::string yaml = "algorithm: async_gossip\ntopology: {name: static-exp}\n";
  EXPECT_EQ(refusal(yaml), "");
  const auto expect = [](const std::string& refused, const std::string& place) {
    EXPECT_TRUE(refused.starts_with(concat("conf.yaml:", place, ": "))) << refused;
    EXPECT_TRUE(contains(refused, "with async_gossip")) << refused;
  };
  expect(refusal(yaml + "train: {ema: 0.9}\n"), "3:14: train.ema");
  expect(refusal(yaml + "buckets: {size_mb: auto}\n"), "3:20: buckets.size_mb");
  expect(refusal(yaml + "log: {timeline: trace.json}\n"), "3:17: log.timeline");
  expect(refusal("algorithm: {phases: [{until: 5, algorithm: async_gossip, topology: static-exp}, "
                 "{algorithm: allreduce}]}\n"),
         "1:21: algorithm.phases");
  expect(refusal("algorithm: {name: async_gossip, consensus_control: {target: 0.1, topology: "
                 "ring}}\ntopology: {name: static-exp}\n"),
         "1:52: algorithm.consensus_control");
}

}  // namespace
}  // namespace gossamer::apps
