// Three ranks of which one does what the first argument says; run by rank_failure_test.sh, which
// checks how the job ends. A second argument marks the job's processes.

#include "test/comm/process_ranks.hpp"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "comm/backends.hpp"

namespace gossamer {
namespace {

constexpr auto kForever = std::chrono::seconds(60);

/// A few rounds in which every rank exchanges with both neighbours.
void go_round(Communicator& ring, int first, int last) {
  std::vector<float> mine(1'000, static_cast<float>(ring.rank()));
  std::vector<float> theirs(mine.size());
  for (int round = first; round < last; ++round) {
    // Lower pairs first on all ranks, so that nobody waits in a circle.
    for (const auto& [a, b] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{1, 2}}) {
      if (ring.rank() != a && ring.rank() != b) continue;
      const int peer = ring.rank() == a ? b : a;
      ring.exchange(peer, block_of(std::span(mine)), block_of(std::span(theirs)),
                    {.label = {.bucket = 0, .round = round}})
          .wait();
      if (theirs.front() != static_cast<float>(peer)) throw std::logic_error("wrong data");
    }
  }
}

void stop_until_somebody_continues() { std::raise(SIGSTOP); }

/// Stops this process; a child of it continues it a second later.
void stop_for_a_second() {
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    sleep(1);
    kill(self, SIGCONT);
    _exit(0);
  }
  std::raise(SIGSTOP);
  waitpid(child, nullptr, 0);
}

void last_rank_stops(Communicator& ring) {
  go_round(ring, 0, 5);
  if (ring.rank() == 2) stop_until_somebody_continues();
  go_round(ring, 5, 10);
}

void last_rank_is_killed(Communicator& ring) {
  go_round(ring, 0, 5);
  if (ring.rank() == 2) std::raise(SIGKILL);
  go_round(ring, 5, 10);
}

void last_rank_pauses(Communicator& ring) {
  go_round(ring, 0, 5);
  if (ring.rank() == 2) stop_for_a_second();
  go_round(ring, 5, 10);
}

/// Rank 2 is alive, but busy with something else for longer than the timeout.
void last_rank_is_late(Communicator& ring) {
  go_round(ring, 0, 5);
  if (ring.rank() == 2) std::this_thread::sleep_for(kForever);
  go_round(ring, 5, 10);
}

void last_rank_throws(Communicator& ring) {
  go_round(ring, 0, 5);
  if (ring.rank() == 2) throw DataError("torn file");
  try {
    ring.barrier();
  } catch (const CommError& error) {
    std::fprintf(stderr, "%s; ends with %d\n", error.what(), static_cast<int>(exit_code_of(error)));
    throw;
  }
}

/// The caller of rank 2 goes with its error while something is still received; what the operation
/// owns stays, so that rank 0's message, sent afterwards, lands in live memory.
void last_rank_throws_in_flight(Communicator& ring) {
  const Buffer mine(4'000, DType::kFloat32);
  const Buffer theirs(4'000, DType::kFloat32);
  Request request;
  const auto exchange = [&](int peer) {
    request = ring.exchange(peer, mine.block(), theirs.block(),
                            {.owner = both(mine.owner(), theirs.owner())});
  };
  if (ring.rank() == 2) exchange(0);
  ring.barrier();
  if (ring.rank() == 2) throw DataError("torn file");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  if (ring.rank() == 0) exchange(2);
  ring.barrier();
}

/// Rank 2 has ended its work, and waits for the others where all leave.
void last_rank_leaves(Communicator& ring) {
  go_round(ring, 0, 5);
  if (ring.rank() != 2) go_round(ring, 5, 10);
}

/// Rank 2 leaves, and the others go on without it for longer than it takes to miss somebody.
void last_rank_leaves_first(Communicator& ring) {
  const std::unique_ptr<Communicator> pair = ring.split(ring.rank() / 2);
  if (ring.rank() == 2) return;
  std::this_thread::sleep_for(std::chrono::seconds(6));
  std::vector<float> mine(3, 1.0F);
  std::vector<float> sum(3);
  pair->all_reduce_sum(block_of(std::span(mine)), block_of(std::span(sum)), {}).wait();
  if (sum.back() != 2.0F) throw std::logic_error("wrong data");
}

/// Rank 2 receives fewer elements than rank 0 sends.
void last_rank_has_another_size(Communicator& ring) {
  std::vector<float> mine(ring.rank() == 2 ? 4U : 5U);
  std::vector<float> theirs(mine.size());
  if (ring.rank() == 1) return;
  ring.exchange(2 - ring.rank(), block_of(std::span(mine)), block_of(std::span(theirs)),
                {.label = {.bucket = 3, .round = 8}})
      .wait();
  ring.barrier();
}

/// Sums of three megabytes, which take many messages.
void sum_rounds(Communicator& ring, int first, int last) {
  std::vector<float> mine(750'000, 1.0F);
  std::vector<float> sum(mine.size());
  for (int round = first; round < last; ++round) {
    ring.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(sum)),
                        {.label = {.what = "all-reduce", .bucket = 0, .round = round}})
        .wait();
    if (sum.back() != 3.0F) throw std::logic_error("wrong data");
  }
}

void last_rank_is_late_for_a_sum(Communicator& ring) {
  sum_rounds(ring, 0, 5);
  if (ring.rank() == 2) std::this_thread::sleep_for(kForever);
  sum_rounds(ring, 5, 10);
}

/// Rank 2 sums fewer elements. Its pieces are shorter.
void last_rank_sums_another_size(Communicator& ring) {
  std::vector<float> mine(ring.rank() == 2 ? 12'000U : 15'000U);
  std::vector<float> sum(mine.size());
  ring.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(sum)),
                      {.label = {.what = "all-reduce", .bucket = 0, .round = 4}})
      .wait();
  ring.barrier();
}

