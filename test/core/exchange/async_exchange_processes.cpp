// Exchanges between processes: random delays, and a rank that the system stops for five seconds.

#include "test/comm/process_ranks.hpp"
#include "test/core/exchange/async_exchange_runs.hpp"

#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "comm/backends.hpp"

namespace gossamer {
namespace {

void keeps_mass(Communicator& communicator) {
  for (const char* name : {"static-exp", "directed-one-peer-exp", "directed-ring", "ring"}) {
    for (std::int64_t max_age = 1; max_age <= 8; ++max_age) {
      const AsyncExchangeRun run{.topology = async_topology(name, communicator.size()),
                                 .max_age = max_age,
                                 .num_steps = 60,
                                 .seed = static_cast<std::uint64_t>(max_age)};
      require_sound(run_async_exchanges(communicator, run), run,
                    std::string(name) + ", bound " + std::to_string(max_age));
    }
  }
}

/// Stops this process; a child wakes it up again.
void stop_for(unsigned seconds) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork() has failed");
  if (child == 0) {
    sleep(seconds);
    kill(parent, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
  waitpid(child, nullptr, 0);
}

/// The other ranks go on until the last message of the stopped rank is as old as allowed, wait, and
/// go on when it comes back.
void outlives_a_stop(Communicator& communicator) {
  constexpr std::int64_t kMaxAge = 4;
  const AsyncExchangeRun run{.topology = async_topology("directed-ring", communicator.size()),
                             .max_age = kMaxAge,
                             .num_steps = 100,
                             .before_step = [&communicator](int step) {
                               if (communicator.rank() == 1 && step == 50) stop_for(5);
                             }};
  const AsyncExchangeOutcome outcome = run_async_exchanges(communicator, run);
  require_sound(outcome, run, "a rank that stops");
  if (outcome.largest_age != kMaxAge) {
    throw std::runtime_error("nobody has gone on while a rank was stopped");
  }
}

int run_rank(Communicator& communicator, const World&) {
  try {
    keeps_mass(communicator);
    outlives_a_stop(communicator);
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    throw;
  }
  return 0;
}

}  // namespace
}  // namespace gossamer

int main() {
  using namespace gossamer;
  return launch_process({.timeout_s = 60.0}, run_rank);
}
