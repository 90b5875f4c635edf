// A run that is saved and resumed goes on bit for bit.

#include "apps/train/resume.hpp"

#include "test/apps/folder.hpp"
#include "test/apps/train/config_text.hpp"
#include "test/apps/train/train_run.hpp"
#include "test/core/algorithms/algorithm_variants.hpp"
#include "test/support/sanitized.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/agreement.hpp"
#include "apps/train/checkpointer.hpp"
#include "apps/train/stop_signals.hpp"
#include "apps/train/training_loop.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "core/checkpoint/compare.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

struct RunCase {
  std::string algorithm = "{name: gossip}";
  std::string topology = "{name: ring}";
  std::string optimizer = "{name: accum_adamw}";
  std::string rest = "";
  int num_ranks = 3;

  [[nodiscard]] std::string yaml(int steps, double bucket_mb = 25.0) const {
    return concat("run: {seed: 3, steps: ", steps,
                  ", checkpoint_every: 4, keep: 9}\nmodel: {name: cnn, width: 2}\ndata: {name: "
                  "glyphs, train_size: 120, val_size: 30, batch_size: 4}\nlog: {every: 3, "
                  "consensus_every: 5, level: warning}\nalgorithm: ",
                  algorithm, "\ntopology: ", topology, "\noptimizer: ", optimizer,
                  "\nbuckets: {size_mb: ", shortest(bucket_mb), "}\n", rest);
  }
};

/// Trains into a folder; from its newest checkpoint if `resumes`. Returns the exit code.
/// `reshapes`: from the mean of the states of its ranks.
int train_into(
    const std::string& yaml, int num_ranks, const std::string& path, bool resumes,
    bool reshapes = false,
    const std::function<void(const ProgressState&)>& observer = [](const ProgressState&) {}) {
  const StopSignals stop;
  const auto data = std::make_shared<const Dataset>(read_text(yaml).data->load(1));
  const std::string checkpoint = resumes ? newest_in(path) : "";
  EXPECT_EQ(checkpoint.empty(), !resumes);
  return launch("threads", {.num_ranks = num_ranks, .timeout_s = 60},
                [&](Communicator& communicator, const World& world) {
                  const RunConfig config = read_text(yaml, {}, world);
                  if (resumes) {
                    EXPECT_TRUE(check_resumable(read_manifest(checkpoint), config, world,
                                                checkpoint, reshapes)
                                    .size() <= (reshapes ? 1U : 0U));
                  }
                  TrainingLoop loop(config, {.communicator = communicator,
                                             .world = world,
                                             .logger = {},
                                             .data = data,
                                             .observer = observer,
                                             .stop = &stop,
                                             .saves_checkpoints = true,
                                             .resumes = resumes,
                                             .reshapes = reshapes});
                  auto out = folder_of_rank(world, path, config, resumes);
                  return exit_together(world, [&] {
                    loop.run(std::move(out), checkpoint);
                    return 0;
                  });
                });
}

std::string hash_of(const std::string& path) {
  const Manifest manifest = read_manifest(newest_in(path));
  return concat(hash_of_state(newest_in(path), manifest), " after step ", manifest.step);
}

/// Steps, losses and bytes of a run's records.
std::vector<std::string> records_of(const std::string& path) {
  std::vector<std::string> records;
  for (const nlohmann::json& record : read_records(path)) {
    // Sums in another order differ in their last digits.
    records.push_back(concat(record["kind"].get<std::string>(), " ", record["step"].dump(), " ",
                             record.value("loss", nlohmann::json()).dump(), " ",
                             std::llround(10.0 * record.value("bytes_sent_per_step", 0.0))));
  }
  return records;
}

