#include "python/src/options.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/text.hpp"
#include "base/yaml.hpp"
#include "comm/backends.hpp"
#include "core/bucket/bucket_options.hpp"
#include "optim/registry.hpp"
#include "topology/later_rounds.hpp"
#include "topology/registry.hpp"
#include "topology/topology_file.hpp"

namespace gossamer::python {
namespace {

constexpr TextOption kClass{"class", "the name of the user's class"};
constexpr TextOption kRounds{"rounds", "what a topology file holds"};
constexpr TextOption kName{"name", "of a codec or an optimizer"};
constexpr TextOption kCodec{"name", "of the codec", {.fallback = "fp32"}};
constexpr IntegerOption kBucketBytes{"bucket_bytes", "0: the first steps try sizes", {.min = 0}};
constexpr FlagOption kSharedMemory{
    "shared_memory", "ranks of one host read each other's memory", {.fallback = true}};
constexpr IntegerOption kThreads{
    "threads", "threads of an update", {.fallback = 1, .min = 1, .max = 1024}};
constexpr IntegerOption kFirstRound{"first_round",
                                    "the round of the topology with which the exchanges begin",
                                    {.fallback = 0, .min = 0}};
constexpr FlagOption kKeepsNonfinite{"keeps_nonfinite", "gradients count as they are"};
constexpr FlagOption kAppliesRecipe{"applies_recipe", "the caller applies the recipe's factor"};
constexpr PathOption kTimeline{
    "timeline", "the file for the timeline of all ranks; \"\": none", {.fallback = ""}};
constexpr RangeOption kTimelineSteps{"timeline_steps", "steps that the timeline records"};

std::unique_ptr<Topology> make_own(const World& world, const Options& options,
                                   std::span<const TopologyEntry> /*own*/) {
  const std::string name = options.read(kClass);
  TopologyFile given = read_topology_text(options.read(kRounds), name);
  given.name = name;
  return checked_topology(std::move(given), name, world, options, "rounds");
}

constexpr std::array kOwn = {
    TopologyEntry{.name = "OwnTopology",
                  .summary = "the rounds of a class of Python",
                  .options = {},
                  .needs_options = true,
                  .sizes = "the world size of its rounds",
                  .fits = [](const World& world) { return world.size >= 1; },
                  .make = make_own},
};

/// The program's section `comm`, as far as it says what ranks exchange.
void read_comm(const Options& root, World& world, ExchangeOptions& exchange) {
  const Options comm = root.section("comm");
  if (comm.has("codec")) {
    const Options section = comm.named_section("codec");
    const Codec* const codec = find_codec(section.read(kName));
    if (exchange.codec != nullptr && codec != exchange.codec) {
      comm.fail("codec", "is another one than codec, allowed: one of the two");
    }
    exchange.codec = codec;
  }
  const auto size = static_cast<int>(comm.read(kLocalSize));
  if (size == 0) return;
  if (world.size % size != 0) {
    comm.fail("local_size", concat(size, " does not divide the ", world.size,
                                   " ranks, allowed: a divisor of it"));
  }
  world.node_size = size;
}

/// The size of a bucket in bytes: the program's `buckets: {size_mb: N}`, or else bucket_bytes.
std::int64_t read_bucket_bytes(const Options& root, std::int64_t fallback) {
  IntegerOption bucket_bytes = kBucketBytes;
  bucket_bytes.rule.fallback = fallback;
  const std::int64_t bytes = root.read(bucket_bytes);
  if (!root.has("buckets")) return bytes;
  const auto size_mb = root.section("buckets").read(kBucketSizeMb);
  constexpr double kMib = 1024.0 * 1024.0;
  return size_mb ? std::max<std::int64_t>(1, static_cast<std::int64_t>(*size_mb * kMib)) : 0;
}

}  // namespace

Options given_options(const std::string& yaml) { return Options(parse_yaml(yaml, "options")); }

std::span<const TopologyEntry> own_topologies() { return kOwn; }

ExchangeOptions read_exchange(const Options& root, const World& given, std::string_view fallback) {
  ExchangeOptions exchange{.algorithm = read_algorithm(root),
                           .shares_memory = root.read(kSharedMemory)};
  const Options codec = root.named_section("codec");
  exchange.codec = find_codec(codec.read(kCodec));
  World world = given;
  read_comm(root, world, exchange);
  const Options topology = root.named_section("topology");
  const std::int64_t first_round = root.read(kFirstRound);
  if (!exchange.algorithm.needs_topology()) {
    topology.accept_unknown();
    return exchange;
  }
  try {
    exchange.topology = read_topology(topology, world, "ring", kOwn);
  } catch (const ConfigError&) {
    if (fallback.empty()) throw;
    exchange.topology = fallback_topology(exchange.algorithm, fallback, world);
  }
  exchange.topology = from_round(exchange.topology, first_round);
  return exchange;
}

std::shared_ptr<const Optimizer> read_optimizer(const std::string& yaml) {
  const Options section = Options::parse(yaml);
  std::shared_ptr<const Optimizer> optimizer = make_optimizer(section.read(kName), section);
  section.reject_unknown();
  return optimizer;
}

Pipeline::Config read_engine_options(const Options& root, const World& world) {
  Pipeline::Config options;
  options.exchange = read_exchange(root, world);
  options.num_threads = static_cast<int>(root.read(kThreads));
  read_clipping(root, options.gradients);
  // A plan gives the program's section.
  if (root.has("train")) options.gradients.recipe = read_recipe(root.section("train"));
  const bool caller_applies = root.read(kAppliesRecipe);
  if (caller_applies && options.gradients.recipe == Recipe::kAllReduce) {
    options.gradients.recipe = Recipe::kMeasured;
  }
  options.gradients.nonfinite = nonfinite(root.read(kNonfinite));
  if (root.read(kKeepsNonfinite)) {
    options.gradients.nonfinite = NonFinite::kKeep;
  }
  options.bucket_bytes = read_bucket_bytes(root, options.bucket_bytes);
  options.logger = world.rank == 0 ? Logger(LogLevel::kInfo, "") : Logger();
  return options;
}

std::optional<StepTimeline::Config> read_timeline(const Options& root, bool is_asynchronous) {
  StepTimeline::Config config{.path = root.read(kTimeline)};
  // A timeline in the folder of a run names the run, as that of the program does.
  config.about = std::filesystem::path(config.path).parent_path().string();
  if (const auto steps = root.read(kTimelineSteps)) {
    config.steps = {.begin = steps->first, .end = steps->second};
    if (config.path.empty()) {
      root.fail("timeline_steps", "is given without timeline, allowed: both, or none");
    }
  }
  if (config.path.empty()) return std::nullopt;
  if (is_asynchronous) {
    root.fail("timeline",
              "records the same steps of all ranks, and this algorithm's ranks make different "
              "numbers of steps, allowed: none");
  }
  return config;
}

}  // namespace gossamer::python
