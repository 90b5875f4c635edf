#include "apps/lab/study/study_config.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/train/sections.hpp"
#include "base/error.hpp"
#include "base/options.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "core/algorithms/algorithm.hpp"

namespace gossamer::apps {
namespace {

constexpr IntegerOption kWorkers{
    "workers", "ranks of each run", {.min = 1, .max = kMaxStudyWorkers}};

using Kind = YamlNode::Kind;

/// Folder names of 3 labels stay below the 255 bytes that file systems allow.
constexpr std::size_t kMaxLabel = 70;

const std::vector<std::string> kRootKeys = {"base", "study"};
const std::vector<std::string> kStudyKeys = {
    "workers", "steps",      "epochs", "topologies",      "algorithms",
    "codecs",  "optimizers", "seeds",  "dirichlet_alpha", "output_dir"};

/// A key of the base that the study sets, and the key to use instead.
struct Moved {
  std::string_view section;
  std::string_view key;  // empty: the section itself
  std::string_view instead;
};

constexpr std::array kMoved = {
    Moved{"algorithm", "", "study.algorithms, or an item of study.topologies such as allreduce"},
    Moved{"topology", "", "study.topologies"},
    Moved{"optimizer", "name", "study.optimizers"},
    Moved{"run", "seed", "study.seeds"},
    Moved{"run", "steps", "study.steps"},
    Moved{"run", "epochs", "study.epochs"},
    Moved{"run", "output_dir", "study.output_dir"},
    Moved{"data", "dirichlet_alpha", "study.dirichlet_alpha"},
};

void check_base(const YamlNode& base) {
  for (const Moved& moved : kMoved) {
    const YamlNode* node = base.find(moved.section);
    if (node != nullptr && !moved.key.empty()) {
      // The study overwrites this section, so read_run_config() would not see the mistake.
      if (node->kind != Kind::kMapping && node->kind != Kind::kNull) {
        throw ConfigError(node->where, concat("base.", moved.section),
                          "is no section, allowed: a section of key: value lines");
      }
      node = node->find(moved.key);
    }
    if (node == nullptr) continue;
    throw ConfigError(node->where,
                      concat("base.", moved.section, moved.key.empty() ? "" : ".", moved.key),
                      concat("is what the study sets, allowed: ", moved.instead));
  }
}

/// The value under a key; creates it if the key is missing.
YamlNode& entry(YamlNode& mapping, std::string_view key, const std::string& where) {
  if (mapping.kind != Kind::kMapping) mapping = {.kind = Kind::kMapping, .where = where};
  if (YamlNode* found = mapping.find(key)) return *found;
  mapping.entries.push_back({{std::string(key), where}, {.where = where}});
  return mapping.entries.back().second;
}

void set_value(YamlNode& tree, std::string_view section, std::string_view key,
               const YamlNode& value) {
  entry(entry(tree, section, value.where), key, value.where) = value;
}

YamlNode text_node(std::string text, const std::string& where) {
  return {.kind = Kind::kScalar, .where = where, .scalar = std::move(text), .quoted = true};
}

/// The text of a node for a folder's name: `{name: base-k, k: 3}` becomes `base-k-k-3`.
std::string label_of(const YamlNode& node) {
  std::vector<std::string> parts;
  if (node.kind == Kind::kScalar) parts.push_back(node.scalar);
  for (const YamlNode& item : node.items) parts.push_back(label_of(item));
  for (const auto& [key, value] : node.entries) {
    if (key.name != "name") parts.push_back(key.name);
    parts.push_back(label_of(value));
  }
  std::string label = join(parts, "-");
  for (char& c : label) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  }
  return label;
}

/// An item of a list: its label and its node.
struct Item {
  std::string label;
  YamlNode node;
};

/// Takes the key `label` out of an item and names the item by it; without that key, by label_of().
Item labelled(const YamlNode& node, const std::string& key) {
  Item item{"", node};
  if (node.find("label") != nullptr) {
    std::erase_if(item.node.entries, [](const auto& pair) { return pair.first.name == "label"; });
    item.label = Options(node).read(TextOption{"label", "the name in folders"});
    const bool fine = item.label == label_of(text_node(item.label, node.where));
    if (!fine || item.label.empty()) {
      throw ConfigError(node.find("label")->where, key + ".label",
                        "is part of a folder's name, allowed: letters, digits, '.', '_' and '-'");
    }
  } else {
    item.label = label_of(node);
  }
  if (item.label.empty() || item.label.size() > kMaxLabel) {
    throw ConfigError(node.where, key,
                      concat("gives an empty or too long folder name; add `label: NAME` to the "
                             "item, with 1 to ",
                             kMaxLabel, " characters"));
  }
  return item;
}

const YamlNode& need_list(const YamlNode& study, std::string_view key, std::string_view of_what) {
  const YamlNode* list = study.find(key);
  const std::string allowed = concat("allowed: a list of ", of_what, ", of one at least");
  if (list == nullptr || list->kind == Kind::kNull) {
    throw ConfigError(study.where, concat("study.", key), "is missing, " + allowed);
  }
  if (list->kind != Kind::kSequence || list->items.empty()) {
    throw ConfigError(list->where, concat("study.", key), "is no list of values, " + allowed);
  }
  return *list;
}

void check_distinct(const std::vector<Item>& items, std::string_view key) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (canonical_name(items[i].label) != canonical_name(items[j].label)) continue;
      throw ConfigError(items[i].node.where, concat("study.", key, "[", i, "]"),
                        concat("is called ", items[i].label, " like the item at ",
                               items[j].node.where, ", allowed: items that differ"));
    }
  }
}

