// What a training reports and saves, against the models that its ranks end with.

#include "apps/train/training_loop.hpp"

#include "test/apps/folder.hpp"
#include "test/apps/train/config_text.hpp"
#include "test/apps/train/train_run.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/text.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {
namespace {

Score score_of(const std::string& yaml, const Tensors& parameters, const Samples& images) {
  const auto model = read_text(yaml).model->make(images.shape());
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < parameters.size(); ++p) model->parameters()[p].copy_(parameters[p]);
  const std::int64_t batch_size = read_text(yaml).batch_size;
  return score(*model, images, loss_for("auto", TargetKind::kClasses), {.batch_size = batch_size});
}

TEST(TrainingLoop, SavesTheMeanModelWithItsBuffers) {
  std::string cnn = kMlp;
  cnn.replace(cnn.find("mlp, hidden: 8"), 14, "cnn, width: 3");
  for (const int num_ranks : {1, 3}) {
    for (const std::string& yaml : {kMlp, cnn}) {
      const Outcome run = train(yaml, num_ranks);
      const Tensors mean = run.mean();
      std::size_t k = 0;
      for (const auto& [name, entry] : run.saved.header.items()) {
        if (entry["dtype"] != "F32") continue;
        const auto values =
            values_at<float>(run.saved.values, entry["data_offsets"][0], entry["data_offsets"][1]);
        ASSERT_LT(k, mean.size());
        EXPECT_TRUE(torch::allclose(torch::tensor(values), mean[k].flatten(), 1e-5, 1e-7)) << name;
        EXPECT_EQ(torch::allclose(mean[k], run.local[0][k], 1e-5, 1e-7), num_ranks == 1) << name;
        ++k;
      }
      EXPECT_EQ(k, mean.size());
    }
  }
}

TEST(TrainingLoop, ReportsTheMeanAndTheLocalModels) {
  const Outcome run = train(kMlp, 3);
  const Score mean = score_of(kMlp, run.mean(), *run.data->validation);
  const auto record = run.final_record();
  EXPECT_NEAR(record["accuracy_mean_model"], mean.accuracy(), 1e-9);
  EXPECT_NEAR(record["loss_mean_model"], mean.loss(), 1e-5);
  std::vector<double> accuracies;
  double squares = 0.0;
  for (const Tensors& local : run.local) {
    accuracies.push_back(score_of(kMlp, local, *run.data->validation).accuracy());
    for (std::size_t p = 0; p < local.size(); ++p) {
      squares += (local[p] - run.mean()[p]).square().sum().item<double>();
    }
  }
  EXPECT_NEAR(record["accuracy_worst_local"], *std::ranges::min_element(accuracies), 1e-9);
  EXPECT_NEAR(record["accuracy_mean_local"], (accuracies[0] + accuracies[1] + accuracies[2]) / 3,
              1e-9);
  EXPECT_NEAR(record["consensus_distance"], std::sqrt(squares / 3), 1e-4 * std::sqrt(squares));
  EXPECT_GT(squares, 0.0);
}

