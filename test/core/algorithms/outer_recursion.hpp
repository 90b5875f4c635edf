#pragma once
// The oracle of `outer`, in double with whole vectors, all ranks at once. Written from the opening
// comments of core/algorithms/outer.cpp and outer_averages.hpp.

#include "test/core/algorithms/coded_mixing.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.hpp"

namespace gossamer {

class OuterRecursion {
 public:
  /// vectors[rank]: all parameters of a rank, one after the other.
  using Vectors = std::vector<std::vector<double>>;

  struct Setup {
    Options options = {};
    std::string codec = {};
    /// The initial parameters.
    Vectors start = {};
    /// Mixes values in a round of the topology.
    std::function<Vectors(std::int64_t round, const Vectors& values)> mixed = {};
    /// The rank that encodes a value of a sum.
    std::function<std::size_t(std::size_t value)> owner = {};
    /// The bucket of each value.
    std::vector<std::size_t> buckets = {};
  };

  explicit OuterRecursion(Setup setup)
      : setup_(std::move(setup)),
        kind_(setup_.options.read(TextOption{.name = "kind", .rule = {.fallback = "slowmo"}})),
        anchor_(setup_.start),
        momentum_(setup_.start.size(), std::vector<double>(setup_.start.front().size())),
        error_(momentum_) {
    const bool in_pairs = kind_ == "noloco" || kind_ == "gasloc";
    const bool streams = setup_.options.read(FlagOption{.name = "streaming"});
    const auto num_buckets = static_cast<std::int64_t>(std::ranges::max(setup_.buckets)) + 1;
    for (const std::size_t bucket : setup_.buckets) {
      turns_.push_back(streams ? static_cast<std::int64_t>(bucket) * every() / num_buckets : 0);
    }
    follows_topology_ =
        setup_.options.read(TextOption{
            .name = "rounds", .rule = {.fallback = in_pairs ? "topology" : "all"}}) == "topology";
  }

  [[nodiscard]] std::int64_t late() const {
    return setup_.options.read(IntegerOption{.name = "late", .rule = {.fallback = 1}});
  }

  [[nodiscard]] std::int64_t every() const {
    return setup_.options.read(IntegerOption{.name = "every", .rule = {.fallback = 8}});
  }
  [[nodiscard]] bool follows_topology() const { return follows_topology_; }
  /// By how many steps a value's first cycle is shorter.
  [[nodiscard]] std::int64_t turn_of(std::size_t value) const { return turns_[value]; }

  /// Moves the models `x` if an average arrives that has begun after step `began`, with the models
  /// `then` and the learning rate `inner_lr`.
  void move(std::int64_t began, const Vectors& then, double inner_lr, Vectors& x) {
    due_turn_ = (every() - (began + 1) % every()) % every();
    if (std::ranges::find(turns_, due_turn_) == turns_.end()) return;
    const std::int64_t round = (began + 1 + due_turn_) / every() - 1;
    const bool is_first = round == 0;
    const double blend = setup_.options.read(
        NumberOption{.name = "blend", .rule = {.fallback = late() > 1 ? 0.5 : 0.0}});
    const Vectors sent = proposals(then);
    const Vectors means = met(round, sent);
    for (std::size_t rank = 0; rank < x.size(); ++rank) {
      for (std::size_t e = 0; e < x[rank].size(); ++e) {
        if (!is_due(e)) continue;
        if (is_first && kind_ == "gasloc") momentum_[rank][e] = setup_.start[rank][e];
        move_anchor({rank, e}, means[rank][e], sent[rank][e], inner_lr);
        x[rank][e] = blend * x[rank][e] + (1.0 - blend) * anchor_[rank][e];
      }
    }
  }

  [[nodiscard]] static std::vector<double> mean_of(const Vectors& values) {
    std::vector<double> mean(values.front().size());
    for (const std::vector<double>& of_rank : values) {
      for (std::size_t e = 0; e < mean.size(); ++e) {
        mean[e] += of_rank[e] / static_cast<double>(values.size());
      }
    }
    return mean;
  }

 private:
  struct Place {
    std::size_t rank;
    std::size_t e;
  };

