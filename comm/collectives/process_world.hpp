#pragma once
// The common part of the backends whose ranks are processes: the world, and the memory of a host.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.hpp"
#include "base/log.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "comm/options.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {

/// `hosts`: see placement.hpp. Rank 0 warns of hosts with different numbers of ranks.
World world_on(std::span<const int> hosts, int rank, const LaunchOptions& options,
               const Logger& logger);

/// A communicator that knows the host of every rank.
class ProcessCommunicator : public Communicator, protected SharedMemory {
 public:
  SharedMemory* shared_memory() override { return this; }

 protected:
  std::vector<Buffer> allocate(std::int64_t bytes) override;
  [[nodiscard]] std::int64_t num_on_host() const override;
  /// The host of every world rank, as a number (placement.hpp).
  [[nodiscard]] virtual const std::vector<int>& hosts() const = 0;

 private:
  /// Says for every member whether it runs on this member's host.
  [[nodiscard]] std::vector<bool> who_is_near() const;
};

/// Runs `call` on the progress worker.
std::unique_ptr<Operation> make_call(std::function<void()> call);

}  // namespace gossamer
