#pragma once
// Records a case as docs/design/replay.md says, from the formulas in double: what replay() must
// repeat.

#include "test/apps/data/npy_writer.hpp"
#include "test/apps/folder.hpp"
#include "test/optim/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/random.hpp"

namespace gossamer::apps {

inline reference::Rule default_rule() {
  return {.type = "accum_adamw", .beta1 = 0.8, .eps = 1e-6, .accum_iter = 3};
}

struct CaseSpec {
  struct Group {
    std::vector<int> ranks;
    double weight = 0.5;
  };
  int world_size = 3;
  std::int64_t steps = 7;
  std::int64_t micro_batches = 2;
  double clip_norm = 0.0;
  double adaptive_factor = 1.0;
  std::int64_t bucket_bytes = 300;
  reference::Rule rule = default_rule();
  /// Sizes of the parameters, in declared order; gradients come in the order given.
  std::vector<std::int64_t> sizes = {40, 7, 33};
  std::vector<std::int64_t> order = {2, 1, 0};
  std::vector<std::vector<std::int64_t>> buckets = {{2, 1}, {0}};
  std::vector<std::int64_t> bucket_block_numel = {96, 64};
  /// Unequal weights, a group of three, and a rank that sits out.
  std::vector<std::vector<Group>> edges = {{{{0, 1}, 0.7}, {{2}, 1.0}}, {{{0, 1, 2}, 0.5}}};
};

class CaseWriter {
 public:
  explicit CaseWriter(CaseSpec spec) : spec_(std::move(spec)) {
    for (const std::int64_t size : spec_.sizes) total_ += static_cast<std::size_t>(size);
    Random random(9, 1);
    for (std::size_t i = 0; i < total_; ++i) init_.push_back(draw(random));
    const auto ranks = static_cast<std::size_t>(spec_.world_size);
    x_.assign(ranks, {init_.begin(), init_.end()});
    for (std::size_t r = 0; r < ranks; ++r) {
      auto& optimizers = optimizers_.emplace_back();
      for (const std::int64_t size : spec_.sizes) {
        optimizers.emplace_back(spec_.rule, static_cast<std::size_t>(size));
      }
    }
    const auto rows = static_cast<std::size_t>(spec_.steps * spec_.micro_batches) * ranks;
    for (std::size_t i = 0; i < rows * total_; ++i) grads_.push_back(draw(random));
  }

  /// Writes the folder's files and returns case.json, which the caller may change and write again.
  nlohmann::json write(const Folder& folder) {
    std::vector<float> expected;
    for (std::int64_t step = 0; step < spec_.steps; ++step) {
      if (step > 0) mix(spec_.edges[edge_of(step)]);
      update(step);
      for (const auto& x : x_) {
        for (const double value : x) expected.push_back(static_cast<float>(value));
      }
    }
    const auto n = static_cast<std::int64_t>(spec_.world_size);
    const auto total = static_cast<std::int64_t>(total_);
    write_npy(folder.file("init.npy"), {{total}, init_});
    write_npy(folder.file("grads.npy"), {{spec_.steps * spec_.micro_batches, n, total}, grads_});
    write_npy(folder.file("expected.npy"), {{spec_.steps, n, total}, expected});
    write_npy(folder.file("final_avg.npy"), {{total}, mean()});
    const nlohmann::json json = describe();
    write_json(folder, json);
    return json;
  }

  static void write_json(const Folder& folder, const nlohmann::json& json) {
    std::ofstream(folder.file("case.json")) << json.dump(1);
  }

 private:
  static float draw(Random& random) { return static_cast<float>(random.uniform(-1.0, 1.0)); }
  [[nodiscard]] std::size_t edge_of(std::int64_t step) const {
    return static_cast<std::size_t>(step) % spec_.edges.size();
  }
  [[nodiscard]] double lr(std::int64_t step) const {
    return 0.01 / (1.0 + static_cast<double>(step));
  }
  static double decay(std::size_t parameter) { return 0.05 * static_cast<double>(parameter); }

  void mix(const std::vector<CaseSpec::Group>& groups) {
    const auto old = x_;
    for (const auto& group : groups) {
      const auto n = static_cast<double>(group.ranks.size());
      if (n < 2.0) continue;
      const double share = (1.0 - group.weight) / (n - 1.0);
      const double a = spec_.adaptive_factor;
      for (const int rank : group.ranks) {
        const auto r = static_cast<std::size_t>(rank);
        for (std::size_t e = 0; e < total_; ++e) {
          double sum = 0.0;
          for (const int j : group.ranks) sum += share * old[static_cast<std::size_t>(j)][e];
          x_[r][e] = old[r][e] * ((1.0 - a) + a * (group.weight - share)) + a * sum;
        }
      }
    }
  }

