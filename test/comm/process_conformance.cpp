// The conformance suite over a backend whose ranks are processes, and over staging on top of it;
// with the argument `ring`, over the backend that sums all blocks round a ring, as it does with
// large ones between hosts. Run by mpirun or test_tcp_run; MPI can be started only once per
// process, so all cases run within one launch. Exit code 0 when all hold on all ranks.

#include "test/comm/conformance.hpp"
#include "test/comm/process_ranks.hpp"
#include "test/support/thread_stream.hpp"

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "comm/backends.hpp"
#include "comm/collectives/staged_communicator.hpp"

namespace gossamer {
namespace {

void run_all(Communicator& communicator, const char* kind) {
  for (const ConformanceCase& test : conformance_cases()) {
    try {
      test.body(communicator);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s, %s: %s\n", kind, test.name.data(), error.what());
      throw;
    }
    communicator.barrier();
    if (communicator.rank() == 0) std::printf("%s holds, %s\n", test.name.data(), kind);
  }
}

/// The ranks of a host reach each other, and no other rank.
void reaches_the_host(Communicator& communicator) {
  std::array<char, 256> name = {};
  require(gethostname(name.data(), name.size() - 1) == 0, "a host without a name");
  const std::vector<std::string> hosts = communicator.all_gather(name.data());
  require_reached(communicator, [&](int member) {
    return hosts[static_cast<std::size_t>(member)] == name.data();
  });
}

int run_rank(Communicator& communicator, const World&) {
  reaches_the_host(communicator);
  run_all(communicator, "host");
  // Stands for a device: its memory is written by a thread that lags behind.
  const auto device = std::make_shared<ThreadStream>(Device{DeviceType::kCuda, 0});
  run_all(*make_staged_communicator(communicator, device, {.piece_bytes = 100'000}), "staged");
  run_all(*make_staged_communicator(communicator, device, {.direct_messages = true}), "direct");
  return 0;
}

int run_rank_in_ring(Communicator& communicator, const World&) {
  run_all(communicator, "all sums in a ring");
  return 0;
}

}  // namespace
}  // namespace gossamer

int main(int argc, char** argv) {
  using namespace gossamer;
  if (argc > 1 && std::string_view(argv[1]) == "ring") {
    return launch_process({.timeout_s = 60.0, .least_ring_bytes = 0}, run_rank_in_ring);
  }
  return launch_process({.timeout_s = 60.0}, run_rank);
}
