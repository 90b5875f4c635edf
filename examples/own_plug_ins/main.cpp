// An algorithm, a topology, an optimizer's rule and a codec of your own, in your own program. Ranks
// that are threads minimise (x - target)^2 together, each with a target of its own: the answer is
// the mean of the targets.
//   ./own_plug_ins

#include <cmath>
#include <cstdio>
#include <cstring>

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "gossamer/comm/launch.hpp"
#include "gossamer/core/torch/data_parallel.hpp"
#include "gossamer/optim/codecs/small_float.hpp"
#include "gossamer/optim/registry.hpp"
#include "gossamer/optim/sweep.hpp"
#include "gossamer/topology/registry.hpp"

/// In momentum_tracking.cpp.
extern const gossamer::AlgorithmEntry kMomentumTracking;

/// A round-robin tournament: every rank meets every other rank once in a period. `size` is odd.
std::unique_ptr<gossamer::Topology> make_tournament(int size) {
  std::vector<gossamer::Round> rounds;
  for (int k = 0; k < size; ++k) {
    std::vector<gossamer::Edge> edges;
    for (int i = 0; i < size; ++i) {
      const int j = (k - i + size) % size;
      if (i < j) edges.push_back(gossamer::averaging_edge({i, j}));
    }
    rounds.push_back(gossamer::complete_round(std::move(edges), size));
  }
  return gossamer::make_periodic("tournament", std::move(rounds));
}

/// Descent with steps of g / (1 + |g|), which no gradient makes larger than the learning rate.
struct BoundedRule {
  static constexpr int kNumStates = 0;
  static constexpr std::array<std::string_view, 0> kStateNames = {};
  static constexpr std::array kPhases = {gossamer::Phase::kMiddle};
  static constexpr bool kProcessorsOnly = true;
  template <class T>
  struct Coefficients {
    T lr;
  };
  static constexpr gossamer::StateMask reads(gossamer::Phase) { return 0; }
  static constexpr gossamer::StateMask writes(gossamer::Phase) { return 0; }
  [[nodiscard]] std::int64_t cycle() const { return 1; }
  [[nodiscard]] gossamer::Phase phase(std::int64_t) const { return gossamer::Phase::kMiddle; }
  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const gossamer::ParameterUpdate& update) const {
    return {static_cast<T>(update.lr)};
  }
  template <class T, gossamer::Phase>
  static void apply(const Coefficients<T>& c, T& p, T g, std::array<T, 0>&) {
    p -= c.lr * g / (T(1) + std::abs(g));
  }
};

/// The upper half of a float, cut off: bf16 without rounding.
struct CutFormat {
  static constexpr std::string_view kName = "cut16";
  static std::uint16_t encode(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16U);
  }
  static std::uint16_t encode_summand(float value) { return encode(value); }
  static float decode(std::uint16_t half) {
    const std::uint32_t bits = std::uint32_t{half} << 16U;
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};
const gossamer::internal::SmallFloatCodec<CutFormat> kCut16;

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
      train(peers, world, "momentum_tracking",
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
