#pragma once
// Deals the training samples out to ranks. The result is the same on every rank for the same seed,
// so ranks exchange nothing. Any thread may call.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/random.hpp"

namespace gossamer::apps {

/// The sample indices of each rank. Shards are disjoint and equally large; samples that do not
/// divide evenly are left out. Without `dirichlet_alpha` the shards are independent and identically
/// distributed.
///
/// With `dirichlet_alpha`, every rank draws its own mixture of labels from Dirichlet(alpha * p)
/// (Hsu, Qi, Brown, 2019, arXiv:1909.06335). Here p are the shares of the labels in the whole set.
/// With a small alpha a rank sees only few labels. Other programs use the symmetric form
/// Dirichlet(a, ..., a); for balanced labels it is the same with alpha = a * number of labels. When
/// all samples of a label have been dealt out, the mixtures of the ranks still drawing go on
/// without this label.
///
/// Throws ConfigError when there are fewer samples than ranks, and unless alpha >= 1e-6.
std::vector<std::vector<std::int64_t>> shard_samples(std::span<const std::int64_t> labels,
                                                     int num_ranks, std::uint64_t seed,
                                                     std::optional<double> dirichlet_alpha);

/// A rank's shard in the order of an epoch. A change of the epoch needs no earlier one.
std::vector<std::int64_t> shuffled_shard(std::vector<std::int64_t> shard, std::uint64_t seed,
                                         int rank, std::int64_t epoch);

}  // namespace gossamer::apps
