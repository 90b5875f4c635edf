// Written from the opening comments of core/algorithms/outer.cpp and outer_averages.hpp.

#include "test/support/recursion/coded_mixing.hpp"
#include "test/support/recursion/ranks.hpp"
#include "test/support/recursion/shared_moments.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.hpp"

namespace gossamer::recursion {
namespace {

/// The bucket of each value.
std::vector<std::size_t> buckets_of(const std::vector<Parameter>& parameters) {
  std::vector<std::size_t> buckets;
  for (const Parameter& parameter : parameters) {
    buckets.insert(buckets.end(), static_cast<std::size_t>(parameter.numel), parameter.bucket);
  }
  return buckets;
}

class OuterRecursion {
 public:
  explicit OuterRecursion(const Ranks& ranks)
      : options_(ranks.options),
        codec_(ranks.setup.codec),
        start_(ranks.setup.start),
        owner_(ranks.setup.owner),
        kind_(options_.read(TextOption{.name = "kind", .rule = {.fallback = "slowmo"}})),
        anchor_(start_),
        momentum_(start_.size(), std::vector<double>(start_.front().size())),
        error_(momentum_) {
    const bool in_pairs = kind_ == "noloco" || kind_ == "gasloc";
    const bool streams =
        options_.read(FlagOption{.name = "streaming", .rule = {.fallback = false}});
    const std::vector<std::size_t> buckets = buckets_of(ranks.setup.parameters);
    const auto num_buckets = static_cast<std::int64_t>(std::ranges::max(buckets)) + 1;
    for (const std::size_t bucket : buckets) {
      turns_.push_back(streams ? static_cast<std::int64_t>(bucket) * every() / num_buckets : 0);
    }
    follows_topology_ =
        options_.read(TextOption{
            .name = "rounds", .rule = {.fallback = in_pairs ? "topology" : "all"}}) == "topology";
  }

  [[nodiscard]] std::int64_t late() const {
    return options_.read(IntegerOption{.name = "late", .rule = {.fallback = 1}});
  }

  [[nodiscard]] std::int64_t every() const {
    return options_.read(IntegerOption{.name = "every", .rule = {.fallback = 8}});
  }
  [[nodiscard]] bool follows_topology() const { return follows_topology_; }
  /// By how many steps a value's first cycle is shorter.
  [[nodiscard]] std::int64_t turn_of(std::size_t value) const { return turns_[value]; }

  /// Moves the models if an average arrives in a step.
  void move(Ranks& ranks, int step) {
    const std::int64_t began = step - late();
    if (began < 0) return;
    const double inner_lr =
        ranks.setup.lr(std::max<std::int64_t>(0, ranks.num_updates.front() - late()));
    due_turn_ = (every() - (began + 1) % every()) % every();
    if (std::ranges::find(turns_, due_turn_) == turns_.end()) return;
    const std::int64_t round = (began + 1 + due_turn_) / every() - 1;
    const bool is_first = round == 0;
    const double blend =
        options_.read(NumberOption{.name = "blend", .rule = {.fallback = late() > 1 ? 0.5 : 0.0}});
    const Vectors sent = proposals(ranks.past[static_cast<std::size_t>(began)]);
    const Vectors means = met(ranks, round, sent);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      for (std::size_t e = 0; e < ranks.num_values(); ++e) {
        if (!is_due(e)) continue;
        if (is_first && kind_ == "gasloc") momentum_[rank][e] = start_[rank][e];
        move_anchor({rank, e}, means[rank][e], sent[rank][e], inner_lr);
        double& x = ranks.x[rank][e];
        x = blend * x + (1.0 - blend) * anchor_[rank][e];
      }
    }
  }

 private:
  struct Place {
    std::size_t rank;
    std::size_t e;
  };

  [[nodiscard]] double lr() const {
    return options_.read(
        NumberOption{.name = "lr", .rule = {.fallback = kind_ == "slowmo" ? 1.0 : 0.7}});
  }
  [[nodiscard]] double momentum() const {
    return options_.read(NumberOption{.name = "momentum", .rule = {.fallback = 0.5}});
  }
  [[nodiscard]] double error_decay() const {
    return options_.read(NumberOption{.name = "error_decay", .rule = {.fallback = 1.0}});
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
  Vectors met(const Ranks& ranks, std::int64_t round, const Vectors& sent) {
    if (codec_ != "fp32" && !follows_topology_) {
      return sent.size() == 1 ? sent : means_of_moves(sent);
    }
    const auto meet = [&](const Vectors& values) {
      return follows_topology_ ? ranks.mixed(round, values)
                               : Vectors(values.size(), mean_of(values));
    };
    if (kind_ != "noloco" || late() != 1 || codec_ != "fp32") return meet(sent);
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
    const CodedMixing codec(codec_);
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
      error_[owner_(e)][e] += sum[e] - heard[e];
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

  Options options_;
  std::string codec_;
  Vectors start_;
  /// The rank that encodes a value of a sum.
  std::function<std::size_t(std::size_t value)> owner_;
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

}  // namespace

/// Local steps, and averages of models that arrive late.
Algorithm outer(const Ranks& ranks) {
  const bool overlaps =
      ranks.options.read(FlagOption{.name = "overlap", .rule = {.fallback = true}});
  return [overlaps, averages = OuterRecursion(ranks)](Ranks& all, Step& step) mutable {
    const auto move = [&](int number) {
      share_moments(all, number,
                    {.cycle = averages.every(),
                     .turn_of = [&](std::size_t value) { return averages.turn_of(value); },
                     .in_rounds = averages.follows_topology()});
      averages.move(all, number);
    };
    if (overlaps) move(step.number);
    // The rules see the moved model alone.
    all.before = all.x;
    all.update(step);
    if (overlaps) return;
    all.past.push_back(all.x);
    move(step.number + 1);
    all.past.pop_back();
  };
}

}  // namespace gossamer::recursion
