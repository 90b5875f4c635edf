#include "core/exchange/grid_lane.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

// A ballot has one element for every exponent, and a last one for vetoes.
constexpr std::int64_t kBallotSize = GridState::kVeto - GridState::kLeastExponent + 1;
/// Room for differences to grow between a measurement and its use, as a factor. With few steps the
/// factor must be small. At 4, differences of a single step would keep a grid of 7 steps as it is.
/// Rounding makes differences of a step wherever values differ at all.
double headroom(std::int32_t most_steps) { return most_steps < 32 ? 1.75 : 4.0; }
constexpr float kInfinite = std::numeric_limits<float>::infinity();

std::int64_t vote_for(double largest, std::int32_t most_steps) {
  if (largest == 0.0) return GridState::kNone;
  const double finest = std::ceil(std::log2(headroom(most_steps) * largest / most_steps));
  if (!(finest <= static_cast<double>(GridState::kMostExponent))) return GridState::kVeto;
  return std::max(static_cast<std::int64_t>(finest), GridState::kLeastExponent);
}

template <class T>
void mark_vote(std::span<T> ballot, std::int64_t vote) {
  std::ranges::fill(ballot, T{0});
  if (vote == GridState::kNone) return;
  ballot[static_cast<std::size_t>(vote - GridState::kLeastExponent)] = T{1};
}

/// A veto, else the coarsest grid of all votes; kNone if all ranks abstain.
template <class T>
std::int64_t result_of(std::span<const T> sum) {
  std::int64_t result = GridState::kNone;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if (sum[i] > T{0}) result = static_cast<std::int64_t>(i) + GridState::kLeastExponent;
  }
  return result;
}

/// Shows the visitor a state once for each name, because saved state does not depend on buckets.
/// Returns what has been loaded for all of them together; null: nothing.
std::optional<GridState> visit_grids(StateVisitor& visitor, std::span<const std::string> names,
                                     const GridState& own) {
  std::optional<GridState> found;
  for (const std::string& name : names) {
    const std::string exponent = concat(name, "_grid");
    if (visitor.loads() && !visitor.holds(exponent)) continue;
    GridState state = own;
    visitor.number(exponent, state.exponent);
    visitor.number(concat(name, "_vote"), state.vote);
    visitor.number(concat(name, "_largest_difference"), state.largest);
    visitor.number(concat(name, "_most_steps"), state.most_steps);
    found = found ? found->together(state) : state;
  }
  return found;
}

}  // namespace

std::shared_ptr<NextGrid> first_grid(const Codec* codec) {
  auto first = std::make_shared<NextGrid>();
  if (codec != nullptr && !codec->needs_grid()) first->grid = Grid();
  return first;
}

LaneSpec GridLane::votes_of(const LaneSpec& spec) {
  return {.members = LaneMembers::kAll,
          .result = LaneResult::kSum,
          .bucket = spec.bucket,
          .numel = kBallotSize,
          .dtype = spec.dtype,
          .content = "votes"};
}

GridLane::GridLane(Parts parts, const LaneSpec& spec)
    : parts_(std::move(parts)),
      window_size_(spec.is_rare ? kRareWindow : kWindow),
      ballot_(parts_.stream.allocate(kBallotSize, spec.dtype)),
      written_ballot_(parts_.stream.allocate_host(kBallotSize, spec.dtype)),
      read_votes_(parts_.stream.allocate_host(kBallotSize, spec.dtype)),
      stats_(std::make_shared<DifferenceStats>(parts_.stream)) {}

void GridLane::start(std::int64_t k, const Buffer& send) {
  if (std::exchange(is_restored_, false)) {
    window_ = k / window_size_;
    if (window_ > 0) send_ballot();
  }
  prepare(k);
  last_round_ = k;
  parts_.blocks->start(k, send);
}

Intake GridLane::take() {
  // The update that follows encodes for the next round.
  prepare(last_round_ + 1);
  const bool is_last_of_window = (last_round_ + 2) % window_size_ == 0;
  if (is_last_of_window) fetch_votes();
  return parts_.blocks->take();
}

