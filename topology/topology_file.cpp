#include "topology/topology_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "topology/graph.hpp"
#include "topology/verify.hpp"

namespace gossamer {
namespace {

constexpr int kMostRanks = 1'000'000;

// What `topology show --json` says beside the rounds.
constexpr std::array kReported = {"name",
                                  "local_world_size",
                                  "period",
                                  "spectral_gap",
                                  "exact_after",
                                  "consensus_rate",
                                  "rounds_to_1e-3",
                                  "degree",
                                  "model_bytes",
                                  "bytes_per_step",
                                  "rounds_to_1e-3_estimated",
                                  "max_bytes_per_step"};

[[noreturn]] void refuse(const YamlNode& node, std::string_view key, std::string_view what) {
  throw ConfigError(node.where, std::string(key), what);
}

const std::vector<YamlNode>& list_of(const YamlNode& node, std::string_view key) {
  if (node.kind == YamlNode::Kind::kSequence) return node.items;
  refuse(node, key, "is no list, allowed: a list");
}

int rank_of(const YamlNode& node, std::string_view key) {
  int rank = 0;
  if (node.kind != YamlNode::Kind::kScalar || node.quoted || !parse_whole(node.scalar, rank)) {
    refuse(node, key, "is no rank, allowed: an integer");
  }
  return rank;
}

double weight_of(const YamlNode& node, std::string_view key) {
  double weight = 0.0;
  if (node.kind != YamlNode::Kind::kScalar || node.quoted || !parse_whole(node.scalar, weight) ||
      !std::isfinite(weight)) {
    refuse(node, key, "is no weight, allowed: a number from 0 to 1");
  }
  return weight;
}

/// Refuses keys of a mapping that are not among `known`.
void check_keys(const YamlNode& node, std::string_view what,
                const std::vector<std::string>& known) {
  if (node.kind != YamlNode::Kind::kMapping) {
    refuse(node, what, concat("is no mapping, allowed: ", join(known, ", ")));
  }
  reject_unknown_keys(node, "", known);
}

const YamlNode& need(const YamlNode& node, std::string_view key) {
  if (const YamlNode* value = node.find(key)) return *value;
  refuse(node, key, "is missing");
}

class FileReader {
 public:
  explicit FileReader(const YamlNode& root) : root_(root) {}

  TopologyFile read() {
    std::vector<std::string> known = {"world_size", "directed", "edges", "rounds"};
    known.insert(known.end(), kReported.begin(), kReported.end());
    check_keys(root_, "", known);
    file_.world_size = rank_of(need(root_, "world_size"), "world_size");
    if (file_.world_size < 1 || file_.world_size > kMostRanks) {
      refuse(need(root_, "world_size"), "world_size",
             concat(file_.world_size, " is out of range, allowed: 1 to ", kMostRanks));
    }
    file_.directed = read_directed(root_, false);
    const YamlNode* edges = root_.find("edges");
    const YamlNode* rounds = root_.find("rounds");
    if ((edges == nullptr) == (rounds == nullptr)) {
      refuse(root_, "", "a topology is given by either `edges` or `rounds`");
    }
    if (edges != nullptr) {
      file_.rounds.push_back(graph(*edges));
      return std::move(file_);
    }
    for (const YamlNode& round : list_of(*rounds, "rounds")) add_round(round);
    if (file_.rounds.empty()) refuse(*rounds, "rounds", "is empty, allowed: one round or more");
    return std::move(file_);
  }

 private:
  static bool read_directed(const YamlNode& node, bool fallback) {
    const YamlNode* directed = node.find("directed");
    if (directed == nullptr) return fallback;
    if (directed->scalar != "true" && directed->scalar != "false") {
      refuse(*directed, "directed", "is no flag, allowed: true or false");
    }
    return directed->scalar == "true";
  }

  Round graph(const YamlNode& node) const {
    std::vector<Link> links;
    for (const YamlNode& item : list_of(node, "edges")) {
      const auto& ends = list_of(item, "edges");
      if (ends.size() != 2) refuse(item, "edges", "an edge of a graph has two ends");
      links.emplace_back(place(ends[0]), place(ends[1]));
    }
    return file_.directed ? directed_round(links, file_.world_size)
                          : metropolis_round(links, file_.world_size);
  }

  [[nodiscard]] int place(const YamlNode& node) const {
    const int rank = rank_of(node, "edges");
    if (rank >= 0 && rank < file_.world_size) return rank;
    refuse(node, "edges",
           concat("there is no rank ", rank, ", allowed: 0 to ", file_.world_size - 1));
  }