bool are_equal(const Tensors& a, const Tensors& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

TEST(TrainingLoop, FollowsPhases) {
  const auto phases = [](const char* list) {
    return train(concat(kMlp, "algorithm: {phases: [", list, "]}\n"), 3);
  };
  const Outcome equal = phases(
      "{until: 4, algorithm: allreduce}, {until: 8, algorithm: gossip}, {algorithm: allreduce}");
  EXPECT_TRUE(are_equal(equal.local[0], equal.local[1]));
  EXPECT_TRUE(are_equal(equal.local[0], equal.local[2]));
  const Outcome unequal = phases("{until: 8, algorithm: allreduce}, {algorithm: gossip}");
  EXPECT_FALSE(are_equal(unequal.local[0], unequal.local[1]));
  // Phases behind the end of the run do not begin.
  const Outcome alone = train(kMlp, 3);
  EXPECT_TRUE(are_equal(phases("{until: 12, algorithm: gossip}, {algorithm: local}").local[0],
                        alone.local[0]));
  EXPECT_TRUE(are_equal(phases("{algorithm: gossip}").local[0], alone.local[0]));
}

TEST(TrainingLoop, SendsLessWhileTheRanksAreClose) {
  const auto controlled = [](const char* target) {
    return train(concat(kMlp, "algorithm: {name: gossip, consensus_control: {target: ", target,
                        ", every: 2, topology: local-sgd}}\ntopology: {name: complete}\n"),
                 3);
  };
  const auto bytes = [](const Outcome& run) {
    return run.final_record()["bytes_sent_per_step"].get<double>();
  };
  const Outcome plain = train(kMlp + "topology: {name: complete}\n", 3);
  const Outcome strict = controlled("1e-9");
  // Measuring changes no parameter, and counts: as much as a round of `complete`.
  EXPECT_TRUE(are_equal(strict.local[1], plain.local[1]));
  EXPECT_NEAR(bytes(strict), 1.5 * bytes(plain), 1e-3 * bytes(plain));
  const Outcome generous = controlled("1e3");
  EXPECT_LT(bytes(generous), 0.8 * bytes(plain));
  EXPECT_FALSE(are_equal(generous.local[1], plain.local[1]));
}

TEST(TrainingLoop, ReportsPartsOfAStepThatAddUpToNoMoreThanTheWhole) {
  // Measuring in between drains, which is not a step's waiting.
  std::string looking = kMlp;
  looking.replace(looking.find("every: 3"), 8, "every: 1, consensus_every: 1, eval_every: 2");
  const auto record = train(looking, 3).final_record();
  double parts = 0.0;
  for (const char* const part : {"forward_ms", "backward_ms", "wait_ms", "update_ms"}) {
    parts += record[part].get<double>();
  }
  EXPECT_LE(parts, 1e3 * record["train_s"].get<double>() / 12 + 1e-9);
}

TEST(TrainingLoop, RecordsMeansOverSteps) {
  std::string every_step = kMlp;
  every_step.replace(every_step.find("every: 3"), 8, "every: 1");
  const Outcome coarse = train(kMlp, 2);
  const Outcome fine = train(every_step, 2);
  ASSERT_EQ(coarse.records.size(), 4U + 2U);
  ASSERT_EQ(fine.records.size(), 12U + 2U);
  // Nobody knows anything yet; a mean over ranks, not their sum.
  EXPECT_NEAR(fine.records[0]["loss"], std::log(10.0), 0.3);
  for (std::size_t i = 0; i < 4; ++i) {
    double sum = 0.0;
    for (std::size_t k = 0; k < 3; ++k) sum += fine.records[3 * i + k]["loss"].get<double>();
    EXPECT_NEAR(coarse.records[i]["loss"], sum / 3, 1e-9);
    EXPECT_EQ(coarse.records[i]["step"], 3 * (i + 1));
    // 300 images, 2 ranks, batches of 10.
    EXPECT_DOUBLE_EQ(coarse.records[i]["epoch"], static_cast<double>(3 * (i + 1)) / 15.0);
  }
}

TEST(TrainingLoop, IsNotChangedByLookingAtIt) {
  for (const char* const model : {"{name: mlp, hidden: 8}", "{name: cnn, width: 2}",
                                  "{name: cnn, width: 2}\ndevice: {precision: bf16}",
                                  "{name: mlp, hidden: 8}\ndevice: {precision: bf16_parameters}"}) {
    const std::string yaml =
        concat("run: {steps: 12}\ndata: {train_size: 300, val_size: 70, batch_size: 10}\n",
               "model: ", model, "\nlog: {level: off, ");
    const Outcome blind = train(yaml + "every: 0}\n", 3);
    const Outcome seen = train(yaml + "every: 1, consensus_every: 1, eval_every: 2}\n", 3);
    EXPECT_EQ(blind.records.size(), 2U);
    EXPECT_GT(seen.records.size(), 12U);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      for (std::size_t p = 0; p < blind.local[rank].size(); ++p) {
        EXPECT_TRUE(torch::equal(blind.local[rank][p], seen.local[rank][p])) << model;
      }
    }
    EXPECT_EQ(blind.final_record()["parameter_checksums"],
              seen.final_record()["parameter_checksums"]);
    EXPECT_EQ(blind.saved.values, seen.saved.values) << "buffers too";
  }
}

TEST(TrainingLoop, RecordsTheLearningRateOfTheStep) {
  const Outcome run = train(kMlp + "lr_schedule: {name: step, step_size: 3, gamma: 0.5}\n", 1);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(run.records[i]["lr"], 0.01 * std::pow(0.5, static_cast<double>(i)));
  }
}

