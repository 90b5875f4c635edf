// The table of algorithms: one row for each file of this folder.

#include <array>

#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/algorithm_options.hpp"

namespace gossamer {

AlgorithmFactory read_gossip(const Options& options);
AlgorithmFactory read_allreduce(const Options& options);
AlgorithmFactory read_local(const Options& options);
AlgorithmFactory read_gradient_tracking(const Options& options);
AlgorithmFactory read_momentum_tracking(const Options& options);
AlgorithmFactory read_choco(const Options& options);
AlgorithmFactory read_outer(const Options& options);
AlgorithmFactory read_relay(const Options& options);
AlgorithmFactory read_late_average(const Options& options);
AlgorithmFactory read_node_gossip(const Options& options);
AlgorithmFactory read_async_gossip(const Options& options);

namespace {

constexpr std::array kTable = {
    AlgorithmEntry{.name = "gossip",
                   .summary = "mix parameters with the peers of a topology",
                   .options = gossip::kOptions,
                   .topologies = TopologyKind::kAny,
                   .takes_codec = true,
                   .survives = true,
                   .read = read_gossip},
    AlgorithmEntry{.name = "allreduce",
                   .summary = "average all gradients in every step",
                   .options = allreduce::kOptions,
                   .equal_models = EqualModels::kAfterEveryStep,
                   .takes_codec = true,
                   .survives = true,
                   .read = read_allreduce},
    AlgorithmEntry{.name = "local",
                   .summary = "no communication",
                   .steps = RankSteps::kAlone,
                   .survives = true,
                   .read = read_local},
    AlgorithmEntry{.name = "gradient_tracking",
                   .summary = "gossip of parameters and of an estimate of the mean gradient",
                   .topologies = TopologyKind::kUndirected,
                   .takes_codec = true,
                   .survives = true,
                   .read = read_gradient_tracking},
    AlgorithmEntry{.name = "momentum_tracking",
                   .summary = "gossip of parameters and of an estimate of the mean momentum",
                   .options = momentum_tracking::kOptions,
                   .topologies = TopologyKind::kUndirected,
                   .takes_codec = true,
                   .survives = true,
                   .read = read_momentum_tracking},
    AlgorithmEntry{.name = "choco",
                   .summary = "gossip that sends the few largest changes (CHOCO, top-k)",
                   .options = choco::kOptions,
                   .topologies = TopologyKind::kStatic,
                   .processors_only = "processors choose the elements of its messages",
                   .survives = true,
                   .read = read_choco},
    AlgorithmEntry{
        .name = "outer",
        .summary = "average models every few steps, with momentum (SlowMo, DiLoCo, NoLoCo)",
        .options = outer::kOptions,
        .equal_models = EqualModels::kAtStart,
        .averages_rarely = true,
        .takes_codec = true,
        .feeds_errors_back = true,
        .survives = true,
        .read = read_outer},
    AlgorithmEntry{.name = "relay",
                   .summary = "mean of all ranks' half steps, relayed along a tree (RelaySGD)",
                   .topologies = TopologyKind::kTree,
                   .read = read_relay},
    AlgorithmEntry{.name = "late_average",
                   .summary = "average all models every few steps while training goes on (Bagua)",
                   .options = late_average::kOptions,
                   .equal_models = EqualModels::kAtStart,
                   .averages_rarely = true,
                   .read = read_late_average},
    AlgorithmEntry{.name = "node_gossip",
                   .summary = "mean gradients inside a node, gossip of shards between nodes",
                   .options = node_gossip::kOptions,
                   .topologies = TopologyKind::kNodes,
                   .equal_models = EqualModels::kAtStart,
                   .read = read_node_gossip},
    AlgorithmEntry{.name = "async_gossip",
                   .summary = "gossip in which fast ranks do not wait for slow ones (push-sum)",
                   .options = async_gossip::kOptions,
                   .topologies = TopologyKind::kAny,
                   .steps = RankSteps::kAsynchronous,
                   .processors_only = "processors mix messages as they arrive",
                   .read = read_async_gossip},
};

}  // namespace

std::span<const AlgorithmEntry> algorithm_table() { return kTable; }

}  // namespace gossamer
