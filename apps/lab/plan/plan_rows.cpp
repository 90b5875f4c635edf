#include "apps/lab/plan/plan_rows.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/lab/plan/exchange_schedule.hpp"
#include "apps/lab/plan/ways.hpp"
#include "base/error.hpp"
#include "base/options.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

// Limits that keep the work for each topology below about a second.
constexpr std::int64_t kRankBuckets = 65'536;
constexpr std::int64_t kRankBucketSteps = 100'000;
constexpr std::int64_t kFewestSteps = 12;
constexpr std::int64_t kMostSteps = 96;
// How many times as many steps a common period of algorithm and topology may take.
constexpr std::int64_t kMostCommonSteps = 4;
// The largest world, in ranks, in which the rounds to the target are counted by following them.
constexpr int kFollowedRanks = 32;
constexpr double kNoGap = 1e-12;
// The longest period that a plan for several regions tries, in steps.
constexpr int kLongestRegionPeriod = 256;
// The longest period of a way that may be rare, in steps.
constexpr std::int64_t kMostEvery = 1024;
constexpr std::int64_t kLeastWarmup = 8;
// Every bucket of an average has its latencies.
constexpr int kMostRareBuckets = 4;
// Ranks, buckets and steps that one prediction of a rare way follows, at most.
constexpr std::int64_t kMostFollowed = 8'000'000;
// What the far averages in pairs follow: pairs for every number of ranks, and after some rounds all
// have met.
constexpr std::string_view kPairTopology = "base-k";

/// A topology with options that are not the defaults.
struct Variant {
  std::string name;
  std::string option = {};
  /// The second option; empty: none.
  std::string second = {};
  /// Ranks that the topology takes as one node (`comm.local_size`); 0: those of a host.
  int local_size = 0;
  /// The model follows whole periods, however long they are.
  bool whole_periods = false;

  [[nodiscard]] std::string label() const {
    std::string text = name;
    if (local_size > 0) text += " by region";
    for (const std::string_view part : {option, second}) {
      if (!part.empty()) text += concat(", ", part);
    }
    return text;
  }
  /// As `{name: base-k, k: 3}`.
  [[nodiscard]] std::string section() const {
    std::string text = concat("{name: ", name);
    for (const std::string_view part : {option, second}) {
      if (!part.empty()) text += concat(", ", part);
    }
    return text + "}";
  }
};

/// A variant with its rounds.
struct Place {
  Variant variant;
  std::shared_ptr<const Topology> topology;
  std::optional<RoundCount> rounds;
};

/// Number of steps to follow a topology for: whole periods if these are short.
std::int64_t num_steps(const StepModel& model, std::int64_t period) {
  const std::int64_t per_step = std::int64_t{model.world.size} * std::ssize(model.bucket_bytes);
  const std::int64_t steps = std::clamp(kRankBucketSteps / per_step, kFewestSteps, kMostSteps);
  if (period > 2 * steps) return steps;
  return (steps + period - 1) / period * period;
}

/// Like rounds_to(), which takes many seconds where mixing is slow. In a large world this function
/// looks for an exact mean instead. Where there is none, the rounds follow from the spectral gap;
/// for 64 ranks this estimate is off by 5 % at most.
std::optional<RoundCount> rounds_to_target(const Topology& topology, int world_size) {
  if (world_size <= kFollowedRanks) return rounds_to(topology, world_size, kPlannedTarget);
  if (const auto exact = exact_after(topology, world_size)) return RoundCount{.rounds = *exact};
  if (!topology.period()) return rounds_to(topology, world_size, kPlannedTarget);
  const auto gap = spectral_gap(topology, world_size);
  if (!gap || *gap <= kNoGap || *gap >= 1.0) return std::nullopt;
  const double periods = std::log(kPlannedTarget) / std::log1p(-*gap);
  const double rounds = std::ceil(static_cast<double>(*topology.period()) * periods);
  return RoundCount{.rounds = static_cast<std::int64_t>(rounds), .estimated = true};
}

