#include "optim/external_optimizer.hpp"

#include <utility>

#include "optim/cuda/sweep.hpp"

namespace gossamer {
namespace {

class MixingOptimizer : public OnePassOptimizer {
 public:
  [[nodiscard]] std::span<const std::string_view> state_names() const override { return {}; }
  [[nodiscard]] std::int64_t cycle() const override { return 1; }
  [[nodiscard]] bool has_rule() const override { return false; }
  [[nodiscard]] PassTraffic least_traffic(std::int64_t /*step*/, DType model) const override {
    const DType master = master_of(model);
    return {.read = size_of(master),
            .changed = size_of(master),
            .written = master == model ? 0 : size_of(model)};
  }
  void update(const ParameterUpdate& update) const override { mix(update); }
  void update_on_device(Stream& stream, std::span<const BlockUpdate> updates) const override {
    // The caller that applies the rule writes the rounded copies.
    std::vector<BlockUpdate> mixing(updates.begin(), updates.end());
    for (BlockUpdate& update : mixing) update.rounded = {};
    cuda_mix(stream, std::move(mixing));
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_mixing_optimizer() { return std::make_unique<MixingOptimizer>(); }

}  // namespace gossamer
