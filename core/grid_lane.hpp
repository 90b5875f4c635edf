#pragma once
// A lane for a codec that needs a grid (Codec::needs_grid()). All ranks must use the same grid in a
// round, and the grid should be as fine as the differences between the ranks allow. A GridLane
// measures the differences that its rounds mix in. The rounds form windows of kWindow rounds. At
// the beginning of a window all ranks vote, and the result counts from the next window on:
//
//   window w        every rank measures the largest difference between its values and its peers'
//   window w + 1    every rank has voted for the finest grid with room for 4 times this difference;
//                   the votes travel
//   window w + 2    all ranks use the coarsest grid that one of them has voted for
//
// A window has no grid, and its rounds send plain blocks, if the votes name none: in the first two
// windows, after a window in which all ranks were equal, and after one in which a difference may
// have left the range of its grid. So the ranks never decode with a grid that they have not
// measured. forget() gives up the grid and the votes under way, because other code may have moved
// the ranks apart.
//
// Every decision follows from the number of the round and the sum of the votes, so all ranks decide
// alike.
//
// Protocol and errors: lane.hpp. Not thread safe.

#include <cstdint>
#include <memory>
#include <optional>

#include "base/buffer.hpp"
#include "base/stream.hpp"
#include "core/lane.hpp"
#include "optim/codec.hpp"

namespace gossamer {

class GridLane : public Lane {
 public:
  static constexpr std::int64_t kWindow = 8;

  struct Parts {
    std::unique_ptr<CodedLane> blocks;
    /// Carries the votes; of ballot_spec(), between the same ranks.
    std::unique_ptr<Lane> votes;
    /// Must outlive the lane, as must the counter.
    Stream& stream;
    /// Counts differences in the upper half of their grid's range (DifferenceRange::num_wide).
    std::int64_t& num_wide;
  };
  /// `spec`: of the blocks.
  GridLane(Parts parts, const LaneSpec& spec);
  /// The lane for the votes on the grids of lanes of `spec`.
  static LaneSpec ballot_spec(const LaneSpec& spec);

  void start(std::int64_t k, const Buffer& send) override;
  void wait() override { parts_.blocks->wait(); }
  void drain() override;
  Intake take() override;
  void forget() override;
  [[nodiscard]] std::optional<GridState> state() const override;
  void restore(const GridState& state) override;

 private:
  /// Decides on the grid of round k. Where a window begins, counts the votes and votes anew.
  void prepare(std::int64_t k);
  /// Sets the grid.
  void count_votes();
  /// `measured_with`: the grid of the window that has ended.
  void vote(std::int64_t measured_with);
  void send_ballot();

  Parts parts_;
  Buffer ballot_;
  std::shared_ptr<DifferenceStats> stats_ = std::make_shared<DifferenceStats>();
  /// What this rank has voted for; work on the stream writes it.
  std::shared_ptr<std::int64_t> vote_ = std::make_shared<std::int64_t>(GridState::kPlain);
  bool votes_are_under_way_ = false;
  /// False: the votes under way count for nothing.
  bool votes_count_ = true;
  /// An exponent, or GridState::kPlain.
  std::int64_t grid_ = GridState::kPlain;
  std::int64_t last_round_ = -1;
  std::int64_t window_ = 0;
  bool is_restored_ = false;
};

}  // namespace gossamer
