#include "comm/collectives/process_world.hpp"

#include <algorithm>
#include <ranges>
#include <utility>
#include <vector>

#include "comm/collectives/placement.hpp"
#include "comm/collectives/shared_memory.hpp"

namespace gossamer {
namespace {

class Call : public Operation {
 public:
  explicit Call(std::function<void()> call) : call_(std::move(call)) {}
  void start() override { call_(); }
  bool test() override { return true; }
  [[nodiscard]] std::vector<int> waiting_for() const override { return {}; }

 private:
  std::function<void()> call_;
};

}  // namespace

World world_on(std::span<const int> hosts, int rank, const LaunchOptions& options,
               const Logger& logger) {
  const int fitting = node_size_of(hosts);
  const bool irregular = std::ranges::any_of(
      std::views::iota(0, static_cast<int>(hosts.size())),
      [&](int other) { return placement_of(hosts, other).local_world_size != fitting; });
  if (rank == 0 && options.node_size == 0 && irregular) {
    logger.warning(
        "hosts have different numbers of ranks, or ranks are not numbered host by host: topologies "
        "take every rank as a node of its own. To change that, start equally many ranks on each "
        "host, host by host (mpirun --map-by slot), or set comm.local_size");
  }
  return {.rank = rank,
          .size = static_cast<int>(hosts.size()),
          .node_size = options.node_size > 0 ? options.node_size : fitting,
          .placement = placement_of(hosts, rank)};
}

std::vector<bool> ProcessCommunicator::who_is_near() const {
  const auto host_of = [this](int rank) { return hosts()[static_cast<std::size_t>(rank)]; };
  const int own_host = host_of(own_world_rank(*this));
  std::vector<bool> is_near;
  for (const int rank : world_ranks()) is_near.push_back(host_of(rank) == own_host);
  return is_near;
}

std::vector<Buffer> ProcessCommunicator::allocate(std::int64_t bytes) {
  return share_between_processes(*this, bytes, who_is_near());
}

std::int64_t ProcessCommunicator::num_on_host() const {
  return std::ranges::count(who_is_near(), true);
}

std::unique_ptr<Operation> make_call(std::function<void()> call) {
  return std::make_unique<Call>(std::move(call));
}

}  // namespace gossamer