/// 11 steps, against 11 steps of which the last ones are lost and made again from step 4 or 8.
void expect_resumed_bit_for_bit(const RunCase& run, double bucket_mb = 25.0) {
  constexpr int kSteps = 11;
  SCOPED_TRACE(run.yaml(kSteps));
  const Folder folder;
  const std::string whole = folder.file("whole");
  const std::string torn = folder.file("torn");
  ASSERT_EQ(train_into(run.yaml(kSteps), run.num_ranks, whole, false), 0);
  for (const int step : kSanitized ? std::vector{8} : std::vector{4, 8}) {
    fs::remove_all(torn);
    fs::copy(whole, torn, fs::copy_options::recursive);
    for (int later = step + 1; later <= kSteps; ++later) {
      fs::remove_all(checkpoint_folder(torn) + "/" + checkpoint_name(later));
    }
    ASSERT_EQ(train_into(run.yaml(kSteps, bucket_mb), run.num_ranks, torn, true), 0);
    EXPECT_EQ(hash_of(torn), hash_of(whole)) << "from step " << step;
    for (const StateDifference& difference :
         differences_of(newest_in(torn), newest_in(whole), run.num_ranks)) {
      ADD_FAILURE() << "rank " << difference.rank << ", " << difference.name << " "
                    << difference.text;
    }
    EXPECT_EQ(records_of(torn), records_of(whole));
  }
}

TEST(Resume, GoesOnBitForBitForEveryAlgorithmWithMostState) {
  for (const auto& [name, options] : richest_variants()) {
    expect_resumed_bit_for_bit({.algorithm = concat("{name: ", name, ", ", options, "}"),
                                .topology = concat("{name: ", topology_for(name, "ring"), "}")});
  }
}

TEST(Resume, GoesOnBitForBitWithOtherBuckets) {
  expect_resumed_bit_for_bit({.num_ranks = 2}, 1e-4);
}

TEST(Resume, GoesOnBitForBitWithClippingSchedulesAndBFloat16) {
  expect_resumed_bit_for_bit({.rest = "train: {grad_clip: delayed_global, grad_clip_norm: 0.1}\n"
                                      "lr_schedule: {name: cosine_with_warmup}\n"});
  expect_resumed_bit_for_bit({.rest = "device: {precision: bf16_parameters}\n"});
}

TEST(Resume, GoesOnBitForBitWithScaledLossesMicroBatchesAndAverages) {
  expect_resumed_bit_for_bit({.rest = "device: {precision: fp16}\ntrain: {ema: 0.9}\n"});
  expect_resumed_bit_for_bit({.rest = "train: {accumulate: 3}\n"});
}

TEST(Resume, GoesOnBitForBitInEveryPhase) {
  // Checkpoints lie before, at and behind the steps of the switches.
  const char* const phases =
      "{phases: [{until: 3, algorithm: {name: allreduce, delay: 1}}, {until: 8, algorithm: gossip, "
      "topology: static-exp}, {algorithm: {name: outer, every: 2}}]}";
  expect_resumed_bit_for_bit({.algorithm = phases});
  // Measurements after every step; the sparse topology begins at once, and ends where it has led
  // the ranks apart.
  for (const char* const target : {"1e-9", "0.02", "10"}) {
    const std::string control =
        concat("{name: gossip, consensus_control: {target: ", target,
               ", every: 1, hysteresis: 0.1, topology: {every: {base: ring, period: 3}}}}");
    expect_resumed_bit_for_bit({.algorithm = control, .topology = "{name: complete}"});
  }
}

