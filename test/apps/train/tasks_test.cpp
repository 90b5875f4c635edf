// Losses, micro-batches, precision, moving averages, and the end of a run that gets no better.

#include "test/apps/data/npy_writer.hpp"
#include "test/apps/folder.hpp"
#include "test/apps/train/config_text.hpp"
#include "test/apps/train/train_run.hpp"
#include "test/base/thrown.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/data/array_samples.hpp"
#include "apps/models/losses.hpp"
#include "apps/train/model_ema.hpp"
#include "apps/train/model_file.hpp"
#include "apps/train/precision.hpp"
#include "base/error.hpp"

namespace gossamer::apps {
namespace {

TEST(Losses, AreMeansOrSumsOverAnswers) {
  const torch::Tensor logits = torch::tensor({{1.0F, 0.0F}, {0.0F, 3.0F}, {2.0F, 0.0F}});
  const torch::Tensor classes = torch::tensor({0, 1, 1}, torch::kInt64);
  const torch::Tensor numbers = torch::tensor({{0.0F, 1.0F}, {1.0F, 1.0F}, {0.0F, 0.0F}});
  for (const LossEntry& entry : loss_table()) {
    const torch::Tensor& targets = entry.takes == TargetKind::kClasses ? classes : numbers;
    const auto mean = entry.of(logits, targets, false).item<double>();
    EXPECT_NEAR(entry.of(logits, targets, true).item<double>(), 3 * mean, 1e-5) << entry.name;
  }
  const auto loss = [&](std::string_view name, const torch::Tensor& targets) {
    return loss_for(name, targets.dim() == 1 ? TargetKind::kClasses : TargetKind::kNumbers)
        .of(logits, targets, false)
        .item<double>();
  };
  EXPECT_NEAR(loss("nll", classes), -(1.0 + 3.0 + 0.0) / 3, 1e-6);
  EXPECT_NEAR(
      loss("cross_entropy", classes),
      (std::log1p(std::exp(-1.0)) + std::log1p(std::exp(-3.0)) + std::log1p(std::exp(2.0))) / 3,
      1e-6);
  EXPECT_NEAR(loss("mse", numbers), (1 + 1 + 1 + 4 + 4 + 0) / 6.0, 1e-6);
  EXPECT_NEAR(loss("l1", numbers), (1 + 1 + 1 + 2 + 2 + 0) / 6.0, 1e-6);
  EXPECT_NEAR(loss("smooth_l1", numbers), (0.5 + 0.5 + 0.5 + 1.5 + 1.5 + 0) / 6.0, 1e-6);
  EXPECT_NEAR(loss_for("binary_cross_entropy", TargetKind::kNumbers)
                  .num_correct(logits, numbers)
                  .item<double>(),
              0.0 + 0.5 + 0.5, 1e-6);
  EXPECT_EQ(loss_for("auto", TargetKind::kClasses).name, "cross_entropy");
  EXPECT_EQ(loss_for("auto", TargetKind::kNumbers).name, "mse");
  EXPECT_TRUE(contains(
      what_of<ConfigError>([] { static_cast<void>(loss_for("mse", TargetKind::kClasses)); }),
      "allowed: cross_entropy, nll"));
}

/// y = 3 a - 2 b + 1, without noise.
std::string write_line(const Folder& folder) {
  std::vector<float> inputs;
  std::vector<float> targets;
  Random random(5);
  for (int i = 0; i < 200; ++i) {
    const double a = random.uniform(-1.0, 1.0);
    const double b = random.uniform(-1.0, 1.0);
    inputs.insert(inputs.end(), {static_cast<float>(a), static_cast<float>(b)});
    targets.push_back(static_cast<float>(3 * a - 2 * b + 1));
  }
  write_npy(folder.file("train_inputs.npy"), "<f4", {200, 2}, inputs);
  write_npy(folder.file("train_targets.npy"), "<f4", {200}, targets);
  return folder.file("");
}

TEST(Tasks, FitNumbers) {
  const Folder folder;
  const Outcome run =
      train(concat("run: {steps: 120}\nmodel: {name: mlp, layers: 0}\ndata: {name: arrays, path: ",
                   write_line(folder), ", batch_size: 10}\noptimizer: {name: sgd, lr: 0.3}\n",
                   "log: {level: off, every: 40}\n"),
            2);
  EXPECT_LT(run.final_record()["loss_mean_model"], 1e-4);
  EXPECT_GE(run.final_record()["loss_worst_local"], run.final_record()["loss_mean_local"]);
  EXPECT_FALSE(run.final_record().contains("accuracy_mean_model"));
  const torch::Tensor& weight = run.local[0][0];
  EXPECT_NEAR(weight[0][0].item<double>(), 3.0, 0.05);
  EXPECT_NEAR(weight[0][1].item<double>(), -2.0, 0.05);
}

TEST(Tasks, CheckTargetsThatMustBeFractions) {
  const auto data_with = [](float number) {
    const auto samples = std::make_shared<const ArraySamples>(
        SampleShape{.height = 1, .width = 1, .num_outputs = 1}, 2,
        ArraySamples::Content{.values = std::vector<float>{1, 2}, .numbers = {0.5F, number}});
    return Dataset{.train = samples, .validation = samples};
  };
  const LossEntry& fractions = loss_for("binary_cross_entropy", TargetKind::kNumbers);
  EXPECT_NO_THROW(check_targets(fractions, data_with(1.0F)));
  EXPECT_TRUE(contains(what_of<DataError>([&] { check_targets(fractions, data_with(-1.0F)); }),
                       "training sample 1 is -1"));
  EXPECT_NO_THROW(check_targets(loss_for("mse", TargetKind::kNumbers), data_with(-1.0F)));
}

TEST(Tasks, RefuseALossThatDoesNotFitTheData) {
  EXPECT_EQ(exit_code_of_loop(kMlp + "train: {loss: mse}\n"), static_cast<int>(ExitCode::kConfig));
}

TEST(Accumulate, AddsUpToLargerBatches) {
  // The images of a step are the same; the order in which their gradients are added is not.
  std::string parts = kMlp + "train: {accumulate: 5}\n";
  parts.replace(parts.find("batch_size: 10"), 14, "batch_size: 2");
  const Outcome large = train(kMlp, 2);
  const Outcome small = train(parts, 2);
  EXPECT_EQ(small.final_record()["step"], 12);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(small.records[i]["loss"], large.records[i]["loss"], 1e-3);
    EXPECT_DOUBLE_EQ(small.records[i]["epoch"], large.records[i]["epoch"]);
  }
  for (std::size_t p = 0; p < large.local[0].size(); ++p) {
    EXPECT_TRUE(torch::allclose(small.local[1][p], large.local[1][p], 1e-2, 1e-3)) << p;
  }
  std::string epochs = kMlp + "train: {accumulate: 4}\n";
  epochs.replace(0, 16, "run: {epochs: 2}");
  EXPECT_EQ(train(epochs, 3).final_record()["step"], 2 * (300 / 3 / 10) / 4);
}

TEST(LossScaler, HalvesAndDoubles) {
  LossScaler scaler;
  EXPECT_EQ(scaler.scale(), 65536.0);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 32768.0);
  for (std::int64_t i = 0; i < LossScaler::kInterval - 1; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 32768.0);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 65536.0);
  for (int i = 0; i < 40; ++i) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1.0);
}

