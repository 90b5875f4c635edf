#pragma once

#include "base/option.hpp"

namespace gossamer::damped_gossip {

inline constexpr NumberOption kShare{"share",
                                     "part of the way to the mix",
                                     {.fallback = 0.5, .min = 0.0, .max = 1.0, .above_min = true}};
inline constexpr std::array kOptions = option_list(kShare);

}  // namespace gossamer::damped_gossip