  void update(std::int64_t step) {
    for (std::size_t rank = 0; rank < x_.size(); ++rank) {
      std::vector<std::vector<double>> gradients = gradients_of(step, rank);
      for (const auto& bucket : spec_.buckets) clip(gradients, bucket);
      std::size_t begin = 0;
      for (std::size_t p = 0; p < gradients.size(); ++p) {
        const auto first = x_[rank].begin() + static_cast<std::ptrdiff_t>(begin);
        std::vector<double> values(first, first + std::ssize(gradients[p]));
        optimizers_[rank][p].step(values, gradients[p], lr(step), decay(p));
        std::ranges::copy(values, first);
        begin += gradients[p].size();
      }
    }
  }

  [[nodiscard]] std::vector<std::vector<double>> gradients_of(std::int64_t step,
                                                              std::size_t rank) const {
    std::vector<std::vector<double>> gradients;
    std::size_t e = 0;
    for (const std::int64_t size : spec_.sizes) {
      auto& gradient = gradients.emplace_back();
      for (std::int64_t i = 0; i < size; ++i, ++e) {
        double sum = 0.0;
        for (std::int64_t b = 0; b < spec_.micro_batches; ++b) {
          const auto row = static_cast<std::size_t>(step * spec_.micro_batches + b);
          sum += static_cast<double>(grads_[(row * x_.size() + rank) * total_ + e]);
        }
        gradient.push_back(sum);
      }
    }
    return gradients;
  }

  void clip(std::vector<std::vector<double>>& gradients,
            const std::vector<std::int64_t>& bucket) const {
    if (spec_.clip_norm == 0.0) return;
    double squares = 0.0;
    for (const std::int64_t p : bucket) {
      for (const double g : gradients[static_cast<std::size_t>(p)]) squares += g * g;
    }
    const double factor = std::min(1.0, spec_.clip_norm / (std::sqrt(squares) + 1e-6));
    for (const std::int64_t p : bucket) {
      for (double& g : gradients[static_cast<std::size_t>(p)]) g *= factor;
    }
  }

  [[nodiscard]] std::vector<float> mean() const {
    std::vector<float> mean;
    for (std::size_t e = 0; e < total_; ++e) {
      double sum = 0.0;
      for (const auto& x : x_) sum += x[e];
      mean.push_back(static_cast<float>(sum / static_cast<double>(x_.size())));
    }
    return mean;
  }

  [[nodiscard]] nlohmann::json describe() const {
    nlohmann::json json = {{"name", "made_up"},
                           {"world_size", spec_.world_size},
                           {"steps", spec_.steps},
                           {"micro_batches", spec_.micro_batches},
                           {"grad_clip_norm", spec_.clip_norm},
                           {"adaptive_factor", spec_.adaptive_factor},
                           {"bucket_bytes", spec_.bucket_bytes},
                           {"buckets", spec_.buckets},
                           {"bucket_block_numel", spec_.bucket_block_numel},
                           {"order", spec_.order},
                           {"total", total_}};
    json["optim"] = {{"type", spec_.rule.type}, {"weight_decay", 7.0}};
    if (spec_.rule.type == "sgd") {
      json["optim"]["momentum"] = spec_.rule.momentum;
    } else {
      json["optim"]["betas"] = {spec_.rule.beta1, spec_.rule.beta2};
      json["optim"]["eps"] = spec_.rule.eps;
    }
    if (spec_.rule.accumulates()) json["optim"]["accum_iter"] = spec_.rule.accum_iter;
    std::int64_t offset = 0;
    for (std::size_t p = 0; p < spec_.sizes.size(); ++p) {
      json["params"].push_back({{"name", concat("p", p)},
                                {"shape", {spec_.sizes[p]}},
                                {"offset", offset},
                                {"numel", spec_.sizes[p]},
                                {"weight_decay", decay(p)}});
      offset += spec_.sizes[p];
    }
    for (const auto& groups : spec_.edges) {
      auto list = nlohmann::json::array();
      for (const auto& group : groups) {
        list.push_back({{"ranks", group.ranks}, {"weight", group.weight}});
      }
      json["edges"].push_back(list);
    }
    for (std::int64_t step = 0; step < spec_.steps; ++step) {
      json["mix_edge"].push_back(step == 0 ? nlohmann::json() : nlohmann::json(edge_of(step)));
      json["lrs"].push_back(lr(step));
    }
    double squares = 0.0;
    const auto average = mean();
    for (std::size_t e = 0; e < total_; ++e) {
      const double difference = static_cast<double>(average[e]) - x_[0][e];
      squares += difference * difference;
    }
    json["distance_to_center_rank0"] = std::sqrt(squares);
    return json;
  }

  CaseSpec spec_;
  std::size_t total_ = 0;
  std::vector<float> init_;
  std::vector<float> grads_;
  std::vector<std::vector<double>> x_;
  std::vector<std::vector<reference::Optimizer>> optimizers_;
};

}  // namespace gossamer::apps