/// Runs of 3 ranks go on from their mean with 2 and with 4 ranks.
TEST(Resume, GoesOnFromTheMeanWithOtherRanksAndAnotherTopology) {
  // One algorithm has blocks of its own, one equal models, and one nodes.
  const std::set<std::string_view> one_of_each_kind = {"gradient_tracking", "outer", "node_gossip"};
  for (const auto& [name, options] : richest_variants()) {
    if (!one_of_each_kind.contains(name)) continue;
    const RunCase run{.algorithm = concat("{name: ", name, ", ", options, "}"),
                      .topology = concat("{name: ", topology_for(name, "ring"), "}")};
    SCOPED_TRACE(run.algorithm);
    for (const int num_ranks : {2, 4}) {
      if (kSanitized && num_ranks == 4) continue;
      const Folder folder;
      const std::string out = folder.file("out");
      ASSERT_EQ(train_into(run.yaml(11), 3, out, false), 0);
      const auto mean = floats_of(newest_in(out) + "/" + std::string(kMeanModelName));
      // No step is left to make, so the model at the end is the mean.
      fs::remove(out + "/model.safetensors");
      RunCase other = run;
      if (num_ranks == 4)
        other.topology = concat("{name: ", topology_for(name, "one-peer-exp"), "}");
      if (std::string_view(name) == "gradient_tracking" || num_ranks == 2)
        other.topology = concat("{name: ", topology_for(name, "ring"), "}");
      ASSERT_EQ(train_into(other.yaml(11), num_ranks, out, true, true), 0);
      expect_near(floats_of(out + "/model.safetensors"), mean);
      // And training goes on from there, and can be resumed again.
      ASSERT_EQ(train_into(other.yaml(14), num_ranks, out, true, true), 0);
      EXPECT_EQ(read_manifest(newest_in(out)).world_size, num_ranks);
      EXPECT_EQ(read_manifest(newest_in(out)).step, 14);
      ASSERT_EQ(train_into(other.yaml(17), num_ranks, out, true), 0);
      EXPECT_EQ(read_manifest(newest_in(out)).step, 17);
      for (const auto& entry : fs::directory_iterator(checkpoint_folder(out))) {
        EXPECT_TRUE(entry.path().filename().string().starts_with("step-")) << entry.path();
      }
    }
  }
}

TEST(Checkpoints, ThatFailEndTheRunIfAskedTo) {
  for (const bool ends : {false, true}) {
    const Folder folder;
    RunCase run;
    std::string yaml = run.yaml(40);
    if (ends) yaml.replace(yaml.find("keep: 9"), 7, "keep: 9, checkpoint_failure: end");
    yaml.replace(yaml.find("level: warning"), 14, "level: off");
    // Before the first checkpoint a file appears where its folder ought to be.
    const auto spoil = [&](const ProgressState& state) {
      if (state.step == 3) write_bytes(checkpoint_folder(folder.file("out")), "x");
    };
    EXPECT_EQ(train_into(yaml, 2, folder.file("out"), false, false, spoil),
              ends ? static_cast<int>(ExitCode::kCheckpoint) : 0);
    const Json status = Json::parse(read_file(folder.file("out/status.json")));
    EXPECT_EQ(status["state"], ends ? "failed" : "done");
    EXPECT_EQ(status["exit_code"], ends ? 4 : 0);
    ASSERT_FALSE(status["faults"].empty());
    EXPECT_TRUE(status["faults"][0].get<std::string>().starts_with("a checkpoint could not"));
  }
}

TEST(Resume, IsRefusedWhereTheRunIsAnotherOne) {
  const RunCase run;
  const RunConfig config = read_text(run.yaml(11), {}, {.size = 3, .node_size = 3});
  Manifest manifest{.step = 4, .world_size = 3};
  for (const ResolvedValue& value : config.resolved) manifest.run[value.path] = value.value;
  const World world{.size = 3, .node_size = 3};
  EXPECT_TRUE(check_resumable(manifest, config, world, "x").empty());
  EXPECT_THROW(check_resumable(manifest, config, {.size = 2, .node_size = 2}, "x"),
               CheckpointError);
  EXPECT_TRUE(check_resumable(manifest, config, {.size = 2, .node_size = 2}, "x", true).empty());
  Manifest other = manifest;
  other.run["optimizer.lr"] = "0.5";
  other.run["run.steps"] = "99";
  EXPECT_EQ(check_resumable(other, config, world, "x"),
            std::vector<std::string>{"optimizer.lr was 0.5 and is 0.001"});
  other.run["topology.name"] = "\"complete\"";
  EXPECT_THROW(check_resumable(other, config, world, "x"), CheckpointError);
  EXPECT_EQ(check_resumable(other, config, world, "x", true).size(), 2U);
  Manifest batches = manifest;
  batches.run["train.accumulate"] = "7";
  EXPECT_THROW(check_resumable(batches, config, world, "x"), CheckpointError);
  EXPECT_EQ(check_resumable(batches, config, world, "x", true).size(), 1U);
  other.run["model.width"] = "77";
  EXPECT_THROW(check_resumable(other, config, world, "x", true), CheckpointError);
  Manifest file = manifest;
  file.run["model.init"] = "\"elsewhere\"";
  EXPECT_TRUE(check_resumable(file, config, world, "x").empty());
}