/// Rank 2 stops somewhere in a sum.
void last_rank_stops_in_a_sum(Communicator& ring) {
  std::thread stopping;
  if (ring.rank() == 2) {
    stopping = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      stop_until_somebody_continues();
    });
  }
  sum_rounds(ring, 0, 100'000);
  if (stopping.joinable()) stopping.join();
}

/// The others wait for a counter in the memory of a rank that has stopped.
void last_rank_stops_before_its_counter(Communicator& ring) {
  const std::vector<Buffer> parts = ring.shared_memory()->allocate(sizeof(Counter));
  if (ring.rank() == 2) stop_until_somebody_continues();
  auto* const counter = std::launder(static_cast<Counter*>(parts[2].block().data));
  ring.shared_memory()
      ->wait_signals({{.peer = 2, .counter = counter, .least = 1}},
                     {.label = {.bucket = 0, .round = 7}, .owner = parts[2].owner()})
      .wait();
}

void nobody_does_anything(Communicator&) {}

struct Mode {
  std::string_view name;
  void (*body)(Communicator& ring);
  LaunchOptions options = {.timeout_s = 2.0};
};

const LaunchOptions kRing = {.timeout_s = 1.0, .least_ring_bytes = 0};

const std::array kModes = {
    Mode{"stops", last_rank_stops},
    Mode{"is-killed", last_rank_is_killed, {.timeout_s = 60.0}},
    Mode{"pauses", last_rank_pauses},
    Mode{"is-late", last_rank_is_late},
    Mode{"stops-before-its-counter", last_rank_stops_before_its_counter},
    Mode{"throws", last_rank_throws, {.timeout_s = 60.0}},
    Mode{"throws-in-flight", last_rank_throws_in_flight, {.timeout_s = 60.0}},
    Mode{"leaves", last_rank_leaves, {.timeout_s = 60.0}},
    Mode{"leaves-first", last_rank_leaves_first, {.timeout_s = 60.0}},
    Mode{"has-another-size", last_rank_has_another_size, {.timeout_s = 60.0}},
    Mode{"sums-another-size", last_rank_sums_another_size, kRing},
    Mode{"is-late-for-a-sum", last_rank_is_late_for_a_sum, kRing},
    Mode{"stops-in-a-sum", last_rank_stops_in_a_sum, kRing},
    Mode{"wrong-ranks", nobody_does_anything, {.num_ranks = 4}},
    Mode{"wrong-nodes", nobody_does_anything, {.node_size = 2}},
};

}  // namespace

int run_mode(std::string_view name) {
  for (const Mode& mode : kModes) {
    if (mode.name != name) continue;
    return launch_process(mode.options, [&mode](Communicator& ring, const World&) {
      mode.body(ring);
      return 0;
    });
  }
  std::fprintf(stderr, "there is no mode %s\n", std::string(name).c_str());
  return 1;
}

}  // namespace gossamer

int main(int argc, char** argv) { return gossamer::run_mode(argc > 1 ? argv[1] : ""); }
