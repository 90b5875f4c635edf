#pragma once
// Deals the training samples out in a run whose number of ranks or size of a batch changes. Every
// rank computes the same from the seed and the changes so far, so ranks exchange nothing. A rank
// that joins or continues from a checkpoint needs the changes alone.
//
// With one number of ranks each has its share of shard_samples(), shuffled anew in every epoch and
// cut into batches. At a change, the ranks that are there get what is left of the epoch, in equal
// shares: each sample that no rank has had in the steps before. A sample is used at most once in an
// epoch. The samples of incomplete batches are left out, as always. A rank that is lost takes along
// the samples of the steps that it has not made any more, up to the step of the change.
//
// The batches of a rank are numbered from 0 through the whole run. Not thread safe.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace gossamer::apps {

/// From this step on the run has so many ranks, and each of them takes so many samples.
struct WorldChange {
  std::int64_t step = 0;
  int num_ranks = 1;
  std::int64_t batch_size = 1;
  /// Batches of a step.
  std::int64_t accumulate = 1;

  bool operator==(const WorldChange&) const = default;
};

/// The changes as numbers, so many for each, for messages and checkpoints.
inline constexpr std::size_t kNumbersOfChange = 4;
std::vector<std::int64_t> numbers_of(const std::vector<WorldChange>& changes);
/// The changes from their numbers. Throws CheckpointError for numbers that no run has.
std::vector<WorldChange> changes_of(const std::vector<std::int64_t>& numbers);

class Dealer {
 public:
  struct Setup {
    /// The class of each sample; all alike where there are none.
    std::vector<std::int64_t> labels = {};
    std::uint64_t seed = 0;
    /// How unevenly labels are dealt out (shard_samples()). Every change draws new mixtures.
    std::optional<double> dirichlet_alpha = {};
  };

  /// `changes`: in the order of their steps; the first is of step 0. Of several at one step the
  /// last counts. Throws ConfigError as shard_samples(), and std::logic_error for changes that are
  /// none.
  Dealer(Setup setup, const std::vector<WorldChange>& changes);

  /// Goes on with other ranks or batches. `change.step` is not before the last change.
  void change(const WorldChange& change);

  /// Samples of a batch: as asked for, or a rank's whole share of an epoch where that is smaller.
  [[nodiscard]] std::int64_t batch_size() const;
  /// Batches of a whole epoch with the present number of ranks.
  [[nodiscard]] std::int64_t batches_per_epoch() const;
  /// The whole steps, from the beginning of the run, that so many epochs of the data have.
  [[nodiscard]] std::int64_t step_after(std::int64_t epochs) const;

  // Not before the last change.

  /// The number of a step's first batch.
  [[nodiscard]] std::int64_t first_batch_of(std::int64_t step) const {
    return first_batch_ + (step - now_.step) * now_.accumulate;
  }
  /// The epoch of the data, from 0, in which a batch is.
  [[nodiscard]] std::int64_t epoch_of(std::int64_t number) const;
  /// The sample indices of a rank's batch.
  [[nodiscard]] std::vector<std::int64_t> batch(int rank, std::int64_t number) const;

 private:
  using Shards = std::vector<std::vector<std::int64_t>>;

  /// Batches in which ranks go through an epoch, or through what is left of one.
  struct Part {
    std::int64_t first_batch = 0;
    std::int64_t epoch = 0;
    std::int64_t num_batches = 0;
    /// The rest of an epoch: all of its samples, and the share of each rank.
    struct Rest {
      std::vector<std::int64_t> samples;
      Shards shards;
    };
    /// Null: the part is a whole epoch.
    std::shared_ptr<const Rest> rest = {};
  };

  [[nodiscard]] const Shards& shards() const;
  [[nodiscard]] Part whole(std::int64_t first_batch, std::int64_t epoch) const;
  /// The part that has this batch.
  [[nodiscard]] Part part_at(std::int64_t number) const;
  /// The samples of a rank, in the order of its batches.
  [[nodiscard]] std::vector<std::int64_t> order_of(const Part& part, int rank) const;
  /// The samples that no rank has had in the first batches of a part.
  [[nodiscard]] std::vector<std::int64_t> left_of(const Part& part, std::int64_t num_batches) const;
  /// Deals samples out to the present ranks.
  [[nodiscard]] Shards deal(const std::vector<std::int64_t>& samples, std::int64_t epoch) const;

  Setup setup_;
  /// The last change, and the number of its step's first batch.
  WorldChange now_;
  std::int64_t first_batch_ = 0;
  /// The part that begins there.
  Part part_;
  /// The shares of a whole epoch, by the number of ranks.
  mutable std::map<int, Shards> shards_;
  /// The order of the last batch(), with its rank and the first batch of its part.
  struct Cached {
    int rank = -1;
    std::int64_t first_batch = -1;
    std::vector<std::int64_t> order = {};
  };
  mutable Cached cached_;
};

}  // namespace gossamer::apps