TEST(Fp16, LeavesOutStepsUntilTheScaleFits) {
  // Gradients of a loss of 65536 * 1e4 do not fit into float16: the first steps overflow.
  const Folder folder;
  std::vector<float> inputs;
  std::vector<float> targets;
  for (int i = 0; i < 64; ++i) {
    inputs.push_back(static_cast<float>(i % 8) / 8.0F);
    targets.push_back(100.0F * inputs.back());
  }
  write_npy(folder.file("train_inputs.npy"), "<f4", {64, 1}, inputs);
  write_npy(folder.file("train_targets.npy"), "<f4", {64}, targets);
  const Outcome run =
      train(concat("run: {steps: 60}\nmodel: {name: mlp, layers: 0}\ndata: {name: arrays, path: ",
                   folder.file(""), ", batch_size: 4}\noptimizer: {name: sgd, lr: 0.3}\n",
                   "device: {precision: fp16}\nlog: {level: off, every: 1}\n"),
            2);
  EXPECT_GE(run.records[0]["skipped_steps"], 1);
  const auto skipped = run.records[59]["skipped_steps"].get<int>();
  EXPECT_GT(skipped, 2);
  EXPECT_LT(skipped, 30) << "the scale comes down";
  EXPECT_LT(run.final_record()["loss_mean_model"], 100.0) << "2700 at the start";
  EXPECT_TRUE(contains(refusal(kMlp + "device: {precision: fp16}\ntrain: {nonfinite: abort}\n"),
                       "allowed: skip"));
  EXPECT_TRUE(
      contains(refusal(kMlp + "device: {precision: fp16, graph: true}\n"), "device.graph: false"));
  EXPECT_TRUE(contains(refusal(kMlp + "device: {graph: true}\nbuckets: {size_mb: auto}\n"),
                       "device.graph needs them in their places, allowed: a number > 0"));
}