/// Reads the list of topologies, algorithms, codecs or optimizers.
std::vector<Item> read_named(const YamlNode& study, std::string_view key) {
  const YamlNode& list = need_list(study, key, "names or sections");
  std::vector<Item> items;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const YamlNode& node = list.items[i];
    const std::string name = concat("study.", key, "[", i, "]");
    if (node.kind != Kind::kScalar && node.kind != Kind::kMapping) {
      throw ConfigError(node.where, name,
                        "is neither a name nor a section, allowed: a name, or a section of key: "
                        "value lines");
    }
    items.push_back(labelled(node, name));
  }
  check_distinct(items, key);
  return items;
}

/// A section with one item of a list as its only key, for Options to read.
Options item_options(const YamlNode& item, const std::string& key) {
  YamlNode section{.kind = Kind::kMapping, .where = item.where};
  section.entries.push_back({{key, item.where}, item});
  YamlNode root{.kind = Kind::kMapping, .where = item.where};
  root.entries.push_back({{"study", item.where}, section});
  return Options(root).section("study");
}

struct Seed {
  std::int64_t value = 1;
  YamlNode node;
};

std::vector<Seed> read_seeds(const YamlNode& study) {
  const YamlNode one{.kind = Kind::kScalar, .where = study.where, .scalar = "1"};
  if (study.find("seeds") == nullptr) return {{1, one}};
  const YamlNode& list = need_list(study, "seeds", "integers");
  std::vector<Seed> seeds;
  std::vector<Item> items;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const std::string key = concat("seeds[", i, "]");
    const YamlNode& node = list.items[i];
    seeds.push_back({item_options(node, key).read(IntegerOption{key, "a seed", {.min = 0}}), node});
    items.push_back({std::to_string(seeds.back().value), node});
  }
  check_distinct(items, "seeds");
  return seeds;
}

struct Heterogeneity {
  std::optional<double> alpha;
  YamlNode node;
};

std::vector<Heterogeneity> read_heterogeneity(const YamlNode& study) {
  if (study.find("dirichlet_alpha") == nullptr) return {{std::nullopt, {.where = study.where}}};
  const YamlNode& list = need_list(study, "dirichlet_alpha", "numbers or null");
  std::vector<Heterogeneity> all;
  std::vector<Item> items;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const std::string key = concat("dirichlet_alpha[", i, "]");
    const YamlNode& node = list.items[i];
    OptionalNumberOption alpha = data_section::kDirichletAlpha;
    alpha.name = key;
    all.push_back({item_options(node, key).read(alpha), node});
    items.push_back({heterogeneity_label(all.back().alpha), node});
  }
  check_distinct(items, "dirichlet_alpha");
  return all;
}

/// One way of communicating: an algorithm, its topology if it needs one, and its codec if the study
/// lists codecs.
struct Setup {
  std::string label;
  YamlNode algorithm;
  std::optional<YamlNode> topology = {};
  std::optional<YamlNode> codec = {};
};

