// The conformance suite over the MPI backend. Run by mpirun; MPI can be started only once per
// process, so all cases run within one launch. Exit code 0 when all hold on all ranks.

#include "comm/conformance.hpp"

#include <cstdio>
#include <exception>

#include "gossamer/comm/launch.hpp"

int main() {
  return gossamer::launch(
      "mpi", {.timeout_s = 60.0}, [](gossamer::Communicator& communicator, const gossamer::World&) {
        for (const gossamer::ConformanceCase& test : gossamer::conformance_cases()) {
          try {
            test.body(communicator);
          } catch (const std::exception& error) {
            std::fprintf(stderr, "%s: %s\n", test.name.data(), error.what());
            throw;
          }
          communicator.barrier();
          if (communicator.rank() == 0) std::printf("%s holds\n", test.name.data());
        }
        return 0;
      });
}
