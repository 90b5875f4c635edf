// Models from TorchScript files.

#include "test/apps/data/npy_writer.hpp"
#include "test/apps/folder.hpp"
#include "test/apps/train/config_text.hpp"
#include "test/apps/train/train_run.hpp"
#include "test/base/thrown.hpp"
#include "test/support/sanitized.hpp"

#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/script.h>

#include "apps/models/models.hpp"
#include "apps/train/agreement.hpp"
#include "apps/train/training_loop.hpp"
#include "base/error.hpp"
#include "comm/backends.hpp"

namespace gossamer::apps {
namespace {

/// inputs [n, ...] of 784 numbers -> tied matrices, a scale, and a part of its own with a buffer.
void write_module(const std::string& path) {
  torch::manual_seed(4);
  torch::jit::Module part("Part");
  part.register_parameter("bias", torch::zeros({10}), false);
  part.register_buffer("count", torch::zeros({1}));
  part.register_attribute("training", c10::BoolType::get(), true);
  part.define(R"(
    def forward(self, x):
        if self.training:
            self.count += 1
        return x + self.bias
  )");
  torch::jit::Module module("Net");
  const torch::Tensor shared = 0.05 * torch::randn({10, 784});
  shared.set_requires_grad(true);
  module.register_parameter("weight", shared, false);
  module.register_parameter("again", shared, false);
  module.register_parameter("frozen", torch::ones({1}).set_requires_grad(false), false);
  module.register_module("part", part);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define(R"(
    def forward(self, x):
        x = x.flatten(1)
        return self.part.forward(x.matmul(self.weight.t()) + x.matmul(self.again.t())) * self.frozen
  )");
  module.save(path);
}

std::shared_ptr<Model> make(const std::string& path, std::int64_t num_outputs = 10) {
  return configure_model("torchscript", Options::parse(concat("path: \"", path, "\"")))
      ->make({.height = 28, .width = 28, .num_outputs = num_outputs});
}

TEST(TorchScript, HasTheParametersOfTheFile) {
  const Folder folder;
  const std::string path = folder.file("net.pt");
  write_module(path);
  const auto model = make(path);
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters.keys(), (std::vector<std::string>{"weight", "frozen", "part.bias"}))
      << "tied parameters are one";
  EXPECT_TRUE(parameters["weight"].requires_grad());
  EXPECT_FALSE(parameters["frozen"].requires_grad());
  EXPECT_EQ(model->named_buffers().keys(), std::vector<std::string>{"part.count"});
  Random random(1);
  const torch::Tensor before = parameters["weight"].clone();
  model->reset(random);
  EXPECT_TRUE(torch::equal(parameters["weight"], before)) << "the file has the initial values";
  // A write to the tensor reaches the program in the file, tied or not.
  const torch::Tensor ones = torch::ones({2, 1, 28, 28});
  {
    const torch::NoGradGuard no_grad;
    parameters["weight"].fill_(0.5);
  }
  EXPECT_FLOAT_EQ(model->forward(ones)[0][0].item<float>(), 784.0F);
  EXPECT_EQ(model->named_buffers()["part.count"].item<float>(), 1.0F);
  model->eval();
  model->forward(ones);
  EXPECT_EQ(model->named_buffers()["part.count"].item<float>(), 1.0F) << "evaluation";
  EXPECT_TRUE(
      contains(configure_model("torchscript", Options::parse("path: x"))->warning(), "holds code"));
}

TEST(TorchScript, SaysWhatIsWrong) {
  const Folder folder;
  const std::string path = folder.file("net.pt");
  EXPECT_TRUE(contains(what_of<DataError>([&] { make(path); }), path));
  write_bytes(path, "this is no archive");
  EXPECT_TRUE(contains(what_of<DataError>([&] { make(path); }), "torch.jit.save"));
  write_module(path);
  const auto model = make(path, 7);
  EXPECT_TRUE(contains(what_of<ConfigError>([&] {
                         model->forward(torch::ones({2, 1, 28, 28}));
                       }),
                       "with a last dimension of 7"));
}

TEST(TorchScript, RefusesOutputsThatAreNoAnswers) {
  const Folder folder;
  const std::string path = folder.file("net.pt");
  const auto forward = [&](const std::string& body) {
    torch::jit::Module module("Net");
    module.register_parameter("weight", torch::ones({784, 10}, torch::requires_grad()), false);
    module.define(concat("def forward(self, x):\n    ", body, "\n"));
    module.save(path);
    const auto model = make(path);
    return what_of<ConfigError>([&] { model->forward(torch::ones({2, 1, 28, 28})); });
  };
  EXPECT_EQ(forward("return x.flatten(1).matmul(self.weight)"), "");
  EXPECT_TRUE(contains(forward("return x.flatten(1).matmul(self.weight).mean(0, keepdim=True)"),
                       "the data need 2 answers"));
  EXPECT_TRUE(contains(forward("return x.flatten(1), x"), "returns no tensor"));
  EXPECT_TRUE(contains(forward("return x.flatten(1).matmul(self.weight).long()"),
                       "numbers of the type Long"));
  EXPECT_TRUE(contains(forward("return x.flatten(1)[:, :10]"), "do not depend on the parameters"));
  const std::string failed = forward("return x.matmul(self.weight)");
  EXPECT_TRUE(contains(failed, "failed for inputs of the shape [2, 1, 28, 28]")) << failed;
  EXPECT_EQ(failed.find('\n'), std::string::npos);
}

TEST(TorchScript, RefusesAMatrixThatIsTiedToItsTranspose) {
  const Folder folder;
  torch::jit::Module module("Net");
  const torch::Tensor square = torch::ones({10, 10});
  module.register_parameter("encode", square, false);
  module.register_parameter("decode", square.t(), false);
  module.define("def forward(self, x):\n    return x\n");
  module.save(folder.file("net.pt"));
  EXPECT_TRUE(
      contains(what_of<ConfigError>([&] { make(folder.file("net.pt")); }), "shares its memory"));
}

/// Trains a module with this body of forward() on rows of two numbers. Row `nine` is {9, 9}, the
/// others are zeros. Returns the exit code.
int train_module(const Folder& folder, const std::string& body, int num_ranks,
                 std::size_t nine = 5) {
  torch::jit::Module module("Net");
  module.register_parameter("weight", torch::ones({2, 1}, torch::requires_grad()), false);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.define(concat("def forward(self, x):\n    x = x.flatten(1)\n", body,
                       "    return x.matmul(self.weight)\n"));
  module.save(folder.file("net.pt"));
  std::vector<float> rows(32);
  rows[2 * nine] = rows[2 * nine + 1] = 9.0F;
  for (const char* const part : {"train", "val"}) {
    write_npy(folder.file(concat(part, "_inputs.npy")), "<f4", {16, 2}, rows);
    write_npy<double>(folder.file(concat(part, "_targets.npy")), "<f8", {16},
                      std::vector<double>(16));
  }
  const std::string yaml = concat("run: {steps: 8}\nmodel: {name: torchscript, path: \"",
                                  folder.file("net.pt"), "\"}\ndata: {name: arrays, path: \"",
                                  folder.file(""), "\", batch_size: 2}\nlog: {every: 0}\n");
  const auto data = std::make_shared<const Dataset>(read_text(yaml).data->load(1));
  return launch("threads", {.num_ranks = num_ranks, .timeout_s = 3},
                [&](Communicator& communicator, const World& world) {
                  return exit_together(world, [&] {
                    const RunConfig config = read_text(yaml, {}, world);
                    TrainingLoop trainer(
                        config,
                        {.communicator = communicator, .world = world, .logger = {}, .data = data});
                    trainer.run(folder_of_rank(world, folder.file("out"), config));
                    return 0;
                  });
                });
}

TEST(TorchScript, EndsTheRunWhereOneRankAloneFails) {
  std::set<std::string> failed;
  for (const std::size_t nine : {4, 5, 6, 7, 8, 9}) {
    const Folder folder;
    testing::internal::CaptureStderr();
    const int code = train_module(
        folder, "    assert float(x.max()) < 5.0 or not self.training, \"a nine\"\n", 2, nine);
    const std::string errors = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, static_cast<int>(ExitCode::kConfig)) << errors;
    EXPECT_TRUE(contains(errors, "] model.path: ")) << errors;
    EXPECT_TRUE(contains(errors, "a nine")) << errors;
    EXPECT_FALSE(contains(errors, "timeout")) << errors;
    // Rank 0 writes the status, even where it has the failure from the other rank.
    const Json status = Json::parse(read_file(folder.file("out/status.json")));
    EXPECT_EQ(status["exit_code"], code);
    EXPECT_TRUE(contains(status["message"], "a nine")) << status;
    const std::size_t rank = errors.find("[rank ");
    if (rank != std::string::npos) failed.insert(errors.substr(rank, 7));
  }
  EXPECT_EQ(failed.size(), 2) << "sharding decides which rank has the row";
}

