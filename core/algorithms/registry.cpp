// The table of algorithms: one row for each file of this folder.

#include <array>

#include "core/algorithm.hpp"

namespace gossamer {

AlgorithmFactory read_gossip(const Options& options);
AlgorithmFactory read_allreduce(const Options& options);
AlgorithmFactory read_local(const Options& options);
AlgorithmFactory read_gradient_tracking(const Options& options);
AlgorithmFactory read_outer(const Options& options);

namespace {

constexpr std::array kAllreduceOptions = {
    OptionEntry{"overlap", "sums travel during the backward pass; true or false, true by default"},
    OptionEntry{"delay", "0 (default), or 1: updates use the mean gradient of the step before"},
    OptionEntry{"average", "true (default): the mean of all gradients; false: their sum"},
};

constexpr std::array kOuterOptions = {
    OptionEntry{"every", "steps between two averages of all models, 1 to 1000000, 8 by default"},
    OptionEntry{"kind", "slowmo (default) or diloco: how an average moves the common model"},
    OptionEntry{"lr", "outer learning rate, above 0; 1 by default, diloco 0.7"},
    OptionEntry{"momentum", "outer momentum, 0 to below 1; 0.5 by default, diloco 0.9"},
    OptionEntry{"streaming", "true: buckets take turns within a cycle; false by default"},
};

constexpr std::array kTable = {
    AlgorithmEntry{.name = "gossip",
                   .summary = "mix parameters with the peers of a topology",
                   .needs_topology = true,
                   .read = read_gossip},
    AlgorithmEntry{.name = "allreduce",
                   .summary = "average all gradients in every step",
                   .options = kAllreduceOptions,
                   .keeps_models_equal = true,
                   .read = read_allreduce},
    AlgorithmEntry{
        .name = "local", .summary = "no communication", .communicates = false, .read = read_local},
    AlgorithmEntry{.name = "gradient_tracking",
                   .summary = "gossip of parameters and of an estimate of the mean gradient",
                   .needs_topology = true,
                   .needs_undirected = true,
                   .read = read_gradient_tracking},
    AlgorithmEntry{.name = "outer",
                   .summary = "average all models every few steps, with momentum (SlowMo, DiLoCo)",
                   .options = kOuterOptions,
                   .read = read_outer},
};

}  // namespace

std::span<const AlgorithmEntry> algorithm_table() { return kTable; }

}  // namespace gossamer
