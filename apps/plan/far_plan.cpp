#include "apps/plan/far_plan.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "apps/plan/exchange_schedule.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

/// That of gossip, and of sums over all ranks in every step, plain and under topk: 0.056 to 0.067.
constexpr double kEveryStepGap = 0.063;

/// What an average adds that travels for a quarter of its period: 0.04 to 0.10 in pairs and of all,
/// every 10 and 40 steps. Under topk we have measured every 2 steps alone, late by 2: 0.07.
constexpr double kTravelGap = 0.07;

/// Of a rank that trains alone. We expect exchanges so rare that they reach it to help nobody.
constexpr double kAloneGap = 0.518;

/// The loss above that of all-reduce at equal steps, with three periods: docs/far_apart.md.
struct MeasuredGaps {
  /// Of an exchange in every step.
  double first = 0.0;
  double every = 0.0;
  double gap = 0.0;
  double rarer = 0.0;
  double rarer_gap = 0.0;

  /// Between the periods, and beyond them, gaps grow with the logarithm of the period.
  [[nodiscard]] double at(std::int64_t period) const {
    if (period == 1) return first;
    const auto steps = static_cast<double>(period);
    if (steps < every) return first + (gap - first) * std::log(steps) / std::log(every);
    return gap + (rarer_gap - gap) * std::log(steps / every) / std::log(rarer / every);
  }
};

/// A way to exchange.
struct Way {
  std::string_view name;
  std::string_view algorithm;
  /// Its options, without `every` and `late`.
  std::string_view options;
  bool has_topology = false;
  std::string_view codec;
  MeasuredGaps gaps = {};
  /// An average travels for a quarter of the period.
  bool travels = false;
  /// The shortest period of a way that may be rare.
  std::int64_t least_every = 2;

  /// False: an exchange in every step.
  [[nodiscard]] bool is_rare() const { return algorithm == "outer"; }
  [[nodiscard]] std::int64_t late(std::int64_t every) const {
    if (travels) return std::max<std::int64_t>(1, every / 4);
    return algorithm == "allreduce" ? 0 : 1;
  }
};

constexpr std::string_view kPairs = "kind: noloco";
constexpr std::string_view kAll = "kind: diloco, momentum: 0.5, lr: 0.7";
// Moves that lack most elements go without momentum.
constexpr std::string_view kSparse = "kind: diloco, momentum: 0, lr: 1";
// Codecs have lost nothing that seeds do not: int8 in models, int8 and int4 in gradients.
constexpr MeasuredGaps kEveryStepGaps{kEveryStepGap};
constexpr MeasuredGaps kPairGaps{kEveryStepGap, 10, 0.238, 40, 0.450};
constexpr MeasuredGaps kAllGaps{kEveryStepGap, 10, 0.189, 40, 0.366};
constexpr MeasuredGaps kSparseGaps{kEveryStepGap, 2, 0.077, 10, 0.380};
constexpr std::array kWays = {
    Way{"all-reduce", "allreduce", "", false, "fp32"},
    Way{"all-reduce", "allreduce", "", false, "int8"},
    Way{"all-reduce", "allreduce", "", false, "int4"},
    Way{"gossip", "gossip", "", true, "fp32", kEveryStepGaps},
    Way{"gossip", "gossip", "", true, "int8", kEveryStepGaps},
    Way{"outer in pairs", "outer", kPairs, true, "fp32", kPairGaps},
    Way{"outer in pairs", "outer", kPairs, true, "int8", kPairGaps},
    Way{"outer in pairs", "outer", kPairs, true, "int8", kPairGaps, true},
    Way{"outer of all", "outer", kAll, false, "fp32", kAllGaps},
    Way{"outer of all", "outer", kAll, false, "int8", kAllGaps},
    Way{"outer of all", "outer", kAll, false, "int8", kAllGaps, true},
    Way{"outer of all", "outer", kSparse, false, "topk", kSparseGaps, false, 1},
    Way{"outer of all", "outer", kSparse, false, "topk", kSparseGaps, true},
};

