#include "apps/train/advice.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "base/text.hpp"

namespace gossamer::apps {
namespace {

/// True if a phase mixes models whose steps come from the gradients of one rank alone.
bool mixes_after_own_steps(const RunConfig& config) {
  constexpr std::array<std::string_view, 2> kOfMeans = {"allreduce", "gradient_tracking"};
  return std::ranges::any_of(config.phases, [&](const RunPhase& phase) {
    return std::ranges::find(kOfMeans, phase.method.algorithm.name()) == kOfMeans.end();
  });
}

/// The value of a key; empty: the configuration has no such key.
std::string value_of(const RunConfig& config, std::string_view path) {
  const auto found = std::ranges::find(config.resolved, path, &ResolvedValue::path);
  return found == config.resolved.end() ? "" : found->value;
}

/// How the ranks may share moments; empty: they do, or cannot, or the algorithm changes.
std::string way_to_share(const RunConfig& config) {
  if (value_of(config, "algorithm.share_moments") != "0") return "";
  if (config.phases.front().method.algorithm.name() == "gossip") {
    return "algorithm.share_moments=32 makes them common and is more accurate; with adam or adamw, "
           "optimizer.mixing_momentum=0.3 is more so";
  }
  if (value_of(config, "algorithm.late") != "1") return "";
  // Every third average, as in docs/measurements/accuracy.md.
  const std::string period = std::to_string(3 * std::stoll(value_of(config, "algorithm.every")));
  return concat("algorithm.share_moments=", period, " and algorithm.share_momentum=", period,
                " average both moments and are more accurate");
}

}  // namespace

std::string advice_at_start(const RunConfig& config) {
  const auto has = [](const ParameterGroup& group) {
    return group.optimizer && group.optimizer->needs_matrices();
  };
  const bool has_matrices =
      config.optimizer->needs_matrices() || std::ranges::any_of(config.parameter_groups, has);
  if (config.dirichlet_alpha && has_matrices && mixes_after_own_steps(config)) {
    return "the workers' labels differ, and every worker makes its own gradients orthogonal before "
           "they are mixed, which is not what the mean gradient would give; "
           "algorithm.name=gradient_tracking and allreduce use the mean first "
           "(docs/guide/optimizers.md)";
  }
  const auto states = config.optimizer->state_names();
  const bool has_moments = std::ranges::find(states, "v") != states.end();
  const std::string way = way_to_share(config);
  if (!config.dirichlet_alpha || !has_moments || way.empty()) return "";
  return concat(
      "the workers' labels differ, and every worker divides by second moments of its "
      "own; ",
      way, " (docs/measurements/accuracy.md)");
}

std::string advice_against_divergence(const RunConfig& config) {
  std::vector<std::string> ways = {
      concat("a smaller optimizer.lr (now ", shortest(config.lr), ")")};
  if (config.gradients.clip_mode == ClipMode::kNone) ways.emplace_back("train.grad_clip=global");
  if (const std::string momentum = value_of(config, "algorithm.momentum"); !momentum.empty()) {
    ways.push_back(concat("a smaller algorithm.momentum (now ", momentum, ")"));
  }
  if (const std::string every = value_of(config, "algorithm.every"); !every.empty()) {
    ways.push_back(concat("a smaller algorithm.every (now ", every, ")"));
  }
  if (!value_of(config, "topology.name").empty()) {
    ways.emplace_back("a topology that mixes faster (gossamer list topologies)");
  }
  return concat("what usually helps: ", join(ways, ", "));
}

}  // namespace gossamer::apps
