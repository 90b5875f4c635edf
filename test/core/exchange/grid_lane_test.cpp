// Tests the windows and votes of GridLane with lanes that carry nothing.

#include "core/exchange/grid_lane.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/host_stream.hpp"

namespace gossamer {
namespace {

constexpr std::int64_t kWindow = GridLane::kWindow;
constexpr double kInfinite = std::numeric_limits<double>::infinity();
const LaneSpec kSpec = {.numel = 4};

/// Remembers the grid of every round.
class FakeBlocks : public Lane {
 public:
  FakeBlocks(std::map<std::int64_t, std::optional<Grid>>& grids,
             std::shared_ptr<const NextGrid> next)
      : grids_(grids), next_(std::move(next)) {}
  void start(std::int64_t k, const Buffer& /*send*/) override { grids_[k] = next_->grid; }
  void wait() override {}
  Intake take() override { return {.exchange = {.stats = next_->stats}}; }
  void forget() override {}

 private:
  std::map<std::int64_t, std::optional<Grid>>& grids_;
  std::shared_ptr<const NextGrid> next_;
};

/// The sum of all ranks' ballots, for every window.
using Ballots = std::map<std::int64_t, std::vector<float>>;

class FakeVotes : public Lane {
 public:
  explicit FakeVotes(Ballots& ballots) : ballots_(ballots) {}
  void start(std::int64_t k, const Buffer& send) override {
    window_ = k;
    const auto own = send.block().as<float>();
    auto& sum = ballots_[k];
    sum.resize(own.size());
    for (std::size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
  }
  void wait() override {}
  Intake take() override {
    return {.keep = 0.0, .inboxes = {{block_of(std::span(ballots_.at(window_))), 1.0}}};
  }
  void forget() override {}

 private:
  Ballots& ballots_;
  std::int64_t window_ = -1;
};

/// GridLanes of several ranks.
class Ranks {
 public:
  explicit Ranks(std::size_t count) : grids_(count), num_wide_(count) {
    for (std::size_t rank = 0; rank < count; ++rank) lanes_.push_back(make_lane(rank));
  }

  /// Makes `count` steps. A step takes the last round and starts the next one, as an update does.
  /// In each, rank r measures largest[r].
  void run(std::int64_t count, const std::vector<double>& largest, std::int64_t num_wide = 0) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (round_ > 0) take(largest, num_wide);
      for (const auto& lane : lanes_) lane->start(round_, send_);
      ++round_;
    }
  }
  /// Saves all lanes, and loads new ones, which repeat the last round.
  void reload() {
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
      lanes_[rank]->drain();
      const GridState state = lanes_[rank]->state();
      lanes_[rank] = make_lane(rank);
      lanes_[rank]->restore(state);
    }
    ballots_.erase((round_ - 1) / kWindow);
    for (const auto& lane : lanes_) lane->start(round_ - 1, send_);
  }
  /// On rank 0 alone, or on all ranks.
  void forget(bool alone) {
    for (const auto& lane : lanes_) {
      lane->forget();
      if (alone) return;
    }
  }
  void restore(const GridState& state) { lanes_.front()->restore(state); }

  /// The exponent of a round's grid; null: its blocks are plain.
  [[nodiscard]] std::optional<int> exponent(std::int64_t round) const {
    const std::optional<Grid>& grid = grids_.front().at(round);
    for (const auto& other : grids_) EXPECT_EQ(other.at(round), grid) << "round " << round;
    return grid ? std::optional(grid->exponent) : std::nullopt;
  }
  /// Of the rounds of a window, which must all be the same.
  [[nodiscard]] std::optional<int> of_window(std::int64_t window) const {
    for (std::int64_t k = window * kWindow; k < (window + 1) * kWindow; ++k) {
      EXPECT_EQ(exponent(k), exponent(window * kWindow)) << "round " << k;
    }
    return exponent(window * kWindow);
  }
  [[nodiscard]] const std::map<std::int64_t, std::optional<Grid>>& grids() const {
    return grids_.front();
  }
  [[nodiscard]] std::int64_t num_wide(std::size_t rank) const { return num_wide_[rank]; }

 private:
  void take(const std::vector<double>& largest, std::int64_t num_wide) {
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
      lanes_[rank]->wait();
      const Intake intake = lanes_[rank]->take();
      intake.exchange.stats->add(static_cast<float>(largest[rank]), num_wide);
    }
  }
  std::unique_ptr<GridLane> make_lane(std::size_t rank) {
    const MixingCodec& codec = *find_codec("int8")->mixing();
    const auto next = first_grid(&codec);
    return std::make_unique<GridLane>(
        GridLane::Parts{.blocks = std::make_unique<FakeBlocks>(grids_[rank], next),
                        .next = next,
                        .codec = codec,
                        .votes = std::make_unique<FakeVotes>(ballots_),
                        .stream = stream_,
                        .num_wide = num_wide_[rank]},
        kSpec);
  }

  InlineStream stream_;
  Buffer send_ = Buffer(4, DType::kFloat32);
  Ballots ballots_;
  std::vector<std::map<std::int64_t, std::optional<Grid>>> grids_;
  std::vector<std::int64_t> num_wide_;
  std::vector<std::unique_ptr<GridLane>> lanes_;
  std::int64_t round_ = 0;
};

constexpr std::optional<int> kPlainBlocks = std::nullopt;