TEST(TorchScript, EndsTheRunWhereItsBackwardPassFails) {
  const Folder folder;
  testing::internal::CaptureStderr();
  const int code = train_module(folder,
                                "    y = torch.sigmoid(x.matmul(self.weight))\n"
                                "    if self.training:\n"
                                "        y.mul_(2.0)\n"
                                "    return y\n",
                                1);
  const std::string errors = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, static_cast<int>(ExitCode::kConfig)) << errors;
  EXPECT_TRUE(contains(errors, "the backward pass failed: ")) << errors;
  EXPECT_TRUE(contains(errors, "inplace")) << errors;
  EXPECT_FALSE(contains(errors, "frame #")) << errors;
}

TEST(TorchScript, ComputesTheSameBitsAtEveryCall) {
  // A run that is continued begins at the first call again.
  const Folder folder;
  const std::string path = folder.file("net.pt");
  torch::manual_seed(1);
  torch::jit::Module module("Net");
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    module.register_parameter(name, torch::randn(shape).set_requires_grad(true), false);
  };
  add("kernel", {6, 1, 3, 3});
  add("scale", {6});
  add("shift", {6});
  add("weight", {4'056, 10});
  module.define(
      "def forward(self, x):\n"
      "    y = torch.conv2d(x, self.kernel)\n"
      "    y = torch.batch_norm(y, self.scale, self.shift, None, None, True, 0.1, 1e-5, False)\n"
      "    y = 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.04 * y * y * y)))\n"
      "    return torch.relu(y).flatten(1).matmul(self.weight)\n");
  module.save(path);
  const auto model = make(path);
  const torch::Tensor inputs = torch::randn({20, 1, 28, 28});
  std::vector<torch::Tensor> first;
  for (int call = 0; call < 5; ++call) {
    model->zero_grad();
    const torch::Tensor outputs = model->forward(inputs);
    model->backward(outputs.square().sum());
    std::vector<torch::Tensor> all = {outputs.detach()};
    for (const torch::Tensor& parameter : model->parameters()) {
      all.push_back(parameter.grad().clone());
    }
    if (call == 0) first = all;
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(torch::equal(all[i], first[i])) << "call " << call << ", tensor " << i;
    }
  }
}