TEST(Resume, GoesOnFromALoopInPythonWithAWarning) {
  const RunCase run;
  const RunConfig config = read_text(run.yaml(11), {}, {.size = 3, .node_size = 3});
  const Manifest manifest{.step = 4, .world_size = 3};
  EXPECT_EQ(check_resumable(manifest, config, {.size = 3, .node_size = 3}, "x").size(), 1U);
  EXPECT_THROW(check_resumable(manifest, config, {.size = 2, .node_size = 2}, "x"),
               CheckpointError);
  EXPECT_NE(first_difference(manifest, config, false), "");
}

TEST(Checkpointer, KeepsTheNewestOnes) {
  const Folder folder;
  RunCase run;
  std::string yaml = run.yaml(21);
  yaml.replace(yaml.find("keep: 9"), 7, "keep: 2");
  ASSERT_EQ(train_into(yaml, 2, folder.file("out"), false), 0);
  const std::vector<std::string> all = list_checkpoints(checkpoint_folder(folder.file("out")));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_TRUE(all[0].ends_with("step-000000020")) << all[0];
  EXPECT_TRUE(all[1].ends_with("step-000000021")) << all[1];
}

TEST(Checkpointer, TakesTheNewestThatVerifies) {
  const Folder folder;
  const std::string out = folder.file("out");
  ASSERT_EQ(train_into(RunCase().yaml(11), 3, out, false), 0);
  const std::string last = list_checkpoints(checkpoint_folder(out)).back();
  std::ofstream(last + "/" + rank_file_name(1), std::ios::app) << "x";
  std::vector<std::string> errors;
  const auto note = [&](const std::string& error) { errors.push_back(error); };
  EXPECT_TRUE(newest_checkpoint(checkpoint_folder(out), note).ends_with("step-000000008"));
  ASSERT_EQ(errors.size(), 1U);
  const std::string later = checkpoint_folder(out) + "/" + checkpoint_name(99);
  fs::create_directories(later);
  ASSERT_EQ(train_into(RunCase().yaml(11), 3, out, true), 0);
  EXPECT_TRUE(newest_checkpoint(checkpoint_folder(out), note).ends_with("step-000000011"));
  EXPECT_EQ(errors.size(), 1U) << "the broken one has been replaced";
  for (const std::string& path : {last, later}) {
    EXPECT_TRUE(fs::exists(path + ".left-out")) << "perhaps it can be read another day";
  }
}

TEST(Resume, KeepsThePositionInTheDataOrIsRefused) {
  const Folder folder;
  const std::string out = folder.file("out");
  ASSERT_EQ(train_into(RunCase().yaml(11), 2, out, false), 0);
  const std::string before = read_file(out + "/metrics.jsonl");
  // The run is past this step.
  EXPECT_EQ(train_into(RunCase().yaml(5), 2, out, true), static_cast<int>(ExitCode::kConfig));
  EXPECT_EQ(read_file(out + "/metrics.jsonl"), before);
}

TEST(Resume, GoesOnPlainlyAfterAReshapedRunThatDiedAtOnce) {
  const Folder folder;
  const std::string out = folder.file("out");
  ASSERT_EQ(train_into(RunCase().yaml(11), 3, out, false), 0);
  RunCase other;
  other.topology = "{name: one-peer-exp}";
  testing::internal::CaptureStderr();
  EXPECT_NE(train_into(other.yaml(14), 2, out, true, true,
                       [](const ProgressState&) { throw std::logic_error("dies"); }),
            0);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(read_manifest(newest_in(out)).world_size, 2);
  EXPECT_NE(read_file(out + "/config.yaml").find("one-peer-exp"), std::string::npos);
  ASSERT_EQ(train_into(other.yaml(14), 2, out, true), 0);
  EXPECT_EQ(read_manifest(newest_in(out)).step, 14);
}

