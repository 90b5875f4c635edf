#include "core/grid_lane.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gossamer {
namespace {

// A ballot has one element for every exponent, and a last one, which vetoes all grids.
constexpr std::int64_t kLeastExponent = -60;
constexpr std::int64_t kMostExponent = 40;
constexpr std::int64_t kVeto = kMostExponent + 1;
constexpr std::int64_t kBallotSize = kVeto - kLeastExponent + 1;
/// Room for differences to grow between a measurement and its use, as a factor.
constexpr double kHeadroom = 4.0;
constexpr double kMostSteps = 127.0;

/// The vote for a largest difference that was measured in a window with `grid`.
std::int64_t vote_for(double largest, std::int64_t grid) {
  if (largest == 0.0) return GridState::kPlain;
  const bool has_left_range =
      grid != GridState::kPlain && largest >= std::ldexp(kMostSteps, static_cast<int>(grid));
  const double finest = std::ceil(std::log2(kHeadroom * largest / kMostSteps));
  if (has_left_range || !(finest <= static_cast<double>(kMostExponent))) return kVeto;
  return std::max(static_cast<std::int64_t>(finest), kLeastExponent);
}

template <class T>
void mark_vote(std::span<T> ballot, std::int64_t vote) {
  std::ranges::fill(ballot, T{0});
  if (vote != GridState::kPlain) ballot[static_cast<std::size_t>(vote - kLeastExponent)] = T{1};
}

/// The coarsest grid of all votes; none where a rank has vetoed.
template <class T>
std::int64_t result_of(std::span<const T> sum) {
  std::int64_t result = GridState::kPlain;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (sum[i] > T{0}) result = static_cast<std::int64_t>(i) + kLeastExponent;
  }
  return result == kVeto ? GridState::kPlain : result;
}

}  // namespace

LaneSpec GridLane::ballot_spec(const LaneSpec& spec) {
  return {.rounds = LaneRounds::kSum,
          .bucket = spec.bucket,
          .numel = kBallotSize,
          .dtype = spec.dtype,
          .content = "votes"};
}

GridLane::GridLane(Parts parts, const LaneSpec& spec)
    : parts_(std::move(parts)), ballot_(parts_.stream.allocate(kBallotSize, spec.dtype)) {}

void GridLane::start(std::int64_t k, const Buffer& send) {
  if (std::exchange(is_restored_, false)) {
    window_ = k / kWindow;
    if (window_ > 0) send_ballot();
  }
  prepare(k);
  last_round_ = k;
  parts_.blocks->start(k, send);
}

Intake GridLane::take() {
  // The update that follows encodes for the next round.
  prepare(last_round_ + 1);
  return parts_.blocks->take();
}

void GridLane::drain() {
  parts_.blocks->drain();
  parts_.votes->drain();
}

void GridLane::forget() {
  parts_.blocks->forget();
  grid_ = GridState::kPlain;
  votes_count_ = false;
  static_cast<void>(stats_->take_largest());
}

void GridLane::prepare(std::int64_t k) {
  if (k / kWindow != window_) {
    window_ = k / kWindow;
    const std::int64_t measured_with = grid_;
    count_votes();
    vote(measured_with);
    parts_.num_wide += stats_->take_num_wide();
  }
  std::optional<Grid> grid;
  if (grid_ != GridState::kPlain) {
    grid = Grid{.exponent = static_cast<int>(grid_), .seed = static_cast<std::uint64_t>(k)};
  }
  parts_.blocks->set_grid(grid, stats_);
}

void GridLane::count_votes() {
  grid_ = GridState::kPlain;
  const bool count = std::exchange(votes_count_, true);
  if (!std::exchange(votes_are_under_way_, false)) return;
  parts_.votes->wait();
  const Intake sum = parts_.votes->take();
  parts_.stream.synchronize();
  if (!count || sum.inboxes.empty()) return;
  const ConstBlock votes = sum.inboxes.front().block;
  grid_ =
      votes.dtype == DType::kFloat64 ? result_of(votes.as<double>()) : result_of(votes.as<float>());
}

void GridLane::vote(std::int64_t measured_with) {
  parts_.stream.run([stats = stats_, vote = vote_, measured_with] {
    *vote = vote_for(static_cast<double>(stats->take_largest()), measured_with);
  });
  send_ballot();
}

void GridLane::send_ballot() {
  parts_.stream.run([vote = vote_, ballot = ballot_.block()] {
    if (ballot.dtype == DType::kFloat64) return mark_vote(ballot.as<double>(), *vote);
    mark_vote(ballot.as<float>(), *vote);
  });
  parts_.votes->start(window_, ballot_);
  votes_are_under_way_ = true;
}

std::optional<GridState> GridLane::state() const {
  return GridState{.grid = grid_,
                   .vote = votes_count_ ? *vote_ : kVeto,
                   .largest = static_cast<double>(stats_->largest())};
}

void GridLane::restore(const GridState& state) {
  grid_ = state.grid;
  *vote_ = state.vote;
  votes_are_under_way_ = false;
  votes_count_ = true;
  static_cast<void>(stats_->take_largest());
  stats_->add(static_cast<float>(state.largest), 0);
  is_restored_ = true;
}

}  // namespace gossamer