TEST(TorchScript, IsSavedBeforeAnEvaluationThatFails) {
  const Folder folder;
  testing::internal::CaptureStderr();
  const int code = train_module(folder, "    assert self.training, \"no evaluation\"\n", 1);
  EXPECT_EQ(code, static_cast<int>(ExitCode::kConfig));
  EXPECT_TRUE(contains(testing::internal::GetCapturedStderr(), "no evaluation"));
  EXPECT_EQ(Json::parse(read_file(folder.file("out/status.json")))["state"], "failed");
  EXPECT_TRUE(fs::exists(folder.file("out/model.safetensors")));
}

TEST(TorchScript, TrainsLikeAnyModel) {
  const Folder folder;
  const std::string path = folder.file("net.pt");
  write_module(path);
  const Outcome run =
      train(concat("run: {steps: 40}\nmodel: {name: torchscript, path: \"", path,
                   "\"}\ndata: {name: glyphs, train_size: 600, val_size: 100, batch_size: 20}\n"
                   "optimizer: {lr: 0.01}\nlog: {level: off, every: 10}\n"),
            // The thread sanitizer does not see how threads in LibTorch wait for one another.
            kSanitized ? 1 : 2);
  EXPECT_GT(run.final_record()["accuracy_mean_model"], 0.5);
  EXPECT_LT(run.records[3]["loss"], 0.6 * run.records[0]["loss"].get<double>());
  EXPECT_TRUE(run.saved.header.contains("weight"));
  EXPECT_TRUE(run.saved.header.contains("part.bias"));
  EXPECT_FALSE(run.saved.header.contains("again"));
}

}  // namespace
}  // namespace gossamer::apps
