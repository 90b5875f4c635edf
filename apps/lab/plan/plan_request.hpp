#pragma once
// What a plan is asked for, read from a section with the keys of gossamer plan's options:
//
//   model_bytes: 260e6            # or bucket_bytes: [1e6, 4e6]
//   bucket_mb: 25
//   compute_ms: 80
//   backward_share: 0.667
//   straggler_cv: 0
//   world_size: 16
//   local_world_size: 4
//   links: links.json             # or the links themselves, as in such a file (links.hpp)
//   within_latency_us: 10         # these four replace a link's speed
//   within_gbit: 80
//   between_latency_us: 50
//   between_gbit: 10
//   update_gbytes: 0
//   budget: 0.1
//   device: cpu                   # or cuda
//   algorithm: [gossip, {name: late_average, every: 4}]
//   codec: fp32
//   optimizer: adamw
//   seed: 1

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "apps/lab/plan/plan.hpp"
#include "base/option.hpp"
#include "base/options.hpp"

namespace gossamer::apps {

struct PlanRequest {
  PlanOptions options = {};
  /// One sentence for each value that was assumed because the user did not give it.
  std::vector<std::string> assumed = {};
};

/// The keys that hold one number.
std::span<const OptionEntry> plan_numbers();

/// Throws ConfigError. `options.own` stays empty.
PlanRequest read_plan(const Options& root, const PlugIns& own = {});

/// What was asked for, and the plan.
nlohmann::ordered_json to_json(const PlanRequest& request, const Plan& plan);

}  // namespace gossamer::apps