// Pairs for every number of ranks; after some rounds all have met.
constexpr std::string_view kTopology = "base-k";
// Every bucket of an average has its latencies.
constexpr int kMostFarBuckets = 4;
constexpr std::int64_t kMostEvery = 1024;
constexpr std::int64_t kLeastSteps = 48;
constexpr std::int64_t kLeastWarmup = 8;
// Ranks, buckets and steps that one prediction follows, at most.
constexpr std::int64_t kMostFollowed = 8'000'000;

/// The model with buckets so large that it has a few.
StepModel with_large_buckets(StepModel model) {
  if (std::ssize(model.bucket_bytes) <= kMostFarBuckets) return model;
  double bytes = 0.0;
  for (const double bucket : model.bucket_bytes) bytes += bucket;
  model.bucket_bytes = split_into_buckets(bytes, bytes / kMostFarBuckets, kMostFarBuckets);
  return model;
}

/// Predicts the steps of one way with one period.
class Predictor {
 public:
  explicit Predictor(const PlanOptions& options)
      : model_(options.model),
        large_(with_large_buckets(options.model)),
        budget_(options.budget),
        optimizer_(options.optimizer ? options.optimizer : make_optimizer("adamw")),
        local_s_(predict_local(options.model).step_s) {}

  [[nodiscard]] double local_s() const { return local_s_; }

  /// What a way sends, and the steps that show it.
  struct Exchanges {
    StepModel model;
    std::unique_ptr<Topology> topology;
    const Codec* codec;
    ExchangeSchedule schedule;

    [[nodiscard]] StepPrediction predict(const StepModel& steps) const {
      return predict_schedule(steps, schedule, topology.get(), codec);
    }
  };

  /// Nothing if the way does not suit the world, or the world is too large to follow such periods.
  [[nodiscard]] std::optional<Exchanges> exchanges_of(const Way& way, std::int64_t every) const {
    const AlgorithmChoice choice(std::string(way.algorithm),
                                 Options::parse(section_of(way, every)));
    std::unique_ptr<Topology> topology =
        way.has_topology ? make_topology(std::string(kTopology), model_.world) : nullptr;
    const Codec* const codec = find_codec(way.codec);
    if (!choice.why_not({.topology = topology.get(), .codec = codec, .optimizer = optimizer_.get()})
             .empty()) {
      return std::nullopt;
    }
    StepModel model = way.is_rare() ? large_ : model_;
    // Whole periods of the averages, in which all rounds of the topology come.
    const std::int64_t rounds = topology ? topology->period().value_or(1) : 1;
    model.num_steps = every * std::max(rounds, (kLeastSteps + every - 1) / every);
    model.num_warmup = std::max(kLeastWarmup, every);
    const std::int64_t followed =
        (model.num_steps + model.num_warmup) * model.world.size * std::ssize(model.bucket_bytes);
    if (way.is_rare() && followed > kMostFollowed) return std::nullopt;

    std::vector<std::int64_t> numel;
    for (const double bytes : model.bucket_bytes) {
      numel.push_back(static_cast<std::int64_t>(bytes / 4.0));
    }
    // No way has options with longer periods.
    ExchangeSchedule schedule({.algorithm = choice,
                               .optimizer = *optimizer_,
                               .world_size = model_.world.size,
                               .codec = codec,
                               .bucket_numel = std::move(numel),
                               .longest_period = every});
    return Exchanges{std::move(model), std::move(topology), codec, std::move(schedule)};
  }

  /// All of a row but FarRow::exchange_s, which takes as long again.
  [[nodiscard]] FarRow row(const Way& way, std::int64_t every, const Exchanges& exchanges) const {
    // Stragglers draw other delays in other numbers of steps.
    const StepModel& model = exchanges.model;
    const double local_s = model.straggler_cv > 0.0 ? predict_local(model).step_s : local_s_;
    FarRow row{.way = std::string(way.name),
               .codec = std::string(way.codec),
               .every = every,
               .late = way.late(every),
               .step = exchanges.predict(model),
               .expected_gap = way.gaps.at(every) + (way.travels ? kTravelGap : 0.0)};
    row.helps = row.expected_gap < kAloneGap;
    row.efficiency = local_s / row.step.step_s;
    row.fits = row.step.step_s <= (1.0 + budget_) * local_s;
    row.allowed_s = local_s_ * static_cast<double>(row.late);
    row.yaml = yaml_of(way, section_of(way, every));
    return row;
  }

