#pragma once
// Trains with several ranks in this process, and keeps what comes of it.

#include "test/apps/folder.hpp"
#include "test/apps/train/config_text.hpp"

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/checkpointer.hpp"
#include "apps/train/training_loop.hpp"
#include "comm/backends.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace gossamer::apps {

using Tensors = std::vector<torch::Tensor>;

inline const std::string kMlp =
    "run: {steps: 12}\n"
    "model: {name: mlp, hidden: 8}\n"
    "data: {name: glyphs, train_size: 300, val_size: 70, batch_size: 10, dirichlet_alpha: 0.5}\n"
    "optimizer: {lr: 0.01}\n"
    "log: {level: off, every: 3}\n";

struct Outcome {
  /// The parameters of each rank at the end, then its floating point buffers.
  std::vector<Tensors> local;
  std::vector<nlohmann::json> records;
  ParsedSafetensors saved;
  /// The other files of models: best, moving average.
  ParsedSafetensors best;
  ParsedSafetensors ema;
  std::shared_ptr<const Dataset> data;

  [[nodiscard]] nlohmann::json final_record() const { return records.back(); }
  [[nodiscard]] Tensors mean() const {
    Tensors mean;
    for (std::size_t p = 0; p < local[0].size(); ++p) {
      torch::Tensor sum = local[0][p].to(torch::kFloat64);
      for (std::size_t rank = 1; rank < local.size(); ++rank) sum = sum + local[rank][p];
      mean.push_back((sum / static_cast<double>(local.size())).to(torch::kFloat32));
    }
    return mean;
  }
};

inline Tensors values_of(const TrainingLoop& trainer) {
  Tensors values;
  DecentralizedDataParallel<Model> model = trainer.model();
  for (const torch::Tensor& p : model.parameters()) values.push_back(p.detach().clone());
  for (const torch::Tensor& buffer : model.module().buffers()) {
    if (buffer.is_floating_point()) values.push_back(buffer.clone());
  }
  return values;
}

/// What writes a run's folder: null except on rank 0. `resumes`: the run goes on there.
inline std::unique_ptr<RunFolder> folder_of_rank(const World& world, const std::string& path,
                                                 const RunConfig& config, bool resumes = false) {
  if (world.rank > 0) return nullptr;
  return std::make_unique<RunFolder>(path, config.resolved,
                                     resumes ? IfFinished::kContinue : IfFinished::kRefuse);
}

/// The newest checkpoint of a run; empty: there is none.
inline std::string newest_in(const std::string& path) {
  return newest_checkpoint(checkpoint_folder(path), [](const std::string&) {});
}

/// The numbers in float32 of a safetensors file, by name.
inline std::map<std::string, std::vector<float>> floats_of(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, std::vector<float>> values;
  for (const TensorEntry& tensor : file.tensors()) {
    if (tensor.dtype != "F32") continue;
    auto& to = values[tensor.name];
    to.resize(static_cast<std::size_t>(tensor.num_bytes()) / sizeof(float));
    file.read(tensor, to.data());
  }
  return values;
}

/// Expects the values that floats_of() gives, but for rounding.
inline void expect_near(const std::map<std::string, std::vector<float>>& found,
                        const std::map<std::string, std::vector<float>>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(found.at(name)[i], values[i], 1e-6 * (1 + std::abs(values[i]))) << name;
    }
  }
}

inline Outcome train(const std::string& yaml, int num_ranks) {
  const Folder folder;
  Outcome run;
  run.local.resize(static_cast<std::size_t>(num_ranks));
  const World all{.size = num_ranks, .node_size = num_ranks};
  run.data = std::make_shared<const Dataset>(read_text(yaml, {}, all).data->load(1));
  const LaunchOptions options{.num_ranks = num_ranks, .timeout_s = 60};
  EXPECT_EQ(
      launch("threads", options,
             [&](Communicator& communicator, const World& world) {
               const RunConfig config = read_text(yaml, {}, world);
               TrainingLoop trainer(
                   config,
                   {.communicator = communicator, .world = world, .logger = {}, .data = run.data});
               trainer.run(folder_of_rank(world, folder.file("out"), config));
               run.local[static_cast<std::size_t>(world.rank)] = values_of(trainer);
               return 0;
             }),
      0);
  run.records = read_records(folder.file("out"));
  const auto parse = [&](std::string_view name) {
    const std::string path = folder.file(concat("out/", name));
    return fs::exists(path) ? parse_safetensors(read_file(path)) : ParsedSafetensors();
  };
  run.saved = parse(RunFolder::kModel);
  run.best = parse(RunFolder::kBestModel);
  run.ema = parse(RunFolder::kEmaModel);
  return run;
}

/// The exit code of a training whose loop cannot be made.
inline int exit_code_of_loop(const std::string& yaml) {
  const auto body = [&yaml](Communicator& communicator, const World& world) {
    const RunConfig config = read_text(yaml, {}, world);
    const TrainingLoop trainer(config,
                               {.communicator = communicator,
                                .world = world,
                                .logger = {},
                                .data = std::make_shared<const Dataset>(config.data->load(1))});
    return 0;
  };
  return launch("threads", {.num_ranks = 1, .log_level = LogLevel::kOff}, body);
}

}  // namespace gossamer::apps
