#include "apps/lab/bench/step_bench.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "apps/lab/bench/bench_engine.hpp"
#include "apps/lab/bench/reference_task.hpp"
#include "apps/lab/bench/statistics.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "base/yaml.hpp"

namespace gossamer::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kCompute = "compute";

double peak_rss_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

double rounded(double value, int digits) {
  const double scale = std::pow(10.0, digits);
  return std::round(value * scale) / scale;
}

double mean_of(const std::vector<Json>& ranks, const char* section, const std::string& key) {
  double sum = 0.0;
  for (const Json& rank : ranks) sum += rank.at(section).at(key).get<double>();
  return sum / static_cast<double>(ranks.size());
}

/// The mean over ranks, element by element.
std::vector<double> mean_list(const std::vector<Json>& ranks, const char* key) {
  std::vector<double> mean(ranks.front().at(key).size());
  for (const Json& rank : ranks) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += rank.at(key).at(i).get<double>() / static_cast<double>(ranks.size());
    }
  }
  return mean;
}

class StepBench {
 public:
  StepBench(Communicator& communicator, const World& world, const StepBenchOptions& options)
      : communicator_(communicator),
        world_(world),
        options_(options),
        task_(options.model, options.seed),
        batch_size_(options.batch_size > 0 ? options.batch_size : task_.default_batch_size()),
        pool_(task_.make_batches(world.rank, batch_size_)) {
    if (options.slow_rank >= world.size) {
      throw ConfigError(concat("--slow-rank ", options.slow_rank, ": there are ", world.size,
                               " ranks, allowed: 0 to ", world.size - 1));
    }
    const Codec* const codec = find_codec(options.codec, options.own.codecs);
    const auto encodes = [codec](const StepEngine& engine) { return engine.takes(codec); };
    if (codec != nullptr && std::ranges::none_of(options.engines, encodes)) {
      throw ConfigError(concat("--codec ", options.codec, ": no engine sends such blocks"));
    }
    for (const StepEngine& engine : options.engines) {
      const bool records = engines_.empty() && !options.timeline.empty();
      engines_.push_back(
          std::make_unique<BenchEngine>(engine, task_, communicator, world, options, records));
    }
  }

  std::vector<std::string> run() {
    const bool several = engines_.size() > 1;
    const std::int64_t rounds = several ? options_.rounds : 1;
    const std::int64_t block = std::max<std::int64_t>(2, options_.steps / rounds);
    for (const auto& engine : engines_) go(*engine, num_warmup(options_), false);
    for (std::int64_t round = 0; round < rounds; ++round) {
      for (const auto& engine : engines_) go(*engine, block + 1, true);
      // Reverse the order in every turn, so that no engine is always first.
      std::ranges::reverse(engines_);
    }
    if (rounds % 2 == 1) std::ranges::reverse(engines_);
    for (const auto& engine : engines_) engine->finish_timeline();
    std::vector<std::string> lines;
    std::vector<std::vector<double>> turns;
    for (const auto& engine : engines_) {
      const std::vector<Json> ranks = gather(*engine);
      lines.push_back(describe(*engine, ranks).dump());
      turns.push_back(mean_list(ranks, "turns"));
    }
    if (several) lines.push_back(ratios(turns, rounds, block).dump());
    return lines;
  }

 private:
  void go(BenchEngine& engine, std::int64_t count, bool keep) {
    std::vector<Row> rows;
    for (std::int64_t k = 0; k < count || engine.tries_buckets(); ++k) {
      Row row = engine.step(pool_);
      // The first step of a turn finds no exchange in flight, so it does not count.
      if (keep && k > 0) rows.push_back(std::move(row));
    }
    engine.drain();
    communicator_.barrier();
    if (keep) engine.keep_turn(rows);
  }

  /// Collective: the measurements of all ranks, on every rank.
  std::vector<Json> gather(const BenchEngine& engine) {
    Json mine;
    for (const auto& [name, unused] : engine.rows().front()) {
      mine["median_ms"][name] = 1e3 * median(column(engine.rows(), name));
    }
    const std::vector<double> totals = column(engine.rows(), "total");
    mine["total_ms"] = {{"mean", 1e3 * mean(totals)},
                        {"p10", 1e3 * quantile(totals, 0.1)},
                        {"p90", 1e3 * quantile(totals, 0.9)}};
    mine["rss"] = peak_rss_mib();
    mine["turns"] = engine.turns();
    mine["losses"] = Json::array();
    for (const double loss : engine.losses()) mine["losses"].push_back(loss);
    std::vector<Json> ranks;
    for (const std::string& text : communicator_.all_gather(mine.dump())) {
      ranks.push_back(Json::parse(text));
    }
    return ranks;
  }