/// The tensors of a file, flat and in the file's order.
Tensors values_in(const ParsedSafetensors& file) {
  Tensors tensors;
  for (const auto& [name, entry] : file.header.items()) {
    tensors.push_back(torch::tensor(
        values_at<float>(file.values, entry["data_offsets"][0], entry["data_offsets"][1])));
  }
  return tensors;
}

/// The mean models after 1, 2, ... steps, and from them the average in double.
void expect_average_of_mean_models(const std::string& topology) {
  const std::string begin = concat("data: {train_size: 60, val_size: 20, batch_size: 10}\n",
                                   "model: {name: mlp, hidden: 3}\noptimizer: {lr: 0.05}\n",
                                   "log: {level: off}\n", "topology: ", topology, "\n");
  const auto run_of = [&](int steps) {
    return train(concat(begin, "run: {steps: ", steps, "}\ntrain: {ema: 0.7}\n"), 3);
  };
  std::vector<torch::Tensor> average;
  Outcome last;
  for (int steps = 1; steps <= 4; ++steps) {
    last = run_of(steps);
    if (steps == 1) {
      const auto initial =
          read_text(begin, {}, {.size = 3, .node_size = 3}).model->make({28, 28, 10});
      Random random(1, 1);
      initial->reset(random);
      for (const auto& p : initial->parameters()) average.push_back(p.detach().to(torch::kFloat64));
    }
    const Tensors mean = values_in(last.saved);
    for (std::size_t p = 0; p < average.size(); ++p) {
      average[p] = 0.7 * average[p] + 0.3 * mean[p].to(torch::kFloat64).reshape(average[p].sizes());
    }
  }
  const Tensors found = values_in(last.ema);
  ASSERT_EQ(found.size(), average.size());
  for (std::size_t p = 0; p < average.size(); ++p) {
    EXPECT_TRUE(torch::allclose(found[p], average[p].flatten().to(torch::kFloat32), 1e-5, 1e-6))
        << p;
  }
  EXPECT_TRUE(last.final_record().contains("loss_ema"));
  EXPECT_TRUE(last.final_record().contains("accuracy_ema"));
}

TEST(Ema, AveragesTheMeanModelOfAllSteps) {
  expect_average_of_mean_models("{name: ring}");
  // Push-sum, with ranks of different weights.
  const Folder folder;
  write_bytes(folder.file("graph.yaml"),
              "world_size: 3\ndirected: true\nedges: [[0, 1], [1, 2], [2, 0], [1, 0]]\n");
  expect_average_of_mean_models(concat("{name: from-file, path: ", folder.file("graph.yaml"), "}"));
  EXPECT_TRUE(train(kMlp, 1).ema.values.empty());
}