bool is_worth_a_row(const Variant& variant, const World& world) {
  const TopologyEntry* entry = find_row(topology_table(), variant.name);
  if (entry == nullptr || !entry->fits(world)) return false;
  if (variant.name != "hierarchical") return world.size > 2;
  // On one node, and with one rank on each, it is another topology under a second name.
  const int nodes = world.size / world.node_size;
  if (nodes < 3 || world.node_size < 2) return false;
  const bool needs_power = variant.option == "leaders: one-peer-exp";
  return !needs_power || (nodes & (nodes - 1)) == 0;
}

/// The variants that only a cluster in several regions needs.
void add_region_variants(const StepModel& model, std::vector<Variant>& variants) {
  const World& world = model.world;
  const Regions& regions = model.links.regions;
  if (regions.count() < 2) return;
  const int region_size = world.size / regions.count();
  const bool has_hosts = world.node_size > 1 && world.size / world.node_size > 2;
  const bool has_region_nodes =
      regions.are_equal() && region_size > 1 && region_size != world.node_size;
  for (int every = 1; every <= kLongestRegionPeriod; every *= 4) {
    for (const char* const leaders : {"leaders: ring", "leaders: complete"}) {
      Variant variant{.name = "hierarchical",
                      .option = leaders,
                      .second = concat("leaders_every: ", every),
                      .whole_periods = true};
      if (has_hosts && every > 1) variants.push_back(variant);
      variant.local_size = region_size;
      if (has_region_nodes) variants.push_back(variant);
    }
  }
}

/// The topologies that fit the world. Of those that are alike, the first one is advised, and base-k
/// fits every number of ranks.
std::vector<Variant> variants_for(const PlanOptions& options) {
  const StepModel& model = options.model;
  std::vector<Variant> variants;
  for (const auto& table : {topology_table(), options.own.topologies}) {
    for (const TopologyEntry& entry : table) {
      if (entry.needs_options || !entry.fits(model.world)) continue;
      variants.push_back({.name = std::string(entry.name)});
    }
  }
  std::ranges::stable_partition(variants,
                                [](const Variant& each) { return each.name == kPairTopology; });
  for (const auto& [name, option] :
       {std::pair("base-k", "k: 3"), std::pair("hierarchical", "leaders: one-peer-exp"),
        std::pair("hierarchical", "leaders: complete")}) {
    const Variant variant{.name = name, .option = option};
    if (is_worth_a_row(variant, model.world)) variants.push_back(variant);
  }
  add_region_variants(model, variants);
  return variants;
}

/// The topology of a variant, read as training will read it.
std::shared_ptr<const Topology> topology_of(const Variant& variant, const PlanOptions& options) {
  World world = options.model.world;
  if (variant.local_size > 0) world.node_size = variant.local_size;
  const Options root(parse_yaml(concat("topology: ", variant.section()), "plan"));
  return read_topology(root.section("topology"), world, std::nullopt, options.own.topologies);
}

/// The model with so large buckets that it has a few.
StepModel with_large_buckets(StepModel model) {
  if (std::ssize(model.bucket_bytes) <= kMostRareBuckets) return model;
  const double bytes = std::accumulate(model.bucket_bytes.begin(), model.bucket_bytes.end(), 0.0);
  model.bucket_bytes = split_into_buckets(bytes, bytes / kMostRareBuckets, kMostRareBuckets);
  return model;
}

/// What the ranks of a row exchange.
struct Exchanges {
  std::string name;
  AlgorithmChoice choice;
  const Codec* codec = nullptr;
  /// Null: no topology.
  const Place* place = nullptr;
  /// Of a rare way, the steps between two averages; 0: the algorithm's own period counts.
  std::int64_t every = 0;
};

