#include "apps/lab/plan/plan_rows.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "apps/lab/plan/exchange_schedule.hpp"
#include "apps/lab/plan/places.hpp"
#include "apps/lab/plan/row_predictor.hpp"
#include "apps/lab/plan/ways.hpp"
#include "base/error.hpp"
#include "base/options.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

// The longest period of a way that may be rare, in steps.
constexpr std::int64_t kMostEvery = 1024;

/// Whether messages lose less than those of int8, which lose nothing that we can measure.
bool is_fine(const Codec& codec) {
  constexpr std::int64_t kNumel = 1 << 16;
  return codec.summand_bytes(kNumel) >= 2 * kNumel;
}

class RowMaker {
 public:
  explicit RowMaker(const PlanOptions& options) : options_(options), predictor_(options) {}

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
    if (places_.empty()) places_ = places_for(options_);
    return places_;
  }

  [[nodiscard]] std::string why_not(const Exchanges& exchanges) const {
    return exchanges.choice.why_not(
        {.topology = exchanges.place != nullptr ? exchanges.place->topology.get() : nullptr,
         .codec = exchanges.codec,
         .optimizer = &predictor_.optimizer(),
         .on_gpu = options_.on_gpu});
  }

  void add_way(const Way& way) {
    if (way.is_rare()) return add_rare(way);
    const Exchanges exchanges{.name = std::string(way.name),
                              .choice = AlgorithmChoice(std::string(way.algorithm),
                                                        Options::parse(std::string(way.options))),
                              .codec = codec_of(way),
                              .takes_recipe = way.takes_recipe};
    if (!exchanges.choice.needs_topology()) {
      if (!why_not(exchanges).empty()) return;
      keep(exchanges, predictor_.schedule_of(exchanges), way.gap(1));
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
      if (exchanges.choice.needs_topology()) exchanges.place = pair_place(places());
      if (!why_not(exchanges).empty() || predictor_.follows_too_much(exchanges)) break;
      ExchangeSchedule schedule = predictor_.schedule_of(exchanges);
      PlanRow row = predictor_.row_of(exchanges, schedule);
      row.expected_gap = way.gap(every);
      best = {std::move(exchanges), std::move(schedule), std::move(row)};
      if (best->row.fits) break;
    }
    if (!best) return;
    best->row.exchange_s = predictor_.exchange_s(best->exchanges, best->schedule);
    rows_.push_back(std::move(best->row));
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
    keep(exchanges, predictor_.schedule_of(exchanges), std::nullopt);
  }

  /// A row for every topology that suits the algorithm. Returns why the last one does not. `way`
  /// may be null: the algorithm is none of the ways.
  std::string add_on_places(Exchanges exchanges, const Way* way) {
    std::string reason = "no topology fits";
    // The schedules by the size of a node.
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
      const int node_size = RowPredictor::node_size_of(exchanges);
      auto schedule = schedules.find(node_size);
      if (schedule == schedules.end()) {
        schedule = schedules.emplace(node_size, predictor_.schedule_of(exchanges)).first;
      }
      keep(exchanges, schedule->second, is_measured ? std::optional(way->gap(1)) : std::nullopt);
    }
    return reason;
  }

  /// Adds the row of these exchanges, with all that it has.
  void keep(const Exchanges& exchanges, const ExchangeSchedule& schedule,
            std::optional<double> expected_gap) {
    PlanRow row = predictor_.row_of(exchanges, schedule);
    row.expected_gap = expected_gap;
    row.exchange_s = predictor_.exchange_s(exchanges, schedule);
    rows_.push_back(std::move(row));
  }

  const PlanOptions& options_;
  RowPredictor predictor_;
  std::vector<Place> places_;
  std::vector<PlanRow> rows_;
};

}  // namespace

std::vector<PlanRow> plan_rows(const PlanOptions& options) { return RowMaker(options).rows(); }

}  // namespace gossamer::apps
