// LibTorch on a GPU: training there against training on a processor, on streams that change, in
// bfloat16, and with recorded steps.

#include "test/gpu/gpu_test.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/options.hpp"
#include "comm/backends.hpp"
#include "comm/collectives/staged_communicator.hpp"
#include "core/torch/graphed_step.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

constexpr int kSteps = 12;

struct Training {
  Device device = {};
  torch::Dtype type = torch::kFloat32;
  bool graphed = false;
  /// Called before every step.
  std::function<void(int step)> prepare = [](int) {};
};

torch::Tensor wave(at::IntArrayRef shape, double phase) {
  std::int64_t numel = 1;
  for (const std::int64_t size : shape) numel *= size;
  return torch::arange(numel, torch::kFloat64).mul(0.7).add(phase).sin().reshape(shape);
}

torch::nn::Sequential make_model(const Training& training) {
  torch::nn::Sequential model(torch::nn::Linear(40, 64), torch::nn::Linear(64, 3));
  const torch::NoGradGuard no_grad;
  double phase = 0.0;
  for (torch::Tensor& parameter : model->parameters()) {
    parameter.copy_(wave(parameter.sizes(), phase++).mul(0.1));
  }
  model->to(torch_device(training.device), training.type);
  return model;
}

/// The parameters at the end, and the losses.
std::vector<torch::Tensor> train(const Training& training) {
  std::vector<torch::Tensor> result;
  const auto body = [&](Communicator& host, const World&) {
    TorchStream stream(training.device);
    const auto staged =
        make_staged_communicator(host, make_stream(training.device, StreamPriority::kHigh));
    const auto model = make_model(training);
    DecentralizedDataParallel<torch::nn::SequentialImpl> wrapper(
        model.ptr(), training.device == Device{} ? host : *staged,
        {.exchange = {.topology = make_topology("ring", {.size = 1, .node_size = 1})},
         .optimizer = make_optimizer("accum_adamw", Options::parse("{eps: 1e-3}")),
         .schedule = make_schedule("constant", {.lr = 1e-2}),
         .stream = &stream,
         .bucket_bytes = 1024});
    const auto forward = [&](const std::vector<at::Tensor>& batch) {
      const torch::Tensor output = wrapper.forward(batch[0]).to(torch::kFloat32);
      return torch::nn::functional::mse_loss(output, batch[1]);
    };
    std::unique_ptr<GraphedStep> graphed;
    if (training.graphed) {
      graphed =
          std::make_unique<GraphedStep>(wrapper.core(), make_step_graph(training.device), forward);
    }
    std::vector<torch::Tensor> losses;
    for (int step = 0; step < kSteps; ++step) {
      training.prepare(step);
      const c10::Device place = torch_device(training.device);
      const std::vector<at::Tensor> batch = {wave({8, 40}, step).to(place, training.type),
                                             wave({8, 3}, 2.0 * step).to(place, torch::kFloat32)};
      if (graphed) {
        losses.push_back(graphed->step(batch));
      } else {
        const torch::Tensor loss = forward(batch);
        loss.backward();
        losses.push_back(loss.detach());
      }
    }
    EXPECT_EQ(graphed && graphed->recorded(), training.graphed);
    wrapper.drain();
    for (const torch::Tensor& parameter : wrapper.parameters()) {
      result.push_back(parameter.detach().cpu().to(torch::kFloat64));
    }
    result.push_back(torch::stack(losses).cpu().to(torch::kFloat64));
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = 1, .timeout_s = 60.0}, body), 0);
  return result;
}

void expect_near(const Training& actual, const Training& expected, double tolerance) {
  const std::vector<torch::Tensor> a = train(actual);
  const std::vector<torch::Tensor> b = train(expected);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), tolerance) << "tensor " << i;
  }
}

class TorchOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    try {
      use_torch_device(kGpu);
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  static constexpr Device kGpu{DeviceType::kCuda, 0};
};

TEST_F(TorchOnGpu, TrainsLikeAProcessor) {
  expect_near({.device = kGpu}, {}, 1e-4);
  expect_near({.device = kGpu, .type = torch::kBFloat16}, {.type = torch::kBFloat16}, 5e-2);
}

TEST_F(TorchOnGpu, FollowsTheCurrentStream) {
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Device place = torch_device(kGpu);
  const c10::Stream first = guard.getStream(place);
  const auto change = [&](int step) {
    const c10::Stream next = step % 3 == 0 ? first : guard.getStreamFromGlobalPool(place, false);
    const c10::Stream before = guard.exchangeStream(next);
    // As whoever changes streams has to: what comes next waits for what was before.
    void* event = nullptr;
    guard.record(&event, before, 0, c10::EventFlag::PYTORCH_DEFAULT);
    guard.block(event, next);
    guard.destroyEvent(event, 0);
  };
  expect_near({.device = kGpu, .prepare = change}, {.device = kGpu}, 1e-6);
  static_cast<void>(guard.exchangeStream(first));
}

TEST_F(TorchOnGpu, RefusesAModelThatMovesThereAfterItWasWrapped) {
  for (const int steps : {0, 1}) {
    const auto body = [&](Communicator& host, const World&) {
      torch::nn::Sequential model = make_model({});
      DecentralizedDataParallel<torch::nn::SequentialImpl> wrapper(
          model.ptr(), host,
          {.exchange = {.topology = make_topology("ring", {.size = 1, .node_size = 1})},
           .optimizer = make_optimizer("sgd", Options()),
           .schedule = make_schedule("constant", {.lr = 1e-2})});
      for (int step = 0; step < steps; ++step)
        wrapper.forward(torch::ones({1, 40})).sum().backward();
      model->to(torch_device(kGpu));
      EXPECT_THROW(wrapper.finish_step(), ConfigError);
      return 0;
    };
    EXPECT_EQ(launch("threads", {.num_ranks = 1, .timeout_s = 60.0}, body), 0);
  }
}

TEST_F(TorchOnGpu, PlaysRecordedStepsBack) {
  for (const torch::Dtype type : {torch::kFloat32, torch::kBFloat16}) {
    expect_near({.device = kGpu, .type = type, .graphed = true}, {.device = kGpu, .type = type},
                1e-6);
  }
}

}  // namespace
}  // namespace gossamer
