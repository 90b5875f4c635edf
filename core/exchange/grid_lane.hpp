#pragma once
// A lane for a codec that needs a grid (Codec::needs_grid()). All ranks must use the same grid in a
// round, and the grid should be as fine as the differences between the ranks allow. A GridLane
// measures the differences that its rounds mix in. The rounds form windows of kWindow rounds, or of
// kRareWindow where a round comes every few steps only (LaneSpec::is_rare). At the beginning of a
// window all ranks vote, and the result counts from the next window on:
//
//   window w        Every rank measures the largest difference to its peers.
//   window w + 1    Every rank has voted for the finest grid with room for 4 times this difference
//                   (with few steps 1.75 times). The votes travel.
//   window w + 2    All ranks use the coarsest grid that one of them has voted for.
//
// The update of a window's last round comes after the vote, so it belongs to the next measurement.
//
// Rounds without a grid send plain blocks: the rounds of the first two windows, and the rounds
// after a veto. A rank vetoes all grids for one of three reasons. A difference has reached the end
// of its range, or is not a number. Or forget() was called, because other code may have moved the
// ranks apart. A veto takes effect two windows later. Until then the ranks measure with the refused
// grid, so every veto is cast twice. A difference far beyond the range may look small and pass
// unseen. The mean of all ranks stays exact even then.
//
// A rank that has measured nothing, or only equal values, abstains. If all ranks abstain, the grid
// stays as it is, so exchanges may be rare.
//
// Every decision follows from the number of the round and the sum of the votes, so all ranks decide
// alike, even if one rank alone calls forget().
//
// A stream that lags behind never stops for a vote. Work on the stream writes the ballot. Before
// the last round of a window, the stream gets the copy of the votes to host memory, and the caller
// waits for this copy when the next window begins.
//
// Protocol and errors: lane.hpp. Not thread safe.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/buffer.hpp"
#include "base/stream.hpp"
#include "core/exchange/lane.hpp"
#include "optim/codec.hpp"

namespace gossamer {

/// The state that a GridLane needs to go on after loading.
struct GridState {
  /// This number is less than all exponents. As a grid it means that blocks are sent as they are,
  /// and as a vote that the rank abstains.
  static constexpr std::int64_t kNone = -1000;
  static constexpr std::int64_t kLeastExponent = -60;
  static constexpr std::int64_t kMostExponent = 40;
  /// A vote against all grids.
  static constexpr std::int64_t kVeto = kMostExponent + 1;

  /// The exponent of the window's grid, or kNone.
  std::int64_t exponent = kNone;
  /// The vote of this rank at the beginning of the window: an exponent, kNone or kVeto.
  std::int64_t vote = kNone;
  /// The largest difference that this rank has seen in the window. Infinite: one has left the range
  /// of its grid, or is not known.
  double largest = 0.0;
  /// MixingCodec::most_steps() of the codec; grids of another codec have no use.
  std::int64_t most_steps = 127;

  [[nodiscard]] bool is_valid() const {
    const auto is_exponent = [](std::int64_t value) {
      return value >= kLeastExponent && value <= kMostExponent;
    };
    return (exponent == kNone || is_exponent(exponent)) &&
           (vote == kNone || vote == kVeto || is_exponent(vote)) && largest >= 0.0;
  }
  /// The state of a block whose parts were in lanes of their own; it is safe for both parts.
  [[nodiscard]] GridState together(const GridState& other) const {
    const bool is_plain = exponent == kNone || other.exponent == kNone;
    return {.exponent = is_plain ? kNone : std::max(exponent, other.exponent),
            .vote = std::max(vote, other.vote),
            .largest = std::max(largest, other.largest),
            .most_steps = most_steps};
  }
};

/// The grid of the next round of a lane of encoded blocks. A GridLane sets it before it starts the
/// round, and before the update that encodes for the round.
struct NextGrid {
  /// Null: the next start() sends a plain block.
  std::optional<Grid> grid = {};
  /// The update that mixes in the next round adds its differences; null: differences are not
  /// measured.
  std::shared_ptr<DifferenceStats> stats = {};
};

/// The grid of the first round. A codec without needs_grid() ignores grids, so it gets one from the
/// beginning. Null: blocks are plain.
std::shared_ptr<NextGrid> first_grid(const Codec* codec);

class GridLane : public Lane {
 public:
  static constexpr std::int64_t kWindow = 8;
  static constexpr std::int64_t kRareWindow = 2;

  struct Parts {
    std::unique_ptr<Lane> blocks;
    /// The lane of the blocks reads it.
    std::shared_ptr<NextGrid> next;
    /// The codec of the blocks.
    const MixingCodec& codec;
    /// A lane of votes_of() between the same ranks.
    std::unique_ptr<Lane> votes;
    /// Must outlive the lane, as must the counter.
    Stream& stream;
    /// Counts differences in the upper half of their grid's range (DifferenceRange::num_wide). On a
    /// GPU the counter may lag a window behind until drain().
    std::int64_t& num_wide;
  };
  /// `spec`: of the blocks.
  GridLane(Parts parts, const LaneSpec& spec);
  /// The spec of the lane that carries the votes.
  static LaneSpec votes_of(const LaneSpec& spec);
  /// Drops saved grids, for a lane without grids: a run that continues with another codec has no
  /// use for the grids of the codec before.
  static void skip_state(StateVisitor& visitor, std::span<const std::string> names);

  void start(std::int64_t k, const Buffer& send) override;
  void wait() override { parts_.blocks->wait(); }
  void drain() override;
  Intake take() override;
  void forget() override;
  /// A run that goes on with another codec begins without grids.
  void visit(StateVisitor& visitor, std::span<const std::string> names) override;
  [[nodiscard]] GridState state() const;
  void restore(const GridState& state);

 private:
  /// Decides on the grid of round k. Where a window begins, counts the votes and votes anew.
  void prepare(std::int64_t k);
  /// Copies the sum of the votes to host memory, as work on the stream.
  void fetch_votes();
  void count_votes();
  void vote();
  void send_ballot();
  /// The next vote is a veto.
  void distrust();
  void wait_for_stream();

  Parts parts_;
  std::int64_t window_size_;
  /// The ballot that the votes' lane sends.
  Buffer ballot_;
  /// The ballot as work on the stream writes it, and the sum of all ballots, in host memory.
  Buffer written_ballot_;
  Buffer read_votes_;
  std::shared_ptr<DifferenceStats> stats_;
  /// The vote of this rank; work on the stream writes it.
  std::shared_ptr<std::int64_t> vote_ = std::make_shared<std::int64_t>(GridState::kNone);
  bool votes_are_under_way_ = false;
  /// True: read_votes_ holds the votes of the window once `fetched_` is done.
  bool votes_are_fetched_ = false;
  EventPtr fetched_;
  /// The exponent of the window's grid, or GridState::kNone.
  std::int64_t exponent_ = GridState::kNone;
  std::int64_t last_round_ = -1;
  std::int64_t window_ = 0;
  bool is_restored_ = false;
};

}  // namespace gossamer