TEST(BestModel, IsKept) {
  // A learning rate that grows from step to step makes the model worse in the end.
  const std::string yaml =
      "run: {steps: 30}\nmodel: {name: mlp, hidden: 8}\n"
      "data: {train_size: 300, val_size: 70, batch_size: 10}\n"
      "optimizer: {name: sgd, lr: 0.01}\nlr_schedule: {name: step, step_size: 3, gamma: 3}\n"
      "train: {nonfinite: skip}\n";
  const Outcome run = train(yaml + "log: {level: off, eval_every: 3}\n", 2);
  std::vector<double> losses;
  for (const auto& record : run.records) {
    if (record["kind"] != "eval") continue;
    losses.push_back(record["loss_mean_model"].is_null() ? 1e9
                                                         : record["loss_mean_model"].get<double>());
  }
  ASSERT_EQ(losses.size(), 10U);
  const auto best = std::ranges::min_element(losses) - losses.begin();
  ASSERT_LT(best, 8) << "the test needs a model that gets worse";
  std::string shorter = yaml;
  shorter.replace(shorter.find("30"), 2, std::to_string(3 * (best + 1)));
  // With the schedule of the whole run: steps of learning rates do not depend on its length.
  EXPECT_EQ(run.best.values, train(shorter + "log: {level: off}\n", 2).saved.values);

  std::string patient = yaml;
  patient.replace(patient.find("nonfinite"), 9, "patience: 2, nonfinite");
  const Outcome stopped = train(patient + "log: {level: off, eval_every: 3}\n", 2);
  EXPECT_EQ(stopped.final_record()["step"], 3 * (best + 1 + 2));
  EXPECT_EQ(stopped.best.values, run.best.values);
  EXPECT_TRUE(contains(refusal("train: {patience: 2}\n"), "log.eval_every"));
}

TEST(LoadModelFile, ComparesNamesAndShapes) {
  const Folder folder;
  const std::string path = folder.file("m.safetensors");
  const auto model = [](std::int64_t hidden) {
    return configure_model("mlp", Options::parse(concat("hidden: ", hidden, ", layers: 1")))
        ->make({4, 4, 3});
  };
  const auto from = model(5);
  write_model_file(path, copy_to_host(*from));
  const auto same = model(5);
  EXPECT_EQ(load_model_file(path, *same, false, "Advice."), "");
  for (std::size_t p = 0; p < from->parameters().size(); ++p) {
    EXPECT_TRUE(torch::equal(from->parameters()[p], same->parameters()[p]));
    EXPECT_TRUE(same->parameters()[p].requires_grad());
  }
  const auto wider = model(6);
  const std::string what = what_of<CheckpointError>(
      [&] { static_cast<void>(load_model_file(path, *wider, false, "Advice.")); });
  EXPECT_TRUE(contains(what, "hidden1.weight ([5, 16], not [6, 16])")) << what;
  EXPECT_TRUE(contains(what, "Advice.")) << what;
  const torch::Tensor before = wider->named_parameters()["hidden1.weight"].clone();
  const std::string difference = load_model_file(path, *wider, true, "");
  EXPECT_TRUE(contains(difference, "hidden1.weight")) << difference;
  EXPECT_TRUE(torch::equal(wider->named_parameters()["hidden1.weight"], before));
  EXPECT_TRUE(torch::equal(wider->named_parameters()["output.bias"],
                           from->named_parameters()["output.bias"]));

  write_model_file(
      path, {{"output.bias", torch::ones({3}, torch::kBFloat16)}, {"head", torch::zeros({2})}});
  const std::string other =
      what_of<CheckpointError>([&] { static_cast<void>(load_model_file(path, *same, false, "")); });
  EXPECT_TRUE(contains(other, "lacks hidden1.weight, hidden1.bias, output.weight")) << other;
  EXPECT_TRUE(contains(other, "the model has no head")) << other;
  static_cast<void>(load_model_file(path, *same, true, ""));
  EXPECT_TRUE(torch::equal(same->named_parameters()["output.bias"], torch::ones({3})));
}

TEST(ModelInit, BeginsWithTheValuesOfAFile) {
  const Folder folder;
  const std::string path = folder.file("m.safetensors");
  const auto model = read_text(kMlp).model->make({28, 28, 10});
  for (torch::Tensor& p : model->parameters()) p.detach().fill_(0.125);
  write_model_file(path, copy_to_host(*model));
  // As in caches of models.
  const std::string link = folder.file("link.safetensors");
  fs::create_symlink(path, link);
  std::string yaml = kMlp;
  yaml.replace(yaml.find("hidden: 8"), 9, concat("hidden: 8, init: ", link));
  yaml.replace(yaml.find("lr: 0.01"), 8, "lr: 0");
  for (const Tensors& local : train(yaml, 3).local) {
    for (const torch::Tensor& values : local) EXPECT_TRUE(values.eq(0.125).all().item<bool>());
  }
}

}  // namespace
}  // namespace gossamer::apps
