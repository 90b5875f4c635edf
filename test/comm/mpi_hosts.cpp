// Prints where every rank runs; run by mpi_hosts_test.sh on several hosts.

#include <cstdio>
#include <string>

#include "base/text.hpp"
#include "comm/launch.hpp"

namespace gossamer {
namespace {

int say_where(Communicator& communicator, const World& world) {
  const Placement& place = world.placement;
  const auto texts = communicator.all_gather(
      concat(place.local_rank, "/", place.local_world_size, ":", world.node_size));
  if (world.rank == 0) std::printf("%s\n", join(texts, " ").c_str());
  return 0;
}

}  // namespace
}  // namespace gossamer

int main() { return gossamer::launch("mpi", {.timeout_s = 60.0}, gossamer::say_where); }