TEST(GridLane, UsesTheCoarsestGridThatARankNeedsTwoWindowsLater) {
  Ranks ranks(3);
  ranks.run(kWindow, {0.5, 0.01, 0.0});
  ranks.run(kWindow, {0.001, 0.001, 0.003});
  ranks.run(2 * kWindow, {0.0, 0.0, 0.0});
  EXPECT_EQ(ranks.of_window(0), kPlainBlocks);
  EXPECT_EQ(ranks.of_window(1), kPlainBlocks);
  // 127 steps reach 4 times the largest difference. Half as large steps do not.
  for (const auto& [window, largest] : {std::pair{2, 0.5}, {3, 0.003}}) {
    const int exponent = ranks.of_window(window).value();
    EXPECT_GE(std::ldexp(127.0, exponent), 4.0 * largest);
    EXPECT_LT(std::ldexp(127.0, exponent - 1), 4.0 * largest);
  }
}

TEST(GridLane, GivesEveryRoundItsOwnSeed) {
  Ranks ranks(2);
  ranks.run(3 * kWindow, {0.5, 0.5});
  for (std::int64_t k = 2 * kWindow; k < 3 * kWindow; ++k) {
    EXPECT_EQ(ranks.grids().at(k).value().seed, static_cast<std::uint64_t>(k));
  }
}

TEST(GridLane, KeepsTheGridWhileNobodyHasAnOpinion) {
  Ranks ranks(2);
  ranks.run(2 * kWindow, {0.0, 0.0});
  ranks.run(kWindow, {0.0, 1.0});
  ranks.run(4 * kWindow, {0.0, 0.0});
  EXPECT_EQ(ranks.of_window(3), kPlainBlocks);
  ASSERT_TRUE(ranks.of_window(4).has_value());
  EXPECT_EQ(ranks.of_window(5), ranks.of_window(4));
  EXPECT_EQ(ranks.of_window(6), ranks.of_window(4));
}

TEST(GridLane, SendsPlainBlocksAfterAVeto) {
  Ranks ranks(2);
  ranks.run(2 * kWindow + 1, {1.0, 1.0});
  ranks.run(kWindow, {1.0, kInfinite});
  ranks.run(4 * kWindow, {1.0, 1.0});
  EXPECT_TRUE(ranks.of_window(2).has_value());
  EXPECT_TRUE(ranks.of_window(3).has_value());
  EXPECT_EQ(ranks.of_window(4), kPlainBlocks);
  // Window 3 measured with the grid that window 2 had found wanting.
  EXPECT_EQ(ranks.of_window(5), kPlainBlocks);
  EXPECT_TRUE(ranks.of_window(6).has_value());
}

TEST(GridLane, TakesDifferencesOfAllSizes) {
  for (const double largest : {1e-45, 1e-30, 1e-18, 1e-3, 1e3, 1e12}) {
    Ranks ranks(2);
    ranks.run(3 * kWindow, {0.0, largest});
    EXPECT_GE(std::ldexp(127.0, ranks.of_window(2).value()), 4.0 * largest) << largest;
  }
  for (const double largest : {1e30, kInfinite}) {
    Ranks ranks(2);
    ranks.run(3 * kWindow, {0.0, largest});
    EXPECT_EQ(ranks.of_window(2), kPlainBlocks) << largest;
  }
}

TEST(GridLane, VetoesAfterForgetEvenOfOneRankAlone) {
  for (const bool alone : {false, true}) {
    for (const std::int64_t into_window : {std::int64_t{1}, std::int64_t{3}, kWindow}) {
      Ranks ranks(2);
      ranks.run(3 * kWindow + into_window, {1.0, 1.0});
      ranks.forget(alone);
      ranks.run(2 * kWindow - into_window, {1.0, 1.0});
      ranks.run(3 * kWindow, {8.0, 1.0});
      EXPECT_TRUE(ranks.of_window(4).has_value());
      EXPECT_EQ(ranks.of_window(5), kPlainBlocks);
      EXPECT_EQ(ranks.of_window(6), kPlainBlocks);
      EXPECT_GE(std::ldexp(127.0, ranks.of_window(7).value()), 32.0);
    }
  }
}

TEST(GridLane, RefusesImpossibleStates) {
  Ranks ranks(1);
  for (const GridState& state :
       {GridState{.exponent = 41}, GridState{.exponent = -61}, GridState{.vote = 42},
        GridState{.vote = -999}, GridState{.largest = -1.0},
        GridState{.largest = std::numeric_limits<double>::quiet_NaN()}}) {
    EXPECT_THROW(ranks.restore(state), CheckpointError);
  }
  EXPECT_NO_THROW(ranks.restore({.exponent = 40, .vote = GridState::kVeto, .largest = kInfinite}));
  EXPECT_NO_THROW(ranks.restore({.exponent = -60, .vote = -60}));
}

TEST(GridLane, GoesOnFromItsState) {
  for (std::int64_t saved_after = 1; saved_after <= 5 * kWindow; ++saved_after) {
    Ranks whole(2);
    Ranks loaded(2);
    for (std::int64_t k = 0; k < 8 * kWindow; ++k) {
      const std::vector<double> largest = {1.0 + 0.5 * std::sin(0.3 * static_cast<double>(k)),
                                           std::exp(-0.1 * static_cast<double>(k))};
      whole.run(1, largest);
      loaded.run(1, largest);
      if (k + 1 == saved_after) loaded.reload();
      if (k == 3 * kWindow + 2) {
        whole.forget(false);
        loaded.forget(false);
      }
    }
    EXPECT_EQ(loaded.grids(), whole.grids()) << "saved after " << saved_after;
  }
}

TEST(GridLane, CountsWideDifferences) {
  Ranks ranks(2);
  ranks.run(2 * kWindow + 1, {1.0, 1.0}, 3);
  // The counter goes on when a window begins.
  EXPECT_EQ(ranks.num_wide(0), 3 * (2 * kWindow - 1));
}

}  // namespace
}  // namespace gossamer
