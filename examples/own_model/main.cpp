// Workers learn y = sin(x) together, each from points that only it has seen.
//   ./own_model              four threads        mpirun -n 4 ./own_model    four processes
#include <cstdio>

#include <torch/torch.h>

#include "gossamer/comm/backends.hpp"
#include "gossamer/core/torch/data_parallel.hpp"
#include "gossamer/optim/registry.hpp"
#include "gossamer/topology/registry.hpp"

struct Net : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(1, 64));
  torch::nn::Linear output = register_module("output", torch::nn::Linear(64, 1));
  torch::Tensor forward(torch::Tensor x) { return output(torch::tanh(hidden(x))); }
};

int train(gossamer::Communicator& peers, const gossamer::World& world) {
  gossamer::DecentralizedDataParallel model(
      std::make_shared<Net>(), peers,
      {.exchange = {.topology = gossamer::make_topology("ring", world)},
       .optimizer = gossamer::make_optimizer("adamw", gossamer::Options::parse("eps: 1e-7")),
       .schedule = gossamer::make_schedule("constant", {.lr = 3e-3})});
  auto random = torch::make_generator<torch::CPUGeneratorImpl>(100 + world.rank);
  for (int step = 0; step < 1000; ++step) {
    auto x = torch::rand({32, 1}, random) * 6.0 - 3.0;
    auto loss = torch::mse_loss(model.forward(x), torch::sin(x));
    loss.backward();  // updates the model and starts the exchange with the next peer
  }
  auto mean = model.global_average();  // the mean of all models, until it goes out of scope
  torch::NoGradGuard no_grad;
  auto x = torch::linspace(-3.0, 3.0, 100).unsqueeze(1);
  const double error = torch::mse_loss(model.forward(x), torch::sin(x)).item<double>();
  if (world.rank == 0) std::printf("%d ranks, mean model: error %.2e\n", world.size, error);
  return error < 2e-2 ? 0 : 1;
}

int main() {
  const auto backend = gossamer::default_backend();  // mpi under mpirun, otherwise threads
  return gossamer::launch(backend, {.num_ranks = backend == "threads" ? 4 : 0}, train);
}