TEST(TrainingLoop, LeavesStepsOutWhoseGradientsAreNotFinite) {
  std::string wild = kMlp + "train: {nonfinite: skip}\n";
  wild.replace(wild.find("lr: 0.01"), 8, "lr: 1e30");
  const Outcome run = train(wild, 2);
  EXPECT_EQ(run.final_record()["step"], 12);
  // The first step leads beyond what float32 can multiply; all that follow are left out.
  EXPECT_EQ(run.records[0]["skipped_steps"], 2);
  EXPECT_EQ(run.records[3]["skipped_steps"], 11);
  for (const auto& values : run.local) {
    for (const torch::Tensor& tensor : values) EXPECT_TRUE(tensor.isfinite().all().item<bool>());
  }
  EXPECT_FALSE(train(kMlp, 1).records[0].contains("skipped_steps"));
}

TEST(TrainingLoop, LearnsATextByItsBytes) {
  const std::string path = (fs::path(testing::TempDir()) / concat("gossip_", getpid())).string();
  std::string text;
  for (int i = 0; i < 400; ++i) text += "gossip spreads. ";
  std::ofstream(path) << text;
  for (const std::string& precision : precision_names()) {
    SCOPED_TRACE(precision);
    const Outcome run =
        train(concat("run: {steps: 30}\nmodel: {name: gpt, layers: 1, d_model: 32, heads: 2}\n",
                     "data: {name: text, path: ", path, ", context: 16, batch_size: 8}\n",
                     "optimizer: {lr: 0.01}\ndevice: {precision: ", precision,
                     "}\nlog: {level: off, every: 10}\n"),
              2);
    EXPECT_NEAR(run.records[0]["loss"], std::log(256.0), 3.0);
    EXPECT_LT(run.records[2]["loss"], 1.0);
    EXPECT_GT(run.final_record()["accuracy_mean_model"], 0.8) << "of the bytes that follow";
    const bool rounded = precision == "bf16_parameters";
    EXPECT_EQ(run.saved.header["head.weight"]["dtype"], rounded ? "BF16" : "F32");
    EXPECT_EQ(run.saved.header["ln.weight"]["dtype"], "F32");
  }
  fs::remove(path);
}

TEST(TrainingLoop, RecordsNoGraphsOnProcessors) {
  EXPECT_EQ(exit_code_of_loop(kMlp + "device: {graph: true}\n"),
            static_cast<int>(ExitCode::kConfig));
}

TEST(TrainingLoop, CountsEpochsInBatchesOfTheShard) {
  std::string epochs = kMlp;
  epochs.replace(0, 16, "run: {epochs: 2}");
  EXPECT_EQ(train(epochs, 3).final_record()["step"], 2 * (300 / 3 / 10));
}

TEST(TrainingLoop, CountsTheSamplesThatStepsHaveUsed) {
  // 20 images for 3 ranks are 6 for each, fewer than a batch of 10.
  std::string small = kMlp;
  small.replace(small.find("300"), 3, "20");
  const auto record = train(small, 3).final_record();
  const double samples = 12 * 3 * 6;
  EXPECT_NEAR(record["samples_per_s"].get<double>() * record["train_s"].get<double>(), samples,
              1e-6 * samples);
}

TEST(TrainingLoop, SaysWhenABatchIsLargerThanWhatARankHas) {
  const auto said_with = [](const std::string& yaml) {
    testing::internal::CaptureStderr();
    const LaunchOptions options{.num_ranks = 3, .timeout_s = 60};
    const auto body = [&yaml](Communicator& communicator, const World& world) {
      const RunConfig config = read_text(yaml, {}, world);
      const TrainingLoop trainer(config,
                                 {.communicator = communicator,
                                  .world = world,
                                  .logger = Logger(LogLevel::kWarning, ""),
                                  .data = std::make_shared<const Dataset>(config.data->load(1))});
      return 0;
    };
    EXPECT_EQ(launch("threads", options, body), 0);
    return testing::internal::GetCapturedStderr();
  };
  std::string small = kMlp;
  small.replace(small.find("300"), 3, "20");
  EXPECT_NE(
      said_with(small).find("data.batch_size is 10, but each of the 3 ranks has only 6 samples"),
      std::string::npos);
  EXPECT_EQ(said_with(kMlp), "");
}

}  // namespace
}  // namespace gossamer::apps