/// The algorithm that an item names, or null.
const AlgorithmEntry* algorithm_of(const YamlNode& item, const PlugIns& own) {
  const YamlNode* name = item.kind == Kind::kMapping ? item.find("name") : &item;
  if (name == nullptr || name->kind != Kind::kScalar) return nullptr;
  // A frequent spelling.
  if (canonical_name(name->scalar) == "all-reduce") return find_row(algorithm_table(), "allreduce");
  if (const AlgorithmEntry* row = find_row(own.algorithms, name->scalar)) return row;
  return find_row(algorithm_table(), name->scalar);
}

/// Whether an item that names an algorithm must be combined with topologies.
bool follows_topology(const YamlNode& item, const AlgorithmEntry& entry) {
  if (item.kind != Kind::kMapping) return entry.topologies != TopologyKind::kNone;
  return AlgorithmChoice(entry, Options(item)).needs_topology();
}

/// Whether an algorithm can be combined with a codec. Names that are in no table are refused later.
bool goes_with(const Setup& setup, const YamlNode& codec, const PlugIns& own) {
  const AlgorithmEntry* entry = algorithm_of(setup.algorithm, own);
  const CodecEntry* row = find_row(own.codecs, codec.scalar);
  if (row == nullptr) row = find_row(codec_table(), codec.scalar);
  if (entry == nullptr || row == nullptr || row->codec == nullptr) return true;
  const bool has_options = setup.algorithm.kind == Kind::kMapping;
  return AlgorithmChoice(*entry, has_options ? Options(setup.algorithm) : Options())
      .takes(row->codec());
}

/// Combines every algorithm with every codec of the study that it takes. Algorithms that take none
/// run once.
std::vector<Setup> with_codecs(const YamlNode& study, const YamlNode& base, const PlugIns& own,
                               const std::vector<Setup>& plain) {
  if (study.find("codecs") == nullptr) return plain;
  const YamlNode* comm = base.find("comm");
  if (const YamlNode* codec = comm == nullptr ? nullptr : comm->find("codec")) {
    throw ConfigError(codec->where, "base.comm.codec",
                      "is what the study sets, allowed: study.codecs");
  }
  const std::vector<Item> codecs = read_named(study, "codecs");
  std::vector<Setup> setups;
  for (const Setup& setup : plain) {
    const AlgorithmEntry* entry = algorithm_of(setup.algorithm, own);
    if (entry != nullptr && !entry->takes_codec) {
      setups.push_back(setup);
      continue;
    }
    const std::size_t num_before = setups.size();
    for (const Item& codec : codecs) {
      if (!goes_with(setup, codec.node, own)) continue;
      Setup coded = setup;
      if (codec.label != "fp32") coded.label += "-" + codec.label;
      coded.codec = codec.node;
      setups.push_back(std::move(coded));
    }
    if (setups.size() == num_before) {
      throw ConfigError(codecs.front().node.where, "study.codecs",
                        concat("no codec of the list goes with the algorithm ", setup.label,
                               ", allowed: one that does, as fp32"));
    }
  }
  return setups;
}

/// Combines every algorithm that needs a topology with every topology. Without `algorithms` the
/// only one is gossip. An algorithm that needs no topology may also be listed among the topologies.
std::vector<Setup> read_setups(const YamlNode& study, const YamlNode& base, const PlugIns& own) {
  const std::vector<Item> topologies = read_named(study, "topologies");
  const bool has_algorithms = study.find("algorithms") != nullptr;
  const std::vector<Item> algorithms =
      has_algorithms ? read_named(study, "algorithms")
                     : std::vector<Item>{{"gossip", text_node("gossip", study.where)}};
  std::vector<Setup> setups;
  for (const Item& item : topologies) {
    const AlgorithmEntry* alone = algorithm_of(item.node, own);
    if (alone != nullptr && !follows_topology(item.node, *alone)) {
      setups.push_back(
          {.label = item.label, .algorithm = text_node(std::string(alone->name), item.node.where)});
      continue;
    }
    for (const Item& algorithm : algorithms) {
      const AlgorithmEntry* entry = algorithm_of(algorithm.node, own);
      if (entry != nullptr && !follows_topology(algorithm.node, *entry)) continue;
      const std::string label =
          has_algorithms ? concat(algorithm.label, "-on-", item.label) : item.label;
      setups.push_back({label, algorithm.node, item.node});
    }
  }
  for (const Item& algorithm : algorithms) {
    const AlgorithmEntry* entry = algorithm_of(algorithm.node, own);
    if (entry != nullptr && !follows_topology(algorithm.node, *entry)) {
      setups.push_back({.label = algorithm.label, .algorithm = algorithm.node});
    }
  }
  std::vector<Setup> all = with_codecs(study, base, own, setups);
  std::vector<Item> labels;
  for (const Setup& setup : all) labels.push_back({setup.label, setup.algorithm});
  check_distinct(labels, "algorithms");
  return all;
}