/// Whether messages lose less than those of int8, which lose nothing that we can measure.
bool is_fine(const Codec& codec) {
  constexpr std::int64_t kNumel = 1 << 16;
  return codec.summand_bytes(kNumel) >= 2 * kNumel;
}

class RowMaker {
 public:
  explicit RowMaker(const PlanOptions& options)
      : options_(options),
        large_(with_large_buckets(options.model)),
        optimizer_(options.optimizer ? options.optimizer : make_optimizer("adamw")),
        local_s_(predict_local(options.model).step_s) {}

  std::vector<PlanRow> rows() {
    if (options_.algorithms.empty()) {
      for (const Way& way : ways("")) add_way(way);
      if (rows_.empty()) add_usual();
    }
    for (const AlgorithmChoice& choice : options_.algorithms) {
      const std::size_t before = rows_.size();
      if (choice.given().empty()) {
        for (const Way& way : ways(choice.name())) add_way(way);
      }
      // An algorithm that is none of the ways, or a reason why its ways cannot run.
      if (rows_.size() == before) add_choice(choice);
    }
    return std::move(rows_);
  }

 private:
  /// The ways of an algorithm, or of all, under the codec that is asked for.
  [[nodiscard]] std::vector<Way> ways(std::string_view algorithm) const {
    const std::string_view wanted = options_.codec != nullptr ? options_.codec->name() : "fp32";
    std::vector<Way> plain;
    std::vector<Way> found;
    for (const Way& way : way_table()) {
      if (!algorithm.empty() && way.algorithm != algorithm) continue;
      const bool is_any = options_.codec == nullptr && !options_.is_plain;
      if (is_any || way.codec == wanted) found.push_back(way);
      if (way.codec == "fp32") plain.push_back(way);
    }
    if (!found.empty() || options_.codec == nullptr || !is_fine(*options_.codec)) return found;
    for (Way& way : plain) way.codec = wanted;
    return plain;
  }

  [[nodiscard]] const Codec* codec_of(const Way& way) const {
    return options_.codec != nullptr ? options_.codec : find_codec(way.codec);
  }

  /// The topologies that fit the world; made when an algorithm needs them.
  const std::vector<Place>& places() {
    if (!places_.empty()) return places_;
    for (Variant& variant : variants_for(options_)) {
      auto topology = topology_of(variant, options_);
      auto rounds = rounds_to_target(*topology, options_.model.world.size);
      places_.push_back(
          {.variant = std::move(variant), .topology = std::move(topology), .rounds = rounds});
    }
    return places_;
  }

  const Place* pair_place() {
    const auto found = std::ranges::find_if(places(), [](const Place& place) {
      return place.variant.name == kPairTopology && place.variant.option.empty();
    });
    return found != places().end() ? &*found : nullptr;
  }

  [[nodiscard]] std::string why_not(const Exchanges& exchanges) const {
    const AlgorithmEntry& entry = exchanges.choice.entry();
    if (options_.on_gpu && entry.processors_only) {
      return concat("the algorithm ", entry.name, " works on processors only");
    }
    if (options_.on_gpu && exchanges.codec != nullptr && !entry.codes_on_host) {
      return concat("on GPUs the algorithm ", entry.name, " sends no encoded blocks");
    }
    return exchanges.choice.why_not(
        {.topology = exchanges.place != nullptr ? exchanges.place->topology.get() : nullptr,
         .codec = exchanges.codec,
         .optimizer = optimizer_.get()});
  }

  void add_way(const Way& way) {
    if (way.is_rare()) return add_rare(way);
    const Exchanges exchanges{.name = std::string(way.name),
                              .choice = AlgorithmChoice(std::string(way.algorithm)),
                              .codec = codec_of(way)};
    if (!exchanges.choice.needs_topology()) {
      if (!why_not(exchanges).empty()) return;
      keep(exchanges, schedule_of(exchanges, options_.model), way.gap(1));
      return;
    }
    add_on_places(exchanges, &way);
  }

