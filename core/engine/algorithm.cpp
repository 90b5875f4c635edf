#include "gossamer/core/engine/algorithm.hpp"

#include <array>

#include "gossamer/core/base/registry.hpp"

namespace gossamer {

std::unique_ptr<Algorithm> make_gossip(AlgorithmContext& context);
std::unique_ptr<Algorithm> make_all_reduce(AlgorithmContext& context);
std::unique_ptr<Algorithm> make_local(AlgorithmContext& context);

namespace {

constexpr std::array kTable = {
    AlgorithmEntry{"gossip", "mix parameters with the peers of a topology", true, make_gossip},
    AlgorithmEntry{"allreduce", "average all gradients in every step", false, make_all_reduce},
    AlgorithmEntry{"local", "no communication", false, make_local},
};

}  // namespace

void AlgorithmContext::inspect(Bucket& bucket, std::int64_t entry, const ConstBlock& gradient) {
  const ScopedTimer timer(metrics.update_s);
  const GradientStats stats = gradient_stats(gradient, simd, &pool);
  bucket.set_squares(entry, stats.squares);
  policy.accept(stats, bucket.name(entry), metrics.num_steps + 1);
}

void AlgorithmContext::update(Bucket& bucket, const Arrived& arrived, double mean_factor) {
  {
    const ScopedTimer timer(metrics.update_s);
    bucket.update(optimizer, {.lr = lr() * arrived.update_scale,
                              .gradient_scale = policy.factor(bucket.squares(), mean_factor),
                              .keep = arrived.keep,
                              .inboxes = arrived.inboxes,
                              .simd = simd,
                              .pool = &pool});
  }
  if (after_update) after_update(bucket);
}

void AlgorithmContext::update_deferred(Communicator* ranks,
                                       const std::function<void(Bucket&)>& update) {
  const bool skips = policy.settle(ranks, all_squares());
  for (Bucket& bucket : buckets) {
    if (skips) bucket.drop_gradients();
    update(bucket);
  }
}

double AlgorithmContext::all_squares() const {
  double sum = 0.0;
  for (const Bucket& bucket : buckets) sum += bucket.squares();
  return sum;
}

std::span<const AlgorithmEntry> algorithm_table() { return kTable; }

std::vector<std::string> algorithm_names() { return names_of(kTable); }

std::unique_ptr<Algorithm> make_algorithm(std::string_view name, AlgorithmContext& context) {
  const AlgorithmEntry& row = row_of(kTable, "algorithm", name);
  if (row.needs_topology && context.topology == nullptr) {
    throw ConfigError(concat("the algorithm ", name, " needs a topology"));
  }
  return row.make(context);
}

}  // namespace gossamer
