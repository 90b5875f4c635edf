#include "apps/lab/replay/recorded_case.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

using CaseJson = nlohmann::json;

// Elements. Blocks are rounded up to 128 bytes of float32.
constexpr std::int64_t kRounding = 32;

/// The object of case.json. Errors name the file and the key.
class CaseFile {
 public:
  explicit CaseFile(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_);
    if (!file) throw DataError(concat(path_, ": cannot be opened"));
    try {
      json_ = CaseJson::parse(file);
    } catch (const CaseJson::exception& error) {
      throw DataError(concat(path_, ": is not JSON: ", error.what()));
    }
    if (!json_.is_object()) throw DataError(concat(path_, ": is not a JSON object"));
  }

  [[noreturn]] void fail(std::string_view key, std::string_view what) const {
    throw DataError(concat(path_, ": ", key, ": ", what));
  }
  void require(bool holds, std::string_view key, std::string_view what) const {
    if (!holds) fail(key, what);
  }

  template <class T>
  [[nodiscard]] T get(const CaseJson& object, std::string_view key) const {
    if (!object.is_object() || !object.contains(key)) fail(key, "is missing");
    try {
      return object.at(key).get<T>();
    } catch (const CaseJson::exception&) {
      fail(key, "has the wrong type (docs/design/replay.md lists the keys)");
    }
  }
  template <class T>
  [[nodiscard]] T get(std::string_view key) const {
    return get<T>(json_, key);
  }
  template <class T>
  [[nodiscard]] T get_or(std::string_view key, T fallback) const {
    return has(key) ? get<T>(key) : fallback;
  }
  /// True if the key is given and not null.
  [[nodiscard]] bool has(std::string_view key) const {
    return json_.contains(key) && !json_.at(std::string(key)).is_null();
  }

  [[nodiscard]] std::int64_t count(std::string_view key, std::int64_t min) const {
    const auto value = get<std::int64_t>(key);
    require(value >= min, key, concat("is ", value, ", allowed: ", min, " or more"));
    return value;
  }

 private:
  std::string path_;
  CaseJson json_;
};

class RecordedTopology : public Topology {
 public:
  RecordedTopology(std::vector<Round> rounds, int world_size)
      : rounds_(std::move(rounds)), none_(complete_round({}, world_size)) {}
  [[nodiscard]] std::string name() const override { return "recorded"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return std::nullopt; }
  [[nodiscard]] Round round(std::int64_t k) const override {
    const auto place = static_cast<std::size_t>(k);
    return place < rounds_.size() ? rounds_[place] : none_;
  }

 private:
  std::vector<Round> rounds_;
  Round none_;
};

class RecordedSchedule : public Schedule {
 public:
  explicit RecordedSchedule(std::vector<double> lrs) : lrs_(std::move(lrs)) {}
  /// Callers that show the next learning rate also ask for the step after the last one.
  [[nodiscard]] double lr(std::int64_t completed_steps) const override {
    return lrs_[std::min(static_cast<std::size_t>(completed_steps), lrs_.size() - 1)];
  }

 private:
  std::vector<double> lrs_;
};

void read_parameters(const CaseFile& file, RecordedCase& result) {
  std::int64_t end = 0;
  for (const CaseJson& entry : file.get<std::vector<CaseJson>>("params")) {
    ParameterInfo info{.name = file.get<std::string>(entry, "name"),
                       .shape = file.get<std::vector<std::int64_t>>(entry, "shape"),
                       .weight_decay = file.get<double>(entry, "weight_decay")};
    for (const std::int64_t size : info.shape) file.require(size >= 0, "params", "negative shape");
    const auto offset = file.get<std::int64_t>(entry, "offset");
    file.require(offset >= end, "params", concat(info.name, " overlaps the parameter before it"));
    end = offset + info.numel();
    result.offsets.push_back(offset);
    result.parameters.push_back(std::move(info));
  }
  file.require(!result.parameters.empty(), "params", "is empty");
}

void check_order(const CaseFile& file, const RecordedCase& result) {
  std::vector<std::int64_t> sorted = result.order;
  std::ranges::sort(sorted);
  bool fits = sorted.size() == result.parameters.size();
  for (std::size_t i = 0; fits && i < sorted.size(); ++i) {
    fits = sorted[i] == static_cast<std::int64_t>(i);
  }
  file.require(fits, "order", "must hold the index of every parameter once");
  file.require(result.bucket_block_numel.size() == result.buckets.size(), "bucket_block_numel",
               "must have as many entries as buckets");
}

Round read_round(const CaseFile& file, const CaseJson& groups, int world_size, double factor) {
  std::vector<Edge> edges;
  for (const CaseJson& group : groups) {
    auto ranks = file.get<std::vector<int>>(group, "ranks");
    std::ranges::sort(ranks);
    // A record's adaptive factor a has the same effect as the weight 1 - a (1 - w).
    const double weight = 1.0 - factor * (1.0 - file.get<double>(group, "weight"));
    edges.push_back({ranks, ranks.size() == 1 ? 1.0 : weight});
  }
  try {
    Round round = complete_round(std::move(edges), world_size);
    check_round(round, world_size);
    return round;
  } catch (const std::logic_error& error) {
    file.fail("edges", error.what());
  }
}