  /// A period that add_rare() has tried.
  struct Tried {
    Exchanges exchanges;
    ExchangeSchedule schedule;
    PlanRow row;
  };

  /// The row of the most frequent averages within the budget; if there are none, of the rarest.
  void add_rare(const Way& way) {
    std::optional<Tried> best;
    for (std::int64_t every = way.least_every; every <= kMostEvery; every *= 2) {
      // That is the same way without travelling.
      if (way.travels && way.late(every) == 1) continue;
      std::string section = concat(way.options, ", every: ", every);
      if (way.travels) section += concat(", late: ", way.late(every));
      Exchanges exchanges{
          .name = std::string(way.name),
          .choice = AlgorithmChoice(std::string(way.algorithm), Options::parse(section)),
          .codec = codec_of(way),
          .every = every};
      if (exchanges.choice.needs_topology()) exchanges.place = pair_place();
      if (!why_not(exchanges).empty() || follows_too_much(exchanges)) break;
      ExchangeSchedule schedule = schedule_of(exchanges, large_);
      PlanRow row = row_of(exchanges, schedule, large_);
      row.expected_gap = way.gap(every);
      best = {std::move(exchanges), std::move(schedule), std::move(row)};
      if (best->row.fits) break;
    }
    if (!best) return;
    best->row.exchange_s = exchange_s(best->exchanges, best->schedule, large_);
    rows_.push_back(std::move(best->row));
  }

  [[nodiscard]] bool follows_too_much(const Exchanges& exchanges) const {
    const StepModel model = model_of(exchanges, large_, exchanges.every);
    return (model.num_steps + model.num_warmup) * model.world.size *
               std::ssize(model.bucket_bytes) >
           kMostFollowed;
  }

  /// Gossip and all-reduce under a codec that no way has.
  void add_usual() {
    for (const char* const name : {"allreduce", "gossip"}) {
      const AlgorithmChoice choice(name);
      const bool takes = options_.codec == nullptr || choice.takes(*options_.codec);
      if (takes && why_not({.name = name, .choice = choice, .codec = options_.codec}).empty())
        add_choice(choice);
    }
    if (!rows_.empty()) return;
    throw ConfigError(concat("--codec ", options_.codec->name(),
                             " goes with no way that a plan knows; name an algorithm that takes "
                             "it, as --algorithm '{name: outer, kind: diloco, momentum: 0, lr: 1}'",
                             options_.on_gpu ? ", or leave --device out" : ""));
  }

  /// The rows of one algorithm on every topology that suits it, as the user has written it.
  void add_choice(const AlgorithmChoice& choice) {
    const Exchanges exchanges{.name = choice.given().empty()
                                          ? choice.name()
                                          : concat(choice.name(), " {", choice.given(), "}"),
                              .choice = choice,
                              .codec = options_.codec};
    if (choice.needs_topology()) {
      const std::size_t before = rows_.size();
      const std::string reason = add_on_places(exchanges, nullptr);
      if (rows_.size() > before) return;
      throw ConfigError(concat("--algorithm ", choice.text(), " runs on no topology that fits ",
                               options_.model.world.size, " ranks: ", reason));
    }
    const std::string why = why_not(exchanges);
    if (!why.empty()) throw ConfigError(concat("--algorithm ", choice.text(), ": ", why));
    keep(exchanges, schedule_of(exchanges, options_.model), std::nullopt);
  }

