// Workers fit a plane together. Plain arrays, gradients by hand, no LibTorch.
//   ./plain_arrays              four threads        mpirun -n 4 ./plain_arrays    four processes
#include <cmath>
#include <cstdio>
#include <random>

#include "gossamer/base/host_stream.hpp"
#include "gossamer/comm/backends.hpp"
#include "gossamer/core/bucket/model_average.hpp"
#include "gossamer/core/step/pipeline.hpp"
#include "gossamer/optim/registry.hpp"
#include "gossamer/topology/registry.hpp"

int train(gossamer::Communicator& peers, const gossamer::World& world) {
  constexpr int kInputs = 8;
  const std::vector<gossamer::ParameterInfo> parameters = {{.name = "weight", .shape = {kInputs}},
                                                           {.name = "bias", .shape = {1}}};
  // The order in which the gradients are ready, and the bytes at which a bucket closes.
  const auto plan = gossamer::plan_buckets(parameters, std::vector<std::int64_t>{1, 0}, 1 << 20);
  gossamer::InlineStream stream;
  const gossamer::BucketSpec& bucket = plan.buckets.front();
  const std::vector memory = {gossamer::allocate_parameters(bucket, stream)};
  const auto all = memory.front().parameters.block().as<float>();
  const auto bias = all.subspan(bucket.entries[0].offset, 1);
  const auto weight = all.subspan(bucket.entries[1].offset, kInputs);

  gossamer::Pipeline pipeline(
      peers,
      {.exchange = {.topology = gossamer::make_topology("ring", world)},
       .optimizer = gossamer::make_optimizer("adamw", gossamer::Options::parse("eps: 1e-7")),
       .schedule = gossamer::make_schedule("constant", {.lr = 3e-2})},
      parameters, plan, memory);
  std::mt19937 random(100 + world.rank);  // each worker has points of its own
  std::normal_distribution<float> normal;
  std::vector<float> weight_gradient(kInputs), bias_gradient(1);
  const auto block = [](std::vector<float>& values) {
    return gossamer::Block{.data = values.data(), .numel = std::ssize(values)};
  };
  for (int step = 0; step < 2000; ++step) {
    float x[kInputs], error = bias[0] - 0.5F;
    for (int i = 0; i < kInputs; ++i) {
      x[i] = normal(random);
      error += (weight[i] - static_cast<float>(i)) * x[i];  // the true weight is 0, 1, 2, ...
    }
    bias_gradient[0] = error;
    pipeline.gradient_ready(1, block(bias_gradient));
    for (int i = 0; i < kInputs; ++i) weight_gradient[i] = error * x[i];
    pipeline.gradient_ready(0, block(weight_gradient));
    pipeline.finish_step();  // the exchange with the next peer is under way
  }
  pipeline.drain();
  gossamer::ModelAverage mean(peers, stream, pipeline.memory());  // the arrays hold the mean model
  float largest = std::abs(bias[0] - 0.5F);
  for (int i = 0; i < kInputs; ++i) largest = std::fmax(largest, std::abs(weight[i] - float(i)));
  if (world.rank == 0) std::printf("%d ranks, mean model: error %.1e\n", world.size, largest);
  return largest < 0.05F ? 0 : 1;
}

int main() {
  const auto backend = gossamer::default_backend();  // mpi under mpirun, otherwise threads
  return gossamer::launch(backend, {.num_ranks = backend == "threads" ? 4 : 0}, train);
}