std::shared_ptr<const Topology> read_topology(const CaseFile& file, const RecordedCase& result) {
  const auto factor = file.get_or<double>("adaptive_factor", 1.0);
  std::vector<Round> by_index;
  for (const CaseJson& groups : file.get<std::vector<CaseJson>>("edges")) {
    by_index.push_back(read_round(file, groups, result.world_size, factor));
  }
  const auto mix_edge = file.get<std::vector<CaseJson>>("mix_edge");
  file.require(std::ssize(mix_edge) == result.steps, "mix_edge", "must have one entry per step");
  file.require(mix_edge.front().is_null(), "mix_edge", "must begin with null");
  std::vector<Round> rounds;
  for (std::size_t step = 1; step < mix_edge.size(); ++step) {
    if (mix_edge[step].is_null()) {
      rounds.push_back(complete_round({}, result.world_size));
      continue;
    }
    const bool known = mix_edge[step].is_number_unsigned() &&
                       mix_edge[step].get<std::uint64_t>() < by_index.size();
    file.require(known, "mix_edge", "must hold indices into edges, or null");
    rounds.push_back(by_index[mix_edge[step].get<std::size_t>()]);
  }
  return std::make_shared<RecordedTopology>(std::move(rounds), result.world_size);
}

std::shared_ptr<const Schedule> read_schedule(const CaseFile& file, std::int64_t steps) {
  auto lrs = file.get<std::vector<double>>("lrs");
  file.require(std::ssize(lrs) == steps, "lrs", "must have one entry per step");
  return std::make_shared<RecordedSchedule>(std::move(lrs));
}

void read_optimizer(const CaseFile& file, RecordedCase& result) {
  auto options = file.get<CaseJson>("optim");
  file.require(options.is_object(), "optim", "is not an object");
  result.optimizer = file.get<std::string>(options, "type");
  // Each parameter has its own weight decay, so drop the optimizer's.
  for (const char* key : {"type", "weight_decay", "decay", "lr"}) options.erase(key);
  result.optimizer_options = options.dump();
}

NpyArray read_array(const std::string& folder, const char* name,
                    const std::vector<std::int64_t>& shape) {
  const std::string path = (std::filesystem::path(folder) / name).string();
  NpyArray array = read_npy(path);
  if (array.shape != shape) {
    throw DataError(concat(path, ": has the shape [", join(array.shape, ", "),
                           "], case.json asks for [", join(shape, ", "), "]"));
  }
  return array;
}

}  // namespace

RecordedCase read_recorded_case(const std::string& folder) {
  const CaseFile file((std::filesystem::path(folder) / "case.json").string());
  RecordedCase result;
  result.name = file.get_or<std::string>("name", std::filesystem::path(folder).stem().string());
  result.world_size = static_cast<int>(file.count("world_size", 1));
  result.local_world_size =
      static_cast<int>(file.get_or<std::int64_t>("local_world_size", result.world_size));
  file.require(result.local_world_size >= 1 && result.world_size % result.local_world_size == 0,
               "local_world_size", "must divide world_size");
  result.steps = file.count("steps", 1);
  result.micro_batches = file.has("micro_batches") ? file.count("micro_batches", 1) : 1;
  result.bucket_bytes = file.count("bucket_bytes", 1);
  result.clip_norm = file.get_or<double>("grad_clip_norm", 0.0);
  file.require(std::isfinite(result.clip_norm) && result.clip_norm >= 0.0, "grad_clip_norm",
               "must be 0 (no clipping) or more");
  if (file.has("distance_to_center_rank0")) {
    result.distance_to_center = file.get<double>("distance_to_center_rank0");
  }
  read_optimizer(file, result);
  read_parameters(file, result);
  result.order = file.get<std::vector<std::int64_t>>("order");
  result.buckets = file.get<std::vector<std::vector<std::int64_t>>>("buckets");
  result.bucket_block_numel = file.get<std::vector<std::int64_t>>("bucket_block_numel");
  check_order(file, result);
  result.topology = read_topology(file, result);
  result.schedule = read_schedule(file, result.steps);

  const auto total = file.count("total", 1);
  file.require(result.offsets.back() + result.parameters.back().numel() <= total, "total",
               "is less than the parameters take");
  const std::int64_t n = result.world_size;
  result.init = read_array(folder, "init.npy", {total});
  result.grads = read_array(folder, "grads.npy", {result.steps * result.micro_batches, n, total});
  result.expected = read_array(folder, "expected.npy", {result.steps, n, total});
  result.final_avg = read_array(folder, "final_avg.npy", {total});
  return result;
}

std::string compare_buckets(const RecordedCase& recorded, const BucketPlan& plan) {
  if (plan.buckets.size() != recorded.buckets.size()) {
    return concat("there are ", plan.buckets.size(), " buckets, ", recorded.buckets.size(),
                  " were recorded");
  }
  std::set<std::int64_t> taken;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    std::vector<std::int64_t> parameters;
    for (const BucketEntry& entry : plan.buckets[b].entries) parameters.push_back(entry.parameter);
    if (parameters != recorded.buckets[b]) {
      return concat("bucket ", b, " holds the parameters ", join(parameters, ", "),
                    ", recorded is ", join(recorded.buckets[b], ", "));
    }
    std::int64_t unique = plan.buckets[b].numel;
    while (taken.contains(unique)) unique += kRounding;
    taken.insert(recorded.bucket_block_numel[b]);
    const std::int64_t numel = recorded.bucket_block_numel[b];
    if (numel != unique && numel != plan.buckets[b].numel) {
      return concat("bucket ", b, " has a block of ", plan.buckets[b].numel,
                    " elements, recorded is ", numel);
    }
  }
  return "";
}

}  // namespace gossamer::apps
