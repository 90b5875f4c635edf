#include "apps/train/resume.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

// State of another model, algorithm, topology or optimizer would be loaded into the wrong place.
constexpr std::array<std::string_view, 7> kFixed = {
    "model.",    "algorithm.",       "topology.", "optimizer.name",
    "data.name", "device.precision", "train.ema"};
// These do not change what is computed from here on.
constexpr std::array<std::string_view, 6> kFree = {"run.",     "log.",       "comm.",
                                                   "buckets.", "model.init", "data.prefetch"};
constexpr std::string_view kTopology = "topology.";

bool begins_with_one_of(const std::string& key, std::span<const std::string_view> beginnings) {
  return std::ranges::any_of(beginnings,
                             [&](std::string_view text) { return key.starts_with(text); });
}

}  // namespace

std::map<std::string, std::string> values_for_manifest(const RunConfig& config) {
  std::map<std::string, std::string> values;
  for (const ResolvedValue& value : config.resolved) values[value.path] = value.value;
  return values;
}

std::vector<std::string> check_resumable(const Manifest& manifest, const RunConfig& config,
                                         const World& world, const std::string& path,
                                         bool reshapes) {
  if (manifest.world_size != world.size && !reshapes) {
    throw CheckpointError(concat(path, " is of ", manifest.world_size, " ranks, and this run has ",
                                 world.size,
                                 "; start as many ranks as before, or let all ranks continue from "
                                 "the mean of the saved states with --reshape average"));
  }
  const std::map<std::string, std::string> now = values_for_manifest(config);
  std::map<std::string, std::string> all = manifest.run;
  all.insert(now.begin(), now.end());
  const auto value_in = [](const std::map<std::string, std::string>& values,
                           const std::string& key) {
    const auto found = values.find(key);
    if (found != values.end()) return found->second;
    // Older versions had no codec.
    return std::string(key == "comm.codec" ? "fp32" : "nothing");
  };
  std::vector<std::string> changes;
  for (const auto& [key, unused] : all) {
    const std::string before = value_in(manifest.run, key);
    const std::string after = value_in(now, key);
    // run.seed decides on the data and their order, comm.codec on the values that ranks mix.
    const bool is_free = begins_with_one_of(key, kFree) && key != "run.seed" && key != "comm.codec";
    if (before == after || is_free) continue;
    const bool is_of_topology = key.starts_with(kTopology);
    if (begins_with_one_of(key, kFixed) && !(is_of_topology && reshapes)) {
      throw CheckpointError(
          concat(path, " was saved with ", key, " = ", before, ", and this run has ", after,
                 "; a run cannot continue with that, so take the same value",
                 is_of_topology ? ", or continue from the mean of the saved states with --reshape "
                                  "average"
                                : ""));
    }
    changes.push_back(concat(key, " was ", before, " and is ", after));
  }
  return changes;
}

}  // namespace gossamer::apps
