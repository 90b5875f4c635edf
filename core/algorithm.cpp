#include "core/algorithm.hpp"

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/lanes/mailbox.hpp"
#include "topology/check.hpp"
#include "topology/graph.hpp"
#include "topology/nodes.hpp"

namespace gossamer {

std::vector<std::string> algorithm_names() { return names_of(algorithm_table()); }

std::string why_not(const AlgorithmEntry& entry, const Topology* topology, const Codec* codec) {
  if (codec != nullptr && !entry.takes_codec) {
    std::vector<std::string> others;
    for (const AlgorithmEntry& other : algorithm_table()) {
      if (other.takes_codec) others.emplace_back(other.name);
    }
    return concat("the algorithm ", entry.name, " sends no encoded blocks; take codec fp32, or ",
                  "one of the algorithms ", join(others, ", "));
  }
  if (!entry.needs_topology) return "";
  if (topology == nullptr) {
    return concat("the algorithm ", entry.name,
                  " needs a topology; name one, as topology.name=ring");
  }
  if (entry.needs_undirected && topology->directed()) {
    return concat("the algorithm ", entry.name, " needs a topology whose messages go in both ",
                  "directions, and ", topology->name(),
                  " is directed; take one-peer-exp or ring, or algorithm=gossip");
  }
  if (codec != nullptr && topology->directed()) {
    return concat("the codec ", codec->name(), " needs a topology whose messages go in both ",
                  "directions, and ", topology->name(),
                  " is directed; take one-peer-exp or ring, or codec fp32");
  }
  if (entry.needs_static && topology->period() != 1) {
    return concat(
        "the algorithm ", entry.name, " needs a topology with a single round, and ",
        topology->name(),
        " changes from round to round; take static-ring or complete, or algorithm=gossip");
  }
  if (entry.needs_static && topology->round(0).node_size > 1) {
    return concat("the algorithm ", entry.name, " needs a topology of one level, and ",
                  topology->name(), " has two; take static-ring or complete, or algorithm=gossip");
  }
  if (entry.needs_tree && (topology->period() != 1 || !is_tree(topology->round(0)))) {
    return concat("the algorithm ", entry.name, " needs a topology whose graph is a tree, and ",
                  topology->name(), " is none; take chain or binary-tree, or algorithm=gossip");
  }
  if (entry.needs_nodes && !has_fixed_nodes(*topology)) {
    return concat("the algorithm ", entry.name, " needs a topology with the same nodes in every ",
                  "round, and ", topology->name(),
                  " is none; take hierarchical with leaders_every: 1, or algorithm=gossip");
  }
  if (entry.asynchronous) return why_no_mailbox(*topology);
  return "";
}

std::string why_not(const AlgorithmChoice& choice, const AlgorithmSetting& setting) {
  const AlgorithmEntry& entry = choice.entry();
  // Before anything follows its rounds.
  if (entry.needs_topology && setting.topology != nullptr) {
    if (const auto found = find_fault(*setting.topology, setting.num_ranks)) return *found;
  }
  for (std::string reason : {why_not(entry, setting.topology, setting.codec),
                             choice.why_not(setting.optimizer, setting.stream)}) {
    if (!reason.empty()) return reason;
  }
  if (setting.stream == nullptr || setting.stream->on_host()) return "";
  if (entry.processors_only) {
    return concat("the algorithm ", entry.name, " works on processors only; on GPUs take gossip");
  }
  if (setting.codec != nullptr) {
    return concat("the codec ", setting.codec->name(),
                  " works on processors only; on GPUs take codec fp32");
  }
  return "";
}

std::unique_ptr<Algorithm> AlgorithmFactory::make(const AlgorithmSetup& setup) const {
  if (!setup.buckets.empty()) {
    const std::string reason = why_not(setup.buckets.front().optimizer(), &setup.stream);
    if (!reason.empty()) throw ConfigError(reason);
  }
  return make_(setup);
}

AlgorithmChoice::AlgorithmChoice(std::string_view name, const Options& options)
    : AlgorithmChoice(row_of(algorithm_table(), "algorithm", name), options) {}

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

AlgorithmChoice read_algorithm(const Options& root, std::string_view fallback) {
  const Options section = root.named_section("algorithm");
  for (const char* const key : {"phases", "consensus_control"}) {
    if (section.has(key)) section.fail(key, "only gossamer train follows this; give a name alone");
  }
  return {section.choice("name", algorithm_names(), std::string(fallback)), section};
}

}  // namespace gossamer
