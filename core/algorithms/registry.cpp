// The table of algorithms: one row for each file of this folder.

#include <array>

#include "core/algorithm.hpp"

namespace gossamer {

AlgorithmFactory read_gossip(const Options& options);
AlgorithmFactory read_allreduce(const Options& options);
AlgorithmFactory read_local(const Options& options);
AlgorithmFactory read_gradient_tracking(const Options& options);
AlgorithmFactory read_choco(const Options& options);
AlgorithmFactory read_outer(const Options& options);
AlgorithmFactory read_relay(const Options& options);
AlgorithmFactory read_late_average(const Options& options);
AlgorithmFactory read_node_gossip(const Options& options);
AlgorithmFactory read_async_gossip(const Options& options);

namespace {

constexpr std::array kGossipOptions = {
    OptionEntry{"share_moments",
                "steps between two averages of Adam's second moments over all ranks, 0: never; an "
                "integer from 0 to 1000000, default 0"},
};

constexpr std::array kAllreduceOptions = {
    OptionEntry{"overlap", "sums travel during the backward pass; true or false, default true"},
    OptionEntry{"delay",
                "1: updates use the mean gradient of the step before; an integer from 0 to 1, "
                "default 0"},
    OptionEntry{"average",
                "updates use the mean of all gradients, else their sum; true or false, default "
                "true"},
    OptionEntry{"sends",
                "what the ranks sum; momentum: after the warm-up of the optimizer qadam; one of "
                "gradients, momentum, default gradients"},
};

constexpr std::array kChocoOptions = {
    OptionEntry{"fraction",
                "the share of the elements that a message holds; a number > 0 and <= 1, default "
                "0.05"},
    OptionEntry{"consensus_step",
                "the share of a full mixing step; a number > 0 and <= 1, default 0.1: twice the "
                "fraction, at most 0.5"},
};

constexpr std::array kOuterOptions = {
    OptionEntry{"every",
                "steps between two averages of all models; an integer from 1 to 1000000, default "
                "8"},
    OptionEntry{"kind",
                "how an average moves the common model; one of slowmo, diloco, default slowmo"},
    OptionEntry{"lr", "outer learning rate; a number > 0 and <= 1e+06, default 1: 0.7 for diloco"},
    OptionEntry{"momentum", "outer momentum; a number >= 0 and < 1, default 0.5: 0.9 for diloco"},
    OptionEntry{"streaming", "buckets take turns within a cycle; true or false, default false"},
};

constexpr std::array kLateAverageOptions = {
    OptionEntry{"every",
                "steps between two averages of all models; an integer from 1 to 1000000, default "
                "8"},
    OptionEntry{"late",
                "steps that an average may take, at most every; an integer from 1 to 1000000, "
                "default 1"},
    OptionEntry{"warmup",
                "first steps, in which updates use the mean gradient; an integer >= 0, default 0"},
};

constexpr std::array kNodeGossipOptions = {
    OptionEntry{"shard",
                "optimizer: a rank has the optimizer's states of its own shard alone; one of none, "
                "optimizer, default none"},
};

constexpr std::array kAsyncOptions = {
    OptionEntry{"mode",
                "bounded: a rank waits for a rank that it has not heard from for max_staleness "
                "steps; one of bounded, asynchronous, default bounded"},
    OptionEntry{"max_staleness",
                "a rank waits for letters older than so many of its steps; an integer from 1 to "
                "1000000, default 8"},
    OptionEntry{"rate_correction",
                "the updates of slow ranks count for more; true or false, default false"},
};

constexpr std::array kTable = {
    AlgorithmEntry{.name = "gossip",
                   .summary = "mix parameters with the peers of a topology",
                   .options = kGossipOptions,
                   .topologies = TopologyKind::kAny,
                   .takes_codec = true,
                   .read = read_gossip},
    AlgorithmEntry{.name = "allreduce",
                   .summary = "average all gradients in every step",
                   .options = kAllreduceOptions,
                   .equal_models = EqualModels::kAfterEveryStep,
                   .takes_codec = true,
                   .read = read_allreduce},
    AlgorithmEntry{.name = "local",
                   .summary = "no communication",
                   .steps = RankSteps::kAlone,
                   .read = read_local},
    AlgorithmEntry{.name = "gradient_tracking",
                   .summary = "gossip of parameters and of an estimate of the mean gradient",
                   .topologies = TopologyKind::kUndirected,
                   .takes_codec = true,
                   .read = read_gradient_tracking},
    AlgorithmEntry{.name = "choco",
                   .summary = "gossip that sends the few largest changes (CHOCO, top-k)",
                   .options = kChocoOptions,
                   .topologies = TopologyKind::kStatic,
                   .processors_only = true,
                   .read = read_choco},
    AlgorithmEntry{.name = "outer",
                   .summary = "average all models every few steps, with momentum (SlowMo, DiLoCo)",
                   .options = kOuterOptions,
                   .equal_models = EqualModels::kAtStart,
                   .read = read_outer},
    AlgorithmEntry{.name = "relay",
                   .summary = "mean of all ranks' half steps, relayed along a tree (RelaySGD)",
                   .topologies = TopologyKind::kTree,
                   .read = read_relay},
    AlgorithmEntry{.name = "late_average",
                   .summary = "average all models every few steps while training goes on (Bagua)",
                   .options = kLateAverageOptions,
                   .equal_models = EqualModels::kAtStart,
                   .read = read_late_average},
    AlgorithmEntry{.name = "node_gossip",
                   .summary = "mean gradients inside a node, gossip of shards between nodes",
                   .options = kNodeGossipOptions,
                   .topologies = TopologyKind::kNodes,
                   .equal_models = EqualModels::kAtStart,
                   .read = read_node_gossip},
    AlgorithmEntry{.name = "async_gossip",
                   .summary = "gossip in which fast ranks do not wait for slow ones (push-sum)",
                   .options = kAsyncOptions,
                   .topologies = TopologyKind::kAny,
                   .steps = RankSteps::kAsynchronous,
                   .processors_only = true,
                   .read = read_async_gossip},
};

}  // namespace

std::span<const AlgorithmEntry> algorithm_table() { return kTable; }

}  // namespace gossamer