  void add_round(const YamlNode& node) {
    check_keys(node, "rounds", {"edges", "arcs", "directed"});
    // Rounds of one topology are all directed or none is; show --json says it with each.
    file_.directed = read_directed(node, file_.directed) || file_.directed;
    std::vector<Edge> edges;
    std::vector<Arc> arcs;
    if (const YamlNode* list = node.find("edges")) {
      for (const YamlNode& item : list_of(*list, "edges")) edges.push_back(edge_of(item));
    }
    if (const YamlNode* list = node.find("arcs")) {
      for (const YamlNode& item : list_of(*list, "arcs")) arcs.push_back(arc_of(item));
      keep_the_rest(arcs);
    }
    file_.rounds.push_back(fill_round(std::move(edges), file_.world_size, std::move(arcs)));
  }

  static Edge edge_of(const YamlNode& node) {
    const bool has_weight = node.kind == YamlNode::Kind::kMapping;
    if (has_weight) check_keys(node, "edges", {"ranks", "weight"});
    const YamlNode& list = has_weight ? need(node, "ranks") : node;
    std::vector<int> ranks;
    for (const YamlNode& rank : list_of(list, "ranks")) ranks.push_back(rank_of(rank, "ranks"));
    if (ranks.empty()) refuse(list, "ranks", "is empty, allowed: one rank or more");
    Edge edge = averaging_edge(std::move(ranks));
    const YamlNode* weight = has_weight ? node.find("weight") : nullptr;
    if (weight != nullptr) edge.weight = weight_of(*weight, "weight");
    return edge;
  }

  static Arc arc_of(const YamlNode& node) {
    if (node.kind == YamlNode::Kind::kSequence) {
      if (node.items.size() != 3) refuse(node, "arcs", "an arc is [from, to, weight]");
      return {rank_of(node.items[0], "from"), rank_of(node.items[1], "to"),
              weight_of(node.items[2], "weight")};
    }
    check_keys(node, "arcs", {"from", "to", "weight"});
    return {rank_of(need(node, "from"), "from"), rank_of(need(node, "to"), "to"),
            weight_of(need(node, "weight"), "weight")};
  }

  static void keep_the_rest(std::vector<Arc>& arcs) {
    std::map<int, double> kept;
    for (const Arc& arc : arcs) {
      kept.try_emplace(arc.from, 1.0);
      kept.try_emplace(arc.to, 1.0);
    }
    for (const Arc& arc : arcs) kept[arc.from] -= arc.weight;
    for (const Arc& arc : arcs) {
      if (arc.from == arc.to) kept.erase(arc.from);
    }
    for (const auto& [rank, weight] : kept) {
      // Rounding may leave a little less than nothing; a rank that gives away more than it has
      // keeps nothing, and the sum of its column shows it.
      arcs.push_back({rank, rank, std::max(0.0, weight)});
    }
  }

  const YamlNode& root_;
  TopologyFile file_;
};

class FileTopology final : public Topology {
 public:
  explicit FileTopology(TopologyFile file) : file_(std::move(file)) {}

  [[nodiscard]] std::string name() const override { return file_.name; }
  [[nodiscard]] std::optional<std::int64_t> period() const override {
    return std::ssize(file_.rounds);
  }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    return file_.rounds[static_cast<std::size_t>(k) % file_.rounds.size()];
  }
  [[nodiscard]] bool directed() const override { return file_.directed; }

 private:
  TopologyFile file_;
};

}  // namespace

TopologyFile read_topology_file(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > static_cast<std::uintmax_t>(kLargestTopologyFile)) {
    throw ConfigError(concat(path, " has ", human_bytes(static_cast<double>(size)),
                             ", allowed: topology files of up to ",
                             human_bytes(static_cast<double>(kLargestTopologyFile))));
  }
  const YamlNode root = read_yaml_file(path);
  return FileReader(root).read();
}

TopologyFile read_topology_text(std::string_view text, const std::string& source) {
  const YamlNode root = parse_yaml(text, source);
  return FileReader(root).read();
}

std::unique_ptr<Topology> checked_topology(TopologyFile file, const std::string& source,
                                           const World& world, const Options& options,
                                           std::string_view key) {
  if (file.world_size != world.size) {
    options.fail(
        key, concat(source, " is for ", file.world_size, " ranks, this world has ", world.size));
  }
  auto topology = unchecked_topology(std::move(file));
  if (const auto found = find_violation(*topology, world.size, *topology->period())) {
    const std::string round = found->round < 0 ? "" : concat("round ", found->round, ": ");
    options.fail(key, concat(source, ": ", round, found->text));
  }
  return topology;
}

std::unique_ptr<Topology> unchecked_topology(TopologyFile file) {
  return std::make_unique<FileTopology>(std::move(file));
}

}  // namespace gossamer
