// The program `gossamer` with an algorithm, a topology, an optimizer and a codec of your own.
//   ./own_program list algorithms
//   ./own_program train CONFIG.yaml --ranks 5 algorithm=own_tracking topology.name=tournament

#include "gossamer/apps/program/program.hpp"

#include "plug_ins.hpp"

bool is_odd(const gossamer::World& world) { return world.size % 2 == 1; }

std::unique_ptr<gossamer::Topology> read_tournament(const gossamer::World& world,
                                                    const gossamer::Options&,
                                                    std::span<const gossamer::TopologyEntry>) {
  return make_tournament(world.size);
}

std::unique_ptr<gossamer::Optimizer> read_bounded(const gossamer::Options&) {
  return gossamer::make_rule_optimizer(BoundedRule());
}

const gossamer::Codec& cut16() { return kCut16; }

int main(int argc, char** argv) {
  const std::array algorithms = {kMomentumTracking};
  const std::array topologies = {
      gossamer::TopologyEntry{.name = "tournament",
                              .summary = "every rank meets every other rank once in a period",
                              .options = {},
                              .sizes = "odd numbers of ranks",
                              .fits = is_odd,
                              .make = read_tournament}};
  const std::array optimizers = {
      gossamer::OptimizerEntry{.name = "bounded",
                               .summary = "descent with steps of g / (1 + |g|)",
                               .options = {},
                               .make = read_bounded}};
  const std::array codecs = {gossamer::CodecEntry{
      .name = "cut16", .summary = "the upper half of a float", .codec = cut16}};
  return gossamer::run_program(argc, argv,
                               {.algorithms = algorithms,
                                .topologies = topologies,
                                .optimizers = optimizers,
                                .codecs = codecs});
}
