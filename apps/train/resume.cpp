#include "apps/train/resume.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

// State of another model, algorithm or optimizer would be loaded into the wrong place.
constexpr std::array<std::string_view, 6> kFixed = {
    "model.", "algorithm.", "optimizer.name", "data.name", "device.precision", "train.ema"};
// State of another topology would be loaded into the wrong place, too, and with another number of
// batches a step the run would leave out samples or repeat them. --reshape averages the states and
// deals the data out anew.
constexpr std::array<std::string_view, 2> kReshaped = {"topology.", "train.accumulate"};
// These do not change what is computed from here on.
constexpr std::array<std::string_view, 7> kFree = {
    "run.", "log.", "comm.", "fault.", "buckets.", "model.init", "data.prefetch"};

bool begins_with_one_of(const std::string& key, std::span<const std::string_view> beginnings) {
  return std::ranges::any_of(beginnings,
                             [&](std::string_view text) { return key.starts_with(text); });
}

/// Whether a key belongs to a group of parameters.
bool is_of_group(std::string_view key, std::string_view ending) {
  return key.starts_with("optimizer.groups[") && key.ends_with(ending);
}

struct Change {
  std::string key;
  std::string before;
  std::string after;
};

std::string sentence_of(const Change& change) {
  return concat(change.key, " was ", change.before, " and is ", change.after);
}

/// The values that differ, apart from those that do not change what is computed.
std::vector<Change> changes_since(const Manifest& manifest, const RunConfig& config) {
  const std::map<std::string, std::string> now = values_for_manifest(config);
  std::map<std::string, std::string> all = manifest.run;
  all.insert(now.begin(), now.end());
  const auto value_in = [](const std::map<std::string, std::string>& values,
                           const std::string& key) {
    const auto found = values.find(key);
    if (found != values.end()) return found->second;
    // A key that one of the two does not have stands for its default.
    if (key == "optimizer.mixing_momentum") return std::string("0");
    return std::string(is_of_group(key, ".vectors") ? "false" : "nothing");
  };
  std::vector<Change> changes;
  for (const auto& [key, unused] : all) {
    const std::string before = value_in(manifest.run, key);
    const std::string after = value_in(now, key);
    // run.seed decides on the data and their order, comm.codec on the values that ranks mix.
    const bool is_free = begins_with_one_of(key, kFree) && key != "run.seed" && key != "comm.codec";
    if (before != after && !is_free) changes.push_back({key, before, after});
  }
  return changes;
}

}  // namespace

std::map<std::string, std::string> values_for_manifest(const RunConfig& config) {
  std::map<std::string, std::string> values;
  for (const ResolvedValue& value : config.resolved) values[value.path] = visible(value.value);
  return values;
}

std::string first_difference(const Manifest& manifest, const RunConfig& config, bool reshapes) {
  if (manifest.run.empty()) return "it was saved by a loop in Python, which has none";
  for (const Change& change : changes_since(manifest, config)) {
    if (!reshapes || !begins_with_one_of(change.key, kReshaped)) return sentence_of(change);
  }
  return "";
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
  if (manifest.run.empty()) {
    return {
        concat("topology, rates and place in the data may be, because a loop in Python has saved ",
               path, ", and those of this configuration count")};
  }
  std::vector<std::string> changes;
  for (const Change& change : changes_since(manifest, config)) {
    const bool may_reshape = begins_with_one_of(change.key, kReshaped);
    const bool is_fixed =
        begins_with_one_of(change.key, kFixed) || is_of_group(change.key, ".optimizer");
    if (may_reshape ? !reshapes : is_fixed) {
      throw CheckpointError(
          concat(path, " was saved with ", change.key, " = ", change.before, ", and this run has ",
                 change.after, "; a run cannot continue with that, so take the same value",
                 may_reshape ? ", or continue from the mean of the saved states with --reshape "
                               "average"
                             : ""));
    }
    changes.push_back(sentence_of(change));
  }
  return changes;
}

}  // namespace gossamer::apps