/// Changes a number in the states of the ranks from `first` on, in a run's newest checkpoint.
void set_number(const std::string& path, const std::string& name, std::int64_t value,
                int first = 0) {
  const std::string checkpoint = newest_in(path);
  Manifest manifest = read_manifest(checkpoint);
  for (int rank = first; rank < manifest.world_size; ++rank) {
    const std::string file = concat(checkpoint, "/", rank_file_name(rank));
    std::string bytes = read_file(file);
    const TensorEntry entry = *SafetensorsFile(file).find(name);
    const std::size_t values =
        bytes.size() - static_cast<std::size_t>(SafetensorsFile(file).tensors().back().end);
    std::memcpy(bytes.data() + values + static_cast<std::size_t>(entry.begin), &value,
                sizeof value);
    write_bytes(file, bytes);
    manifest.files[rank_file_name(rank)] = digest_of_file(file);
  }
  write_manifest(checkpoint, manifest);
}

TEST(Resume, RefusesStepsThatCannotBe) {
  const Folder folder;
  const std::string out = folder.file("out");
  ASSERT_EQ(train_into(RunCase().yaml(5), 1, out, false), 0);
  const std::string before = read_file(out + "/metrics.jsonl");
  for (const char* const name : {"train/step", "run/steps", "run/first_step"}) {
    for (const std::int64_t value : {std::int64_t{-7}, std::int64_t{1} << 62U}) {
      set_number(out, name, value);
      EXPECT_EQ(train_into(RunCase().yaml(7), 1, out, true),
                static_cast<int>(ExitCode::kCheckpoint))
          << name << " " << value;
      EXPECT_EQ(read_file(out + "/metrics.jsonl"), before);
    }
    set_number(out, name, name == std::string("run/first_step") ? 0 : 5);
  }
}

TEST(Resume, RefusesRanksOfDifferentSteps) {
  const Folder folder;
  const std::string out = folder.file("out");
  ASSERT_EQ(train_into(RunCase().yaml(5), 2, out, false), 0);
  set_number(out, "train/step", 3, /*first=*/1);
  EXPECT_EQ(train_into(RunCase().yaml(7), 2, out, true), static_cast<int>(ExitCode::kCheckpoint));
  set_number(out, "train/step", 5, /*first=*/1);
  EXPECT_EQ(train_into(RunCase().yaml(7), 2, out, true), 0);
}

TEST(Resume, KnowsPathsThatAreNotUtf8) {
  const RunCase run;
  RunConfig config = read_text(run.yaml(11), {}, {.size = 3, .node_size = 3});
  config.resolved.push_back({"data.path", "\"caf\xe9\""});
  const Folder folder;
  Manifest manifest{.step = 4, .world_size = 1, .run = values_for_manifest(config)};
  manifest.files[rank_file_name(0)] = {.num_bytes = 1, .sha256 = std::string(64, '0')};
  write_manifest(folder.file(""), manifest);
  const Manifest read = read_manifest(folder.file(""));
  EXPECT_EQ(read.run.at("data.path"), "\"caf\\xe9\"");
  EXPECT_TRUE(check_resumable(read, config, {.size = 1, .node_size = 1}, "x").empty());
}

TEST(TrainingLoop, GoesOnWithoutAStatusFile) {
  const Folder folder;
  const std::string out = folder.file("out");
  // A folder in the place of the file cannot be replaced, as nothing can on a full disk.
  const auto spoil = [&](const ProgressState& state) {
    const std::string file = out + "/status.json";
    if (state.step == 3) {
      fs::remove(file);
      fs::create_directories(file + "/x");
    }
    if (state.step == 9) fs::remove_all(file);
  };
  EXPECT_EQ(train_into(RunCase().yaml(11), 2, out, false, false, spoil), 0);
  EXPECT_EQ(Json::parse(read_file(out + "/status.json"))["state"], "done");
}

}  // namespace
}  // namespace gossamer::apps