  /// A row for every topology that suits the algorithm. Returns why the last one does not. `way`
  /// may be null: the algorithm is none of the ways.
  std::string add_on_places(Exchanges exchanges, const Way* way) {
    std::string reason = "no topology fits";
    // By the size of a node.
    std::map<int, ExchangeSchedule> schedules;
    for (const Place& place : places()) {
      exchanges.place = &place;
      const bool is_measured =
          way != nullptr && is_measured_for_gossip(place.variant.name, place.rounds);
      // Of a plan of all ways, float32 alone has a row for every topology.
      const bool is_wanted = options_.codec != nullptr || !options_.algorithms.empty();
      if (exchanges.codec != nullptr && !is_measured && !is_wanted) continue;
      const std::string why = why_not(exchanges);
      if (!why.empty()) {
        reason = why;
        continue;
      }
      const int node_size = node_size_of(exchanges);
      auto schedule = schedules.find(node_size);
      if (schedule == schedules.end()) {
        schedule = schedules.emplace(node_size, schedule_of(exchanges, options_.model)).first;
      }
      keep(exchanges, schedule->second, is_measured ? std::optional(way->gap(1)) : std::nullopt);
    }
    return reason;
  }

  static int node_size_of(const Exchanges& exchanges) {
    const bool has_nodes =
        exchanges.place != nullptr && exchanges.choice.topologies() == TopologyKind::kNodes;
    return has_nodes ? exchanges.place->topology->round(0).node_size : 1;
  }

  [[nodiscard]] ExchangeSchedule schedule_of(const Exchanges& exchanges,
                                             const StepModel& model) const {
    std::vector<std::int64_t> numel;
    for (const double bytes : model.bucket_bytes) {
      numel.push_back(static_cast<std::int64_t>(bytes / 4.0));
    }
    return ExchangeSchedule({.algorithm = exchanges.choice,
                             .optimizer = *optimizer_,
                             .world_size = model.world.size,
                             .node_size = node_size_of(exchanges),
                             .codec = exchanges.codec,
                             .bucket_numel = std::move(numel)});
  }

  /// The model with the steps that show the exchanges: whole periods of the algorithm, and of the
  /// topology too if there are not too many steps.
  [[nodiscard]] static StepModel model_of(const Exchanges& exchanges, StepModel model,
                                          std::int64_t period) {
    const Place* const place = exchanges.place;
    const std::int64_t rounds = place != nullptr ? place->topology->period().value_or(1) : 1;
    model.num_steps = num_steps(model, rounds);
    if (place != nullptr && place->variant.whole_periods) {
      model.num_steps = std::max(model.num_steps, rounds);
    }
    const std::int64_t both = exchanges.every > 0 ? rounds * period : std::lcm(rounds, period);
    const bool is_short = exchanges.every > 0 || both <= kMostCommonSteps * model.num_steps;
    const std::int64_t steps = is_short ? both : period;
    model.num_steps = (model.num_steps + steps - 1) / steps * steps;
    // An average of the last period is waited for in this one.
    model.num_warmup = std::max({model.num_warmup, kLeastWarmup, period});
    return model;
  }

  /// Without `expected_gap` and `exchange_s`.
  [[nodiscard]] PlanRow row_of(const Exchanges& exchanges, const ExchangeSchedule& schedule,
                               const StepModel& buckets) const {
    const Place* const place = exchanges.place;
    const StepModel model = model_of(exchanges, buckets, schedule.period());
    // Stragglers draw other delays in other numbers of steps.
    const double local_s = model.straggler_cv > 0.0 ? predict_local(model).step_s : local_s_;
    PlanRow row{.exchange = exchanges.name,
                .topology = place != nullptr ? place->variant.label() : "",
                .codec = exchanges.codec != nullptr ? std::string(exchanges.codec->name()) : "fp32",
                .every = schedule.period(),
                .late = latest(schedule),
                .step = predict(exchanges, schedule, model),
                .yaml = yaml_of(exchanges)};
    row.efficiency = local_s / row.step.step_s;
    row.fits = row.step.step_s <= (1.0 + options_.budget) * local_s;
    row.allowed_s = local_s_ * static_cast<double>(row.late);
    if (exchanges.choice.entry().equal_models == EqualModels::kAfterEveryStep) {
      row.rounds = RoundCount{.rounds = 1};
    } else if (place != nullptr && exchanges.codec == nullptr && schedule.only_mixes()) {
      row.rounds = place->rounds;
    }
    return row;
  }

