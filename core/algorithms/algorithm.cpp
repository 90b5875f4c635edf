#include "core/algorithms/algorithm.hpp"

#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "topology/check.hpp"
#include "topology/graph.hpp"
#include "topology/nodes.hpp"

namespace gossamer {

std::vector<std::string> algorithm_names(std::span<const AlgorithmEntry> own) {
  return names_of(with_own(algorithm_table(), own));
}

namespace {

/// Says why lanes of an algorithm cannot follow a topology; empty: they can.
std::string why_not_on(const Topology& topology, std::string_view algorithm, TopologyKind kind) {
  const bool takes_directed = kind == TopologyKind::kAny || kind == TopologyKind::kNodes;
  const bool has_one_round = topology.period() == 1;
  if (!takes_directed && topology.directed()) {
    return concat("the algorithm ", algorithm, " needs a topology whose messages go in both ",
                  "directions, and ", topology.name(),
                  " is directed; take base-k or ring, or algorithm=gossip");
  }
  if (kind == TopologyKind::kStatic && !has_one_round) {
    return concat(
        "the algorithm ", algorithm, " needs a topology with a single round, and ", topology.name(),
        " changes from round to round; take static-ring or complete, or algorithm=gossip");
  }
  if (kind == TopologyKind::kStatic && topology.round(0).node_size > 1) {
    return concat("the algorithm ", algorithm, " needs a topology of one level, and ",
                  topology.name(), " has two; take static-ring or complete, or algorithm=gossip");
  }
  if (kind == TopologyKind::kTree && !(has_one_round && is_tree(topology.round(0)))) {
    return concat("the algorithm ", algorithm, " needs a topology whose graph is a tree, and ",
                  topology.name(), " is none; take chain or binary-tree, or algorithm=gossip");
  }
  if (kind == TopologyKind::kNodes && !has_fixed_nodes(topology)) {
    return concat("the algorithm ", algorithm, " needs a topology with the same nodes in every ",
                  "round, and ", topology.name(),
                  " is none; take hierarchical with leaders_every: 1, or algorithm=gossip");
  }
  return "";
}

/// What all ranks would do after the same step.
std::string why_no_common_steps(const AlgorithmSetting& setting, std::string_view algorithm) {
  if (setting.tries_bucket_sizes) {
    return concat("bucket_bytes is 0, which tries sizes of buckets in steps that all make ",
                  "together, and ", algorithm, " has none; give the size");
  }
  if (setting.average_buffers_every > 0) {
    return concat("average_buffers_every is ", setting.average_buffers_every, ", and the ranks of ",
                  algorithm, " have no common steps, allowed: 0; ",
                  "global_average() averages buffers, too");
  }
  return "";
}

/// Whether the ranks send later what a codec has left out.
bool sends_rest_later(const AlgorithmChoice& choice) {
  return choice.entry().feeds_errors_back && !choice.needs_topology();
}

/// The algorithms that have a property.
std::string names_with(bool AlgorithmEntry::*property) {
  std::vector<std::string> names;
  for (const AlgorithmEntry& entry : algorithm_table()) {
    if (entry.*property) names.emplace_back(entry.name);
  }
  return join(names, ", ");
}

std::string why_not_on_gpu(const AlgorithmEntry& entry, const Codec* codec) {
  if (!entry.processors_only.empty()) {
    return concat("the algorithm ", entry.name, " works on processors only, because ",
                  entry.processors_only, "; on GPUs take gossip");
  }
  return codec == nullptr ? "" : gossamer::why_not_on_gpu(*codec);
}

/// What the algorithm's row says, and the topologies that its options choose.
std::string why_not_by_row(const AlgorithmSetting& setting, const AlgorithmChoice& choice) {
  const AlgorithmEntry& entry = choice.entry();
  const auto [topology, codec] = std::pair(setting.topology, setting.codec);
  if (choice.needs_topology() && topology != nullptr && setting.num_ranks > 0) {
    // Before anything follows its rounds.
    if (const auto found = find_fault(*topology, setting.num_ranks)) return *found;
  }
  if (codec != nullptr && !entry.takes_codec) {
    return concat("the algorithm ", entry.name, " sends no encoded blocks; take codec fp32, or ",
                  "one of the algorithms ", names_with(&AlgorithmEntry::takes_codec));
  }
  if (setting.is_elastic && !entry.survives) {
    return concat("the algorithm ", entry.name, " cannot go on without a rank that dies; take ",
                  "one of the algorithms ", names_with(&AlgorithmEntry::survives));
  }
  if (setting.is_elastic && setting.tries_bucket_sizes) {
    return concat("bucket_bytes is 0, which tries sizes of buckets, and a rank that dies ",
                  "meanwhile would end the run; give the size");
  }
  if (codec != nullptr && codec->is_sparse() && !sends_rest_later(choice)) {
    return concat("the codec ", codec->name(), " leaves out elements, and needs sums over all ",
                  "ranks that send them later; take algorithm={name: outer, kind: diloco, lr: 1, "
                  "momentum: 0}, or another codec");
  }
  if (setting.optimizer != nullptr && setting.optimizer->follows_mixing() &&
      entry.averages_rarely) {
    return concat("the optimizer's momentum follows the mixing of every step, and ", entry.name,
                  " averages every few steps; take optimizer.mixing_momentum=0, or ",
                  "algorithm=gossip");
  }
  if (choice.needs_topology() && topology == nullptr) {
    return concat("the algorithm ", entry.name,
                  " needs a topology; name one, as topology.name=ring");
  }
  if (choice.needs_topology() && codec != nullptr && codec->mixing() == nullptr) {
    return concat("the codec ", codec->name(), " encodes sums over all ranks alone, and ",
                  entry.name, " mixes blocks of peers; take another codec");
  }
  if (choice.needs_topology()) {
    if (std::string reason = why_not_on(*topology, entry.name, choice.topologies());
        !reason.empty())
      return reason;
    if (codec != nullptr && topology->directed()) {
      return concat("the codec ", codec->name(), " needs a topology whose messages go in both ",
                    "directions, and ", topology->name(),
                    " is directed; take base-k or ring, or codec fp32");
    }
  }
  return setting.on_gpu ? why_not_on_gpu(entry, codec) : "";
}

}  // namespace

std::string AlgorithmChoice::why_not(const AlgorithmSetting& setting) const {
  std::string reason = why_not_by_row(setting, *this);
  if (reason.empty()) reason = factory_.why_not(setting);
  if (reason.empty() && entry_->asynchronous()) {
    reason = why_no_common_steps(setting, entry_->name);
  }
  return reason;
}

bool AlgorithmChoice::takes(const Codec& codec) const {
  return entry_->takes_codec && (!codec.is_sparse() || sends_rest_later(*this)) &&
         (codec.mixing() != nullptr || !needs_topology()) &&
         factory_.why_not({.codec = &codec}).empty();
}

void AlgorithmChoice::check(const AlgorithmSetting& setting) const {
  const std::string reason = why_not(setting);
  if (!reason.empty()) throw ConfigError(reason);
}

AlgorithmChoice::AlgorithmChoice(std::string_view name, const Options& options,
                                 std::span<const AlgorithmEntry> own)
    : AlgorithmChoice(row_of(with_own(algorithm_table(), own), "algorithm", name), options) {}

AlgorithmChoice::AlgorithmChoice(const AlgorithmEntry& entry, const Options& options)
    : entry_(&entry), factory_(entry_->read(options)), text_(entry_->name) {
  std::vector<std::string> values;
  std::vector<std::string> given;
  for (const OptionEntry& option : entry_->options) {
    values.push_back(concat(option.name, ": ", options.value_of(option.name)));
    if (options.has(option.name)) given.push_back(values.back());
  }
  if (!values.empty()) text_ += concat(" {", join(values, ", "), "}");
  given_ = join(given, ", ");
}

AlgorithmChoice read_algorithm(const Options& root, std::span<const AlgorithmEntry> own) {
  const Options section = root.named_section("algorithm");
  for (const char* const key : {"phases", "consensus_control"}) {
    if (section.has(key)) section.fail(key, "only gossamer train follows this; give a name alone");
  }
  return {section.read(kAlgorithmName, kAlgorithmName.rule.fallback, algorithm_names(own)), section,
          own};
}

}  // namespace gossamer
