#include "core/algorithm.hpp"

#include <array>
#include <cmath>
#include <stdexcept>

#include "base/error.hpp"
#include "base/registry.hpp"
#include "base/text.hpp"

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

void AlgorithmContext::refuse(const GradientPlace& place, std::int64_t step, int culprit) {
  const std::string_view name = place.bucket.name(place.entry);
  const std::string what =
      culprit < 0
          ? concat("step ", step, ": the sum of all ranks' gradients of ", name,
                   " is not finite, though this rank's own is")
          : concat("rank ", culprit, ", step ", step, ": the gradient of ", name, " is not finite");
  throw NonFiniteError(concat(what,
                              "; try a smaller learning rate, clipping, or leave such steps out "
                              "with train.nonfinite: skip"));
}

bool AlgorithmContext::inspect(Bucket& bucket, std::int64_t entry, const ConstBlock& gradient) {
  if (!stream.immediate()) return true;
  const ScopedTimer timer(metrics.update_s);
  const Block squares = part_of(bucket.squares(), entry, 1);
  enqueue_squares(stream,
                  {.gradients = {gradient}, .squares = squares, .simd = simd, .pool = &pool});
  return !policy.aborts() || !std::isnan(squares.as<double>()[0]);
}

void AlgorithmContext::update(Bucket& bucket, const Arrived& arrived, double mean_factor) {
  {
    const ScopedTimer timer(metrics.update_s);
    if (!stream.immediate() && !policy.defers()) bucket.take_squares(simd, &pool);
    bucket.update(optimizer,
                  {.lr = lr() * arrived.update_scale,
                   .decision = policy.decide(bucket.index(), bucket.squares(), mean_factor),
                   .keep = arrived.keep,
                   .inboxes = arrived.inboxes,
                   .simd = simd,
                   .pool = &pool});
  }
  if (after_update) after_update(bucket);
}

void AlgorithmContext::update_deferred(Communicator* ranks,
                                       const std::function<void(Bucket&)>& update) {
  if (!stream.immediate()) {
    for (Bucket& bucket : buckets) bucket.take_squares(simd, &pool);
  }
  policy.settle(ranks);
  for (Bucket& bucket : buckets) update(bucket);
}

std::optional<AlgorithmContext::GradientPlace> AlgorithmContext::close_step() {
  const StepReport report = policy.take_report();
  if (report.skipped) {
    ++metrics.num_skipped;
    for (Bucket& bucket : buckets) bucket.take_back_update();
  }
  if (!policy.aborts() || report.nonfinite < 0) return std::nullopt;
  std::int64_t entry = report.nonfinite;
  for (const Bucket& bucket : buckets) {
    if (entry < bucket.num_entries()) return GradientPlace{bucket, entry};
    entry -= bucket.num_entries();
  }
  throw std::logic_error("AlgorithmContext: a squared norm of no gradient");
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