  /// Without anything else, the steps of a period take as long as an exchange, in seconds.
  [[nodiscard]] static double exchange_s(const Exchanges& exchanges,
                                         const ExchangeSchedule& schedule,
                                         const StepModel& buckets) {
    StepModel model = model_of(exchanges, buckets, schedule.period());
    model.compute_s = 0.0;
    model.links.update_bytes_per_s = 0.0;
    return static_cast<double>(schedule.period()) * predict(exchanges, schedule, model).step_s;
  }

  [[nodiscard]] static StepPrediction predict(const Exchanges& exchanges,
                                              const ExchangeSchedule& schedule, StepModel model) {
    const Place* const place = exchanges.place;
    const Topology* const topology = place != nullptr ? place->topology.get() : nullptr;
    // All ranks wait for one another in each step, so without stragglers each period takes equally
    // long. A step of many ranks under a codec has thousands of transfers; few steps save seconds.
    if (schedule.waits_in_step() && topology == nullptr && model.straggler_cv == 0.0) {
      model.num_warmup = schedule.period();
      model.num_steps = schedule.period();
    }
    return predict_schedule(model, schedule, topology, exchanges.codec);
  }

  /// Adds the row of these exchanges, with all that it has.
  void keep(const Exchanges& exchanges, const ExchangeSchedule& schedule,
            std::optional<double> expected_gap) {
    PlanRow row = row_of(exchanges, schedule, options_.model);
    row.expected_gap = expected_gap;
    row.exchange_s = exchange_s(exchanges, schedule, options_.model);
    rows_.push_back(std::move(row));
  }

  /// The most steps that an exchange travels.
  static std::int64_t latest(const ExchangeSchedule& schedule) {
    std::int64_t late = 0;
    for (std::int64_t step = 0; step < schedule.period(); ++step) {
      for (const PlannedExchange& each : schedule.at(step, 0)) late = std::max(late, each.late);
    }
    return late;
  }

  [[nodiscard]] std::string yaml_of(const Exchanges& exchanges) const {
    const std::string& given = exchanges.choice.given();
    const std::string name = exchanges.choice.name();
    std::string text = given.empty() ? concat("algorithm: ", name, "\n")
                                     : concat("algorithm: {name: ", name, ", ", given, "}\n");
    std::vector<std::string> comm;
    if (exchanges.place != nullptr) {
      const Variant& variant = exchanges.place->variant;
      text += concat("topology: ", variant.section(), "\n");
      if (variant.local_size > 0) comm.push_back(concat("local_size: ", variant.local_size));
    }
    if (exchanges.codec != nullptr) comm.push_back(concat("codec: ", exchanges.codec->name()));
    if (!comm.empty()) text += concat("comm: {", join(comm, ", "), "}\n");
    const bool has_large =
        std::ssize(large_.bucket_bytes) < std::ssize(options_.model.bucket_bytes);
    if (exchanges.every > 0 && has_large) {
      constexpr double kMib = 1024.0 * 1024.0;
      const double size = std::ceil(large_.bucket_bytes.front() / kMib);
      text += concat("buckets: {size_mb: ", static_cast<std::int64_t>(size), "}\n");
    }
    return text;
  }

  const PlanOptions& options_;
  /// For rare exchanges.
  StepModel large_;
  std::shared_ptr<const Optimizer> optimizer_;
  double local_s_ = 0.0;
  std::vector<Place> places_;
  std::vector<PlanRow> rows_;
};

}  // namespace

std::vector<double> planned_buckets(double model_bytes, double bucket_bytes, int world_size) {
  const std::int64_t most = kRankBuckets / std::clamp(world_size, 1, kMostPlannedRanks);
  return split_into_buckets(model_bytes, bucket_bytes, std::min<std::int64_t>(most, 256));
}

std::vector<PlanRow> plan_rows(const PlanOptions& options) { return RowMaker(options).rows(); }

}  // namespace gossamer::apps