  Json describe(const BenchEngine& engine, const std::vector<Json>& ranks) {
    const double step_ms = mean_of(ranks, "median_ms", "total");
    std::vector<double> losses = mean_list(ranks, "losses");
    for (double& loss : losses) loss = rounded(loss, 6);
    const bool computes = !engine.engine().algorithm();
    const Codec* const codec = find_codec(options_.codec, options_.own.codecs);
    const double samples = static_cast<double>(world_.size) * static_cast<double>(batch_size_);
    Json json = {
        {"engine", engine.engine().text()},
        {"model", options_.model},
        {"params", engine.num_parameters()},
        {"world", world_.size},
        {"topology", engine.engine().needs_topology() ? Json(options_.topology) : Json()},
        {"codec", engine.engine().takes(codec) ? Json(options_.codec) : Json()},
        {"slow_rank", options_.slow_rank < 0 ? Json() : Json(options_.slow_rank)},
        {"slowdown", options_.slow_rank < 0 ? Json() : Json(options_.slowdown)},
        {"optim", computes ? Json() : Json(options_.optimizer)},
        {"optim_impl", "gossamer"},
        {"accum_iter", accumulates(options_.optimizer) ? Json(options_.accum_iter) : Json()},
        {"batch_size", batch_size_},
        {"bucket_mb", options_.bucket_mb == 0.0 ? Json("auto") : Json(options_.bucket_mb)},
        {"threads", options_.threads},
        {"timed_steps", engine.rows().size()},
        {"step_ms", rounded(step_ms, 3)},
        {"mean_ms", rounded(mean_of(ranks, "total_ms", "mean"), 3)},
        {"p10_ms", rounded(mean_of(ranks, "total_ms", "p10"), 3)},
        {"p90_ms", rounded(mean_of(ranks, "total_ms", "p90"), 3)},
        {"samples_per_s", rounded(samples * 1e3 / step_ms, 1)}};
    if (options_.sleep_ms > 0.0) {
      // What all ranks get done while a fast rank sleeps once.
      double steps = 0.0;
      for (const Json& rank : ranks) {
        steps += options_.sleep_ms / rank.at("total_ms").at("mean").get<double>();
      }
      json["sleep_ms"] = options_.sleep_ms;
      json["steps_per_fast_step"] = rounded(steps, 3);
    }
    json["peak_rss_mb"] = Json::array();
    for (const Json& rank : ranks) {
      json["peak_rss_mb"].push_back(std::lround(rank.at("rss").get<double>()));
    }
    json["rss_shared"] = engines_.size() > 1;
    for (const auto& [name, unused] : ranks.front().at("median_ms").items()) {
      if (name == "total") continue;
      json["breakdown_ms"][name] = rounded(mean_of(ranks, "median_ms", name), 3);
    }
    json["buckets"] = computes ? Json() : Json(engine.num_buckets());
    json["loss_first"] = losses.front();
    json["loss_last"] = losses.back();
    if (options_.losses) json["losses"] = losses;
    if (!engine.timeline_text().empty()) json["timeline"] = engine.timeline_text();
    return json;
  }

  Json ratios(const std::vector<std::vector<double>>& turns, std::int64_t rounds,
              std::int64_t block) const {
    Json all = Json::object();
    for (std::size_t a = 0; a < engines_.size(); ++a) {
      for (std::size_t b = a + 1; b < engines_.size(); ++b) {
        std::vector<double> quotients;
        for (std::size_t t = 0; t < turns[a].size(); ++t) {
          quotients.push_back(turns[a][t] / turns[b][t]);
        }
        const auto [low, high] = median_interval(quotients);
        all[concat(engines_[a]->engine().text(), "/", engines_[b]->engine().text())] = {
            {"step_time_ratio", rounded(median(quotients), 4)},
            {"ci95", {rounded(low, 4), rounded(high, 4)}},
            {"min", rounded(*std::ranges::min_element(quotients), 4)},
            {"max", rounded(*std::ranges::max_element(quotients), 4)}};
      }
    }
    return {{"ratios", all},
            {"model", options_.model},
            {"world", world_.size},
            {"rounds", rounds},
            {"block", block}};
  }

  Communicator& communicator_;
  World world_;
  const StepBenchOptions& options_;
  ReferenceTask task_;
  std::int64_t batch_size_;
  std::vector<Batch> pool_;
  std::vector<std::unique_ptr<BenchEngine>> engines_;
};

}  // namespace

StepEngine::StepEngine(std::string_view text, const PlugIns& own) : text_(text) {
  const Options section =
      Options(parse_yaml(concat("engine: ", text), "--engine")).named_section("engine");
  std::vector<std::string> names = algorithm_names(own.algorithms);
  names.emplace_back(kCompute);
  const std::string name = section.read(kAlgorithmName, std::nullopt, names);
  if (name != kCompute) algorithm_.emplace(name, section, own.algorithms);
  section.reject_unknown();
}

std::vector<StepEngine> read_step_engines(std::string_view text, const PlugIns& own) {
  std::vector<StepEngine> engines;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at < text.size()) {
      if (text[at] == '{') ++depth;
      if (text[at] == '}') --depth;
      if (text[at] != ',' || depth > 0) continue;
    }
    engines.emplace_back(text.substr(begin, at - begin), own);
    begin = at + 1;
  }
  return engines;
}

std::vector<std::string> run_step_bench(Communicator& communicator, const World& world,
                                        const StepBenchOptions& options) {
  return StepBench(communicator, world, options).run();
}

}  // namespace gossamer::apps