void GridLane::drain() {
  parts_.blocks->drain();
  parts_.votes->drain();
  collect(parts_.stream, stats_);
  wait_for_stream();
  parts_.num_wide += stats_->take_num_wide();
}

void GridLane::wait_for_stream() {
  if (const EventPtr done = parts_.stream.record()) done->wait();
}

void GridLane::forget() {
  parts_.blocks->forget();
  distrust();
}

void GridLane::distrust() {
  parts_.stream.run([stats = stats_] { stats->add(kInfinite, 0); });
}

void GridLane::prepare(std::int64_t k) {
  if (k / window_size_ != window_) {
    window_ = k / window_size_;
    count_votes();
    vote();
    parts_.num_wide += stats_->take_num_wide();
  }
  std::optional<Grid> grid;
  if (exponent_ != GridState::kNone) {
    grid = Grid{.exponent = static_cast<int>(exponent_), .seed = static_cast<std::uint64_t>(k)};
  }
  *parts_.next = {.grid = grid, .stats = stats_};
}

void GridLane::fetch_votes() {
  if (!std::exchange(votes_are_under_way_, false)) return;
  parts_.votes->wait();
  const Intake sum = parts_.votes->take();
  if (sum.inboxes.empty()) return;
  parts_.stream.copy(read_votes_.block(), sum.inboxes.front().block);
  votes_are_fetched_ = true;
  fetched_ = parts_.stream.record();
}

void GridLane::count_votes() {
  fetch_votes();
  if (!std::exchange(votes_are_fetched_, false)) return;
  if (fetched_) fetched_->wait();
  parts_.stream.check();
  const ConstBlock votes = read_votes_.block();
  const std::int64_t result =
      votes.dtype == DType::kFloat64 ? result_of(votes.as<double>()) : result_of(votes.as<float>());
  if (result == GridState::kNone) return;
  if (result != GridState::kVeto) {
    exponent_ = result;
  } else if (std::exchange(exponent_, GridState::kNone) != GridState::kNone) {
    distrust();
  }
}

void GridLane::vote() {
  collect(parts_.stream, stats_);
  parts_.stream.run([stats = stats_, vote = vote_, most_steps = parts_.codec.most_steps()] {
    *vote = vote_for(static_cast<double>(stats->take_largest()), most_steps);
  });
  send_ballot();
}

void GridLane::send_ballot() {
  parts_.stream.run([vote = vote_, ballot = written_ballot_.block()] {
    if (ballot.dtype == DType::kFloat64) return mark_vote(ballot.as<double>(), *vote);
    mark_vote(ballot.as<float>(), *vote);
  });
  parts_.stream.copy(ballot_.block(), written_ballot_.block());
  parts_.votes->start(window_, ballot_);
  votes_are_under_way_ = true;
}

GridState GridLane::state() const {
  return {.exponent = exponent_,
          .vote = *vote_,
          .largest = static_cast<double>(stats_->largest()),
          .most_steps = parts_.codec.most_steps()};
}

void GridLane::visit(StateVisitor& visitor, std::span<const std::string> names) {
  const std::optional<GridState> found = visit_grids(visitor, names, state());
  if (!visitor.loads()) return;
  const bool fits = found && found->most_steps == parts_.codec.most_steps();
  restore(fits ? *found : GridState());
}

void GridLane::skip_state(StateVisitor& visitor, std::span<const std::string> names) {
  if (visitor.loads()) visit_grids(visitor, names, {});
}

void GridLane::restore(const GridState& state) {
  if (!state.is_valid()) {
    throw CheckpointError(concat("a grid of exponent ", state.exponent, ", a vote for ", state.vote,
                                 " and a largest difference of ", state.largest,
                                 " cannot be; the checkpoint is damaged"));
  }
  // Its work may still add to the statistics.
  wait_for_stream();
  exponent_ = state.exponent;
  *vote_ = state.vote;
  votes_are_under_way_ = false;
  votes_are_fetched_ = false;
  static_cast<void>(stats_->take_largest());
  stats_->add(rounded_to_float(state.largest), 0);
  *parts_.next = {.stats = stats_};
  is_restored_ = true;
}

}  // namespace gossamer