  /// Seconds of one exchange. Without anything else, the steps of a period take as long.
  static double exchange_s(std::int64_t every, const Exchanges& exchanges) {
    StepModel model = exchanges.model;
    model.compute_s = 0.0;
    model.links.update_bytes_per_s = 0.0;
    return static_cast<double>(every) * exchanges.predict(model).step_s;
  }

 private:
  static std::string section_of(const Way& way, std::int64_t every) {
    if (!way.is_rare()) return "";
    return concat(way.options, ", every: ", every,
                  way.travels ? concat(", late: ", way.late(every)) : "");
  }
  [[nodiscard]] std::string yaml_of(const Way& way, const std::string& section) const {
    std::string text = section.empty()
                           ? concat("algorithm: ", way.algorithm, "\n")
                           : concat("algorithm: {name: ", way.algorithm, ", ", section, "}\n");
    if (way.has_topology) text += concat("topology: {name: ", kTopology, "}\n");
    if (way.codec != "fp32") text += concat("comm: {codec: ", way.codec, "}\n");
    if (way.is_rare() && std::ssize(large_.bucket_bytes) < std::ssize(model_.bucket_bytes)) {
      constexpr double kMib = 1024.0 * 1024.0;
      const double size = std::ceil(large_.bucket_bytes.front() / kMib);
      text += concat("buckets: {size_mb: ", static_cast<std::int64_t>(size), "}\n");
    }
    return text;
  }

  StepModel model_;
  /// For rare exchanges.
  StepModel large_;
  double budget_;
  std::shared_ptr<const Optimizer> optimizer_;
  double local_s_ = 0.0;
};

/// The most frequent exchanges of a way that are within the budget; if there are none, the rarest.
std::optional<FarRow> best_row(const Predictor& predictor, const Way& way) {
  std::optional<FarRow> best;
  std::optional<Predictor::Exchanges> exchanges;
  const std::int64_t most = way.is_rare() ? kMostEvery : 1;
  for (std::int64_t every = way.is_rare() ? way.least_every : 1; every <= most; every *= 2) {
    // That is the same way without travelling.
    if (way.travels && way.late(every) == 1) continue;
    auto found = predictor.exchanges_of(way, every);
    if (!found) break;
    best = predictor.row(way, every, *found);
    exchanges = std::move(found);
    if (best->fits) break;
  }
  if (best) best->exchange_s = Predictor::exchange_s(best->every, *exchanges);
  return best;
}

std::string with_digits(double value, int digits) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string seconds(double value) {
  return value < 1.0 ? concat(with_digits(1e3 * value, 1), " ms")
                     : concat(with_digits(value, 1), " s");
}

std::string recommend(const FarPlan& plan, double budget) {
  const FarRow& best = plan.rows.front();
  const std::string period =
      best.every == 1 ? "in every step" : concat("every ", best.every, " steps");
  const std::string late = best.late > 1 ? concat(", late ", best.late) : "";
  const std::string head = concat("Take ", best.way, " with ", best.codec, " ", period, late, ": ");
  const std::string percent = concat(shortest(100.0 * budget), " %");
  if (!best.fits) {
    std::int64_t longest = 1;
    for (const FarRow& row : plan.rows) longest = std::max(longest, row.every);
    return concat(head, "with up to ", longest,
                  " steps between two exchanges no steps take at most ", percent,
                  " longer than without communication, and these are the shortest, ",
                  seconds(best.step.step_s), ".");
  }
  const std::string text = concat(
      head, "of the ways whose steps take at most ", percent,
      " longer than without communication, we expect it to lose least",
      best.helps ? concat(", ", with_digits(best.expected_gap, 2), " in the loss at equal steps")
                 : "",
      "; an exchange takes ", seconds(best.exchange_s),
      best.late > 0 ? concat(", and may take ", seconds(best.allowed_s), " before ranks wait.")
                    : ".");
  if (best.helps) return text;
  return concat(text,
                " But we expect exchanges so rare to be no better than none: our runs of 1600 "
                "steps, with averages every 1 to 40, say so if they are continued. The links are "
                "too slow for this model, unless the run is much longer than ours.");
}

}  // namespace

