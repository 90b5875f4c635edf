#pragma once
// The algorithms as tests run them: every row of the table, and options that change what it
// computes.

#include <array>
#include <utility>

namespace gossamer {

/// The name of an algorithm, and its options as YAML.
inline constexpr std::array kAlgorithmVariants = {
    std::pair{"gossip", ""},
    std::pair{"allreduce", ""},
    std::pair{"allreduce", "overlap: false"},
    std::pair{"allreduce", "delay: 1"},
    std::pair{"allreduce", "delay: 1, overlap: false"},
    std::pair{"allreduce", "delay: 1, overlap: false, average: false"},
    std::pair{"local", ""},
    std::pair{"gradient_tracking", ""},
    std::pair{"outer", "every: 3"},
    std::pair{"outer", "every: 2, kind: diloco, lr: 0.8, momentum: 0.6"},
};

}  // namespace gossamer
