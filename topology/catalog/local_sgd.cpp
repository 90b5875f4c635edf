// Ranks sit out a number of rounds, then all average. Source: local SGD, Stich, "Local SGD
// converges fast and communicates little", ICLR 2019; with H = sit_out + 1 steps between averages.

#include <numeric>
#include <utility>

#include "base/options.hpp"
#include "topology/registry.hpp"
#include "topology/topology_options.hpp"

namespace gossamer {
namespace {

class LocalSgd final : public Topology {
 public:
  LocalSgd(int world_size, std::int64_t sit_out) : sit_out_(sit_out) {
    std::vector<int> everybody(static_cast<std::size_t>(world_size));
    std::iota(everybody.begin(), everybody.end(), 0);
    average_ = complete_round({averaging_edge(std::move(everybody))}, world_size);
    rest_ = complete_round({}, world_size);
  }

  [[nodiscard]] std::string name() const override { return "local-sgd"; }
  [[nodiscard]] std::optional<std::int64_t> period() const override { return sit_out_ + 1; }
  [[nodiscard]] Round round(std::int64_t k) const override {
    require_round_number(k);
    return k % (sit_out_ + 1) == sit_out_ ? average_ : rest_;
  }

 private:
  std::int64_t sit_out_;
  Round average_;
  Round rest_;
};

}  // namespace

std::unique_ptr<Topology> make_local_sgd(const World& world, const Options& options,
                                         std::span<const TopologyEntry> /*own*/) {
  return std::make_unique<LocalSgd>(world.size, options.read(local_sgd::kSitOut));
}

}  // namespace gossamer
