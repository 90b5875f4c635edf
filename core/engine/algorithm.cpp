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

void AlgorithmContext::update(Bucket& bucket, const UpdateContext& context) {
  {
    const ScopedTimer timer(metrics.update_s);
    bucket.update(optimizer, context);
  }
  if (after_update) after_update(bucket);
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