  [[nodiscard]] double lr() const {
    return setup_.options.read(
        NumberOption{.name = "lr", .rule = {.fallback = kind_ == "slowmo" ? 1.0 : 0.7}});
  }
  [[nodiscard]] double momentum() const {
    return setup_.options.read(NumberOption{.name = "momentum", .rule = {.fallback = 0.5}});
  }
  [[nodiscard]] double error_decay() const {
    return setup_.options.read(NumberOption{.name = "error_decay", .rule = {.fallback = 1.0}});
  }
  /// Whether the value's average arrives in this move.
  [[nodiscard]] bool is_due(std::size_t value) const { return turns_[value] == due_turn_; }
  [[nodiscard]] double num_ranks() const { return static_cast<double>(anchor_.size()); }

  /// What the ranks send: their models; of GASLoC, y.
  [[nodiscard]] Vectors proposals(const Vectors& models) const {
    if (kind_ != "gasloc") return models;
    Vectors y = models;
    for (std::size_t rank = 0; rank < y.size(); ++rank) {
      for (std::size_t e = 0; e < y[rank].size(); ++e) {
        y[rank][e] = anchor_[rank][e] + lr() * (models[rank][e] - anchor_[rank][e]);
      }
    }
    return y;
  }

  /// The average of every rank.
  Vectors met(std::int64_t round, const Vectors& sent) {
    if (setup_.codec != "fp32" && !follows_topology_) {
      return sent.size() == 1 ? sent : means_of_moves(sent);
    }
    const auto meet = [&](const Vectors& values) {
      return follows_topology_ ? setup_.mixed(round, values)
                               : Vectors(values.size(), mean_of(values));
    };
    if (kind_ != "noloco" || late() != 1 || setup_.codec != "fp32") return meet(sent);
    // NoLoCo's authors send anchors and what the models have moved since.
    Vectors moves = sent;
    for_all([&](std::size_t rank, std::size_t e) { moves[rank][e] -= anchor_[rank][e]; });
    Vectors means = meet(anchor_);
    const Vectors mean_moves = meet(moves);
    for_all([&](std::size_t rank, std::size_t e) { means[rank][e] += mean_moves[rank][e]; });
    return means;
  }

  /// a + R(sum of R(d)) / n with d = x - a + error_decay e. A rank keeps d - R(d), and the owner of
  /// a value the error of the sum.
  Vectors means_of_moves(const Vectors& sent) {
    const CodedMixing codec(setup_.codec);
    std::vector<double> sum(anchor_.front().size());
    for (std::size_t rank = 0; rank < sent.size(); ++rank) {
      std::vector<double> d = sent[rank];
      for (std::size_t e = 0; e < d.size(); ++e) {
        d[e] += error_decay() * error_[rank][e] - anchor_[rank][e];
      }
      const std::vector<double> said = codec.sent(d);
      for (std::size_t e = 0; e < d.size(); ++e) {
        if (!is_due(e)) continue;
        sum[e] += said[e];
        error_[rank][e] = d[e] - said[e];
      }
    }
    const std::vector<double> heard = codec.sent(sum);
    Vectors means = anchor_;
    for (std::size_t e = 0; e < sum.size(); ++e) {
      if (!is_due(e)) continue;
      error_[setup_.owner(e)][e] += sum[e] - heard[e];
      for (auto& mean : means) mean[e] += heard[e] / num_ranks();
    }
    return means;
  }

  void move_anchor(const Place& place, double mean, double sent, double inner_lr) {
    double& a = anchor_[place.rank][place.e];
    double& m = momentum_[place.rank][place.e];
    if (kind_ == "noloco") {
      m = momentum() * m + lr() * (mean - a);
      a += m;
    } else if (kind_ == "gasloc") {
      // Here m is y of the average before.
      a = mean + momentum() * (sent - m);
      m = sent;
    } else {
      const double difference = a - mean;
      m = momentum() * m + (kind_ == "slowmo" ? difference / inner_lr : difference);
      a -= kind_ == "slowmo" ? lr() * inner_lr * m : lr() * (difference + momentum() * m);
    }
  }

  template <class Work>
  void for_all(const Work& work) const {
    for (std::size_t rank = 0; rank < anchor_.size(); ++rank) {
      for (std::size_t e = 0; e < anchor_[rank].size(); ++e) work(rank, e);
    }
  }

  Setup setup_;
  /// By how many steps the first cycle of each value is shorter: with streaming the buckets divide
  /// a cycle among them.
  std::vector<std::int64_t> turns_;
  /// Of the values whose average arrives.
  std::int64_t due_turn_ = 0;
  std::string kind_;
  bool follows_topology_ = false;
  Vectors anchor_;
  Vectors momentum_;
  Vectors error_;
};

}  // namespace gossamer
