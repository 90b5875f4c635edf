// Prints where every rank runs, and sums a block that is large enough for the ring between hosts.
// Run by mpi_hosts_test.sh on several hosts.

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "comm/backends.hpp"

namespace gossamer {
namespace {

/// Small whole numbers, so that every order of adding gives the same sum.
void check_sum(Communicator& communicator) {
  const auto value = [](int rank, std::size_t i) {
    return static_cast<double>((static_cast<std::size_t>(rank) + 3) * (i % 1000));
  };
  std::vector<double> own(300'001);
  std::vector<double> sum(own.size());
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = value(communicator.rank(), i);
  const auto block = [](std::vector<double>& values) {
    return Block{.data = values.data(), .numel = std::ssize(values), .dtype = DType::kFloat64};
  };
  communicator.all_reduce_sum(block(own), block(sum), {.label = {.what = "all-reduce"}}).wait();
  for (std::size_t i = 0; i < own.size(); ++i) {
    double expected = 0.0;
    for (int rank = 0; rank < communicator.size(); ++rank) expected += value(rank, i);
    if (sum[i] != expected) throw std::logic_error(concat("element ", i, " of the sum is wrong"));
  }
}

int say_where(Communicator& communicator, const World& world) {
  const Placement& place = world.placement;
  const auto texts = communicator.all_gather(
      concat(place.local_rank, "/", place.local_world_size, ":", world.node_size));
  check_sum(communicator);
  if (world.rank == 0) std::printf("%s\n", join(texts, " ").c_str());
  return 0;
}

}  // namespace
}  // namespace gossamer

int main() { return gossamer::launch("mpi", {.timeout_s = 60.0}, gossamer::say_where); }
