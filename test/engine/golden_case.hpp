#pragma once
// Traces recorded from decent-dp 0.2.3 with fixed gradients: what the whole pipeline must repeat.

#include "engine/npy.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "gossamer/core/engine/bucket_plan.hpp"
#include "gossamer/optim/registry.hpp"
#include "gossamer/topology/topology.hpp"

namespace gossamer {

inline std::filesystem::path golden_folder() {
  const char* shared = std::getenv("GOSSAMER_SHARED");
  return std::filesystem::path(shared != nullptr ? shared : GOSSAMER_SOURCE_DIR "/../shared") /
         "golden";
}

inline const std::vector<std::string>& golden_names() {
  static const std::vector<std::string> kNames = {
      "accum_adam_complete_n4",
      "accum_adam_exp_n2_iter1",
      "accum_adam_exp_n4_cosine",
      "accum_adam_ring_n4_micro2_adaptive",
      "accum_adamw_altexpring_n8_local2",
      "accum_adamw_exp_n8_clip",
      "accum_adamw_ring_n2_iter1",
      "accum_adamw_ring_n4",
      "accum_adamw_weightedring_n4_helperdecay",
      "adam_ring_n4_helperdecay",
      "adamw_complete_n4_clip_cosine",
      "sgd_momentum_ring_n4",
      "sgd_nesterov_exp_n8",
  };
  return kNames;
}

/// The rounds of a trace. Its k-th exchange is the one launched after step k + 1; the edge it runs
/// on is recorded where it arrives, in the step after that.
class RecordedTopology : public Topology {
 public:
  explicit RecordedTopology(const nlohmann::json& json)
      : world_size_(json.at("world_size")),
        factor_(json.value("adaptive_factor", 1.0)),
        edges_(json.at("edges")),
        mix_edge_(json.at("mix_edge")),
        last_edge_(json.at("launch_edge").back()) {}

  [[nodiscard]] std::string name() const override { return "recorded"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return std::nullopt; }
  [[nodiscard]] Round round(std::int64_t k) const override {
    const auto arrival = static_cast<std::size_t>(k) + 1;
    const std::size_t index =
        arrival < mix_edge_.size() ? mix_edge_[arrival].get<std::size_t>() : last_edge_;
    std::vector<Edge> edges;
    for (const auto& edge : edges_.at(index)) {
      // The adaptive factor a of a trace is the same as the weight 1 - a (1 - w).
      const double weight = 1.0 - factor_ * (1.0 - edge.at("weight").get<double>());
      edges.push_back({edge.at("ranks").get<std::vector<int>>(), weight});
    }
    return complete_round(std::move(edges), world_size_);
  }

 private:
  int world_size_;
  double factor_;
  nlohmann::json edges_;
  nlohmann::json mix_edge_;
  std::size_t last_edge_;
};

class RecordedSchedule : public Schedule {
 public:
  explicit RecordedSchedule(std::vector<double> lrs) : lrs_(std::move(lrs)) {}
  [[nodiscard]] double lr(std::int64_t completed_steps) const override {
    return lrs_.at(static_cast<std::size_t>(completed_steps));
  }

 private:
  std::vector<double> lrs_;
};

struct GoldenCase {
  nlohmann::json json;
  std::vector<ParameterInfo> parameters;
  std::vector<std::int64_t> order;
  NpyArray init;
  NpyArray grads;
  NpyArray expected;
  NpyArray final_avg;

  [[nodiscard]] int world_size() const { return json.at("world_size"); }
  [[nodiscard]] int local_world_size() const { return json.at("local_world_size"); }
  [[nodiscard]] std::int64_t steps() const { return json.at("steps"); }
  [[nodiscard]] std::int64_t bucket_bytes() const { return json.at("bucket_bytes"); }
  [[nodiscard]] std::string optimizer() const { return json.at("optim").at("type"); }

  /// The library's options of the recorded optimizer.
  [[nodiscard]] Options optimizer_options() const {
    nlohmann::json options = json.at("optim");
    for (const char* key : {"type", "weight_decay", "decay"}) options.erase(key);
    return Options::parse(options.dump());
  }
};

inline nlohmann::json read_golden_json(const std::string& name) {
  std::ifstream file(golden_folder() / name / "case.json");
  return nlohmann::json::parse(file);
}

inline std::vector<ParameterInfo> golden_parameters(const nlohmann::json& json) {
  std::vector<ParameterInfo> parameters;
  for (const auto& parameter : json.at("params")) {
    parameters.push_back({.name = parameter.at("name"),
                          .shape = parameter.at("shape"),
                          .weight_decay = parameter.at("weight_decay")});
  }
  return parameters;
}

inline GoldenCase read_golden_case(const std::string& name) {
  const std::filesystem::path folder = golden_folder() / name;
  nlohmann::json json = read_golden_json(name);
  GoldenCase golden{.json = json,
                    .parameters = golden_parameters(json),
                    .order = json.at("order"),
                    .init = read_npy(folder / "init.npy"),
                    .grads = read_npy(folder / "grads.npy"),
                    .expected = read_npy(folder / "expected.npy"),
                    .final_avg = read_npy(folder / "final_avg.npy")};
  return golden;
}

}  // namespace gossamer