FarPlan make_far_plan(const PlanOptions& options) {
  if (options.model.world.size < 2) {
    throw ConfigError("command line", "--world-size",
                      "one rank has no far peers, allowed with --far: 2 or more");
  }
  const Predictor predictor(options);
  FarPlan plan{.local_s = predictor.local_s()};
  for (const Way& way : kWays) {
    if (auto row = best_row(predictor, way)) plan.rows.push_back(std::move(*row));
  }
  std::ranges::stable_sort(plan.rows, {}, [](const FarRow& row) {
    // Our measurements tell no smaller differences.
    const double gap = std::round(100.0 * row.expected_gap);
    return row.fits ? std::tuple(0, row.helps ? 0 : 1, gap, row.step.step_s)
                    : std::tuple(1, 0, row.step.step_s, gap);
  });
  plan.recommendation = recommend(plan, options.budget);
  return plan;
}

nlohmann::ordered_json to_json(const FarPlan& plan) {
  nlohmann::ordered_json json;
  json["local_ms"] = 1e3 * plan.local_s;
  json["rows"] = nlohmann::ordered_json::array();
  for (const FarRow& row : plan.rows) {
    json["rows"].push_back({{"way", row.way},
                            {"codec", row.codec},
                            {"every", row.every},
                            {"late", row.late},
                            {"step_ms", 1e3 * row.step.step_s},
                            {"efficiency", row.efficiency},
                            {"bytes_sent", row.step.bytes_sent},
                            {"bytes_across", row.step.bytes_across},
                            {"exchange_s", row.exchange_s},
                            {"allowed_s", row.allowed_s},
                            {"fits", row.fits},
                            {"expected_gap", row.expected_gap},
                            {"helps", row.helps},
                            {"yaml", row.yaml}});
  }
  json["recommendation"] = plan.recommendation;
  json["yaml"] = plan.rows.front().yaml;
  return json;
}

std::string to_text(const FarPlan& plan) {
  constexpr std::size_t kNumCells = 10;
  const auto line = [](const std::array<std::string, kNumCells>& cells) {
    constexpr std::array<std::size_t, kNumCells> kWidths = {14, 7, 7, 6, 11, 12, 13, 15, 12, 9};
    std::string text = cells[0];
    text.resize(kWidths[0], ' ');
    for (std::size_t i = 1; i < cells.size(); ++i) {
      text += std::string(kWidths[i] - std::min(kWidths[i], cells[i].size()), ' ') + cells[i];
    }
    return text + "\n";
  };
  std::string text = line({"exchange", "codec", "every", "late", "a step", "efficiency",
                           "MB per step", "exchange takes", "may take", "loss"});
  for (const FarRow& row : plan.rows) {
    text += line({row.way, row.codec, std::to_string(row.every), std::to_string(row.late),
                  seconds(row.step.step_s), concat(with_digits(100.0 * row.efficiency, 1), " %"),
                  with_digits(1e-6 * row.step.bytes_sent, 2), seconds(row.exchange_s),
                  seconds(row.allowed_s),
                  !row.fits    ? "-"
                  : !row.helps ? "as alone"
                               : concat("+", with_digits(row.expected_gap, 2))});
  }
  return concat(
      text, "every: steps between two exchanges, the fewest within the budget, else the most ",
      "that were tried\nlate: steps that an exchange may travel before ranks wait\n",
      "MB per step: megabytes that a rank sends in a step, mean over ranks and steps\n",
      "loss: expected above that of all-reduce at equal steps, from runs of a small model ",
      "with averages every 1 to 40 steps\n",
      "      as alone: so rare that we expect no more than from ranks without exchange; -: over ",
      "the budget\n",
      "On GPUs only outer takes int8, int4 and topk. Without communication a step takes ",
      seconds(plan.local_s), ".\n\n", plan.recommendation, "\n\n", plan.rows.front().yaml);
}

}  // namespace gossamer::apps