void set_communication(YamlNode& tree, const Setup& setup) {
  entry(tree, "algorithm", setup.algorithm.where) = setup.algorithm;
  if (setup.codec) set_value(tree, "comm", "codec", *setup.codec);
  if (!setup.topology) return;
  YamlNode& topology = entry(tree, "topology", setup.topology->where);
  if (setup.topology->kind == Kind::kMapping) {
    topology = *setup.topology;
  } else {
    entry(topology, "name", setup.topology->where) = *setup.topology;
  }
}

/// Sets the optimizer of a run: the item's keys override those of the base.
void set_optimizer(YamlNode& tree, const YamlNode& item) {
  YamlNode& optimizer = entry(tree, "optimizer", item.where);
  if (item.kind == Kind::kScalar) {
    entry(optimizer, "name", item.where) = item;
    return;
  }
  for (const auto& [key, value] : item.entries) entry(optimizer, key.name, key.where) = value;
}

/// The base plus all values that the runs of the study share.
YamlNode shared_tree(const YamlNode& study, const YamlNode& base) {
  YamlNode tree = base;
  for (const std::string_view key : {"steps", "epochs"}) {
    if (const YamlNode* node = study.find(key)) {
      set_value(tree, "run", key, *node);
    }
  }
  return tree;
}

void expand(const YamlNode& study, const PlugIns& own, StudyConfig& config) {
  const YamlNode shared = shared_tree(study, config.base);
  const std::vector<Setup> setups = read_setups(study, config.base, own);
  const std::vector<Item> optimizers = read_named(study, "optimizers");
  const std::vector<Heterogeneity> mixtures = read_heterogeneity(study);
  for (const Seed& seed : read_seeds(study)) {
    for (const Heterogeneity& mixture : mixtures) {
      for (const Setup& setup : setups) {
        for (const Item& optimizer : optimizers) {
          StudyRun run{.topology = setup.label,
                       .optimizer = optimizer.label,
                       .dirichlet_alpha = mixture.alpha,
                       .seed = seed.value,
                       .tree = shared};
          run.name = concat(run.topology, "__", run.optimizer, "__",
                            heterogeneity_label(run.dirichlet_alpha), "__seed", run.seed);
          set_communication(run.tree, setup);
          set_optimizer(run.tree, optimizer.node);
          set_value(run.tree, "data", "dirichlet_alpha", mixture.node);
          set_value(run.tree, "run", "seed", seed.node);
          const std::filesystem::path folder = std::filesystem::path(config.output_dir) / run.name;
          set_value(run.tree, "run", "output_dir", text_node(folder.string(), seed.node.where));
          config.runs.push_back(std::move(run));
        }
      }
    }
  }
}

}  // namespace

std::string heterogeneity_label(const std::optional<double>& dirichlet_alpha) {
  return dirichlet_alpha ? concat("alpha", shortest(*dirichlet_alpha)) : "even";
}

StudyConfig read_study_config(const YamlNode& root, const std::string& config_path,
                              const PlugIns& own) {
  const Options options(root);
  reject_unknown_keys(root, "", kRootKeys);
  const Options section = options.section("study");
  static_cast<void>(options.section("base"));
  const YamlNode nothing{.kind = Kind::kMapping, .where = root.where};
  const YamlNode& study = options.has("study") ? *root.find("study") : nothing;
  reject_unknown_keys(study, "study.", kStudyKeys);

  StudyConfig config;
  config.base = options.has("base") ? *root.find("base") : nothing;
  check_base(config.base);
  config.workers = static_cast<int>(section.read(kWorkers));
  config.workers_where = study.find("workers")->where;
  const auto folder = std::filesystem::path("runs") / std::filesystem::path(config_path).stem();
  const PathOption output_dir{"output_dir", "the folder of the runs", {folder.native()}};
  config.output_dir = section.read(output_dir);
  if (config.output_dir.empty()) {
    section.fail(output_dir.name, "is empty, allowed: the path of a folder");
  }
  expand(study, own, config);
  return config;
}

}  // namespace gossamer::apps
