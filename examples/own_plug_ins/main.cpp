// An algorithm, a topology, an optimizer's rule and a codec of your own, in your own program. Ranks
// that are threads minimise (x - target)^2 together, each with a target of its own: the answer is
// the mean of the targets.
//   ./own_plug_ins

#include "plug_ins.hpp"

#include <cstdio>

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "gossamer/comm/backends.hpp"
#include "gossamer/core/torch/data_parallel.hpp"
#include "gossamer/optim/registry.hpp"

struct Point : torch::nn::Module {
  torch::Tensor x = register_parameter("x", torch::zeros({8}));
};

/// Prints how far the ranks' mean ends from the mean of their targets, and how far they are apart.
int train(gossamer::Communicator& peers, const gossamer::World& world, const char* name,
          gossamer::DataParallelOptions options) {
  const auto point = std::make_shared<Point>();
  gossamer::DecentralizedDataParallel<Point> model(point, peers, std::move(options));
  for (int step = 0; step < 600; ++step) {
    torch::square(point->x - double(world.rank)).sum().backward();
  }
  const auto mean = model.global_average();
  torch::NoGradGuard no_grad;
  const double error = (point->x - (world.size - 1) / 2.0).abs().max().item<double>();
  if (world.rank == 0) {
    std::printf("%-18s error of the mean %.1e, distance of the ranks %.1e\n", name, error,
                mean.consensus_distance());
  }
  return error < 2e-2 ? 0 : 1;
}

int run(gossamer::Communicator& peers, const gossamer::World& world) {
  const std::shared_ptr<const gossamer::Topology> tournament = make_tournament(world.size);
  const std::shared_ptr<const gossamer::Schedule> schedule =
      gossamer::make_schedule("constant", {.lr = 0.01});
  const gossamer::Options options = gossamer::Options::parse("beta: 0.5");
  const int tracked =
      train(peers, world, "own_tracking",
            {.exchange = {.algorithm = gossamer::AlgorithmChoice(kMomentumTracking, options),
                          .topology = tournament,
                          .codec = &kCut16},
             .optimizer = gossamer::make_rule_optimizer(BoundedRule()),
             .schedule = schedule});
  const int mixed = train(peers, world, "gossip",
                          {.exchange = {.topology = tournament, .codec = &kCut16},
                           .optimizer = gossamer::make_optimizer("sgd"),
                           .schedule = schedule});
  return tracked + mixed;
}

int main() { return gossamer::launch("threads", {.num_ranks = 5}, run); }
