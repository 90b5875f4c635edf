// NCCL among processes: the conformance suite and the whole pipeline, one rank per GPU, or several
// ranks on each where there are fewer. NCCL refuses two ranks of one host on one GPU, so these say
// that they are different hosts (NCCL_HOSTID) and talk over sockets. Run by mpirun or test_tcp_run.
// Prints what communicators cost. Exit code 77, which ctest takes as skipped, where there is no
// GPU, no NCCL, or an NCCL that wants a GPU for every rank. Any other failure of NCCL fails the
// test.

#include "test/comm/conformance.hpp"
#include "test/comm/process_ranks.hpp"
#include "test/core/expected.hpp"
#include "test/gpu/nccl_or_null.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "base/text.hpp"
#include "comm/nccl/communicator.hpp"
#include "comm/nccl/library.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

constexpr int kSkipped = 77;

/// Time and the GPU's memory since it was made, which other ranks of the GPU use as well.
class Cost {
 public:
  [[nodiscard]] std::string text() const {
    const std::chrono::duration<double, std::milli> elapsed = Clock::now() - begin_;
    const double used = static_cast<double>(free_) - static_cast<double>(free_bytes());
    return std::to_string(elapsed.count()) + " ms, " + std::to_string(used / (1 << 20)) +
           " MiB of this GPU";
  }

 private:
  using Clock = std::chrono::steady_clock;
  static std::size_t free_bytes() {
    std::size_t free = 0;
    std::size_t total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free : 0;
  }

  std::size_t free_ = free_bytes();
  Clock::time_point begin_ = Clock::now();
};

void say(const Communicator& communicator, const std::string& line) {
  if (communicator.rank() == 0) std::printf("%s\n", line.c_str());
}

struct NcclDevice {
  Communicator& wires;
  Stream& compute;
  [[nodiscard]] Communicator& communicator() const { return wires; }
  [[nodiscard]] Stream* stream() const { return &compute; }
};

/// This rank's part of the problem. Throws std::runtime_error if its parameters leave the
/// recursion.
void train(const Problem& problem, NcclDevice device, const std::string& name) {
  const Trajectory expected = expected_trajectory(problem);
  const int rank = device.wires.rank();
  ToyModel model = model_on(problem, device);
  for (int step = 0; step < problem.num_steps; ++step) {
    train_step(problem, model, rank, step);
    const std::vector<double> values = model.values();
    const auto& right = expected[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)];
    const double error = largest_difference({{values}}, {{right}});
    if (error <= 1e-5) continue;
    throw std::runtime_error(concat(name, ", step ", step, ": off by ", error));
  }
  model.pipeline().drain();
}

/// Every kind of round, with a clipping factor and without, and gradients that are summed.
void follow_recursions(Communicator& wires, Device device, int node_size) {
  const std::unique_ptr<Stream> compute = make_stream(device);
  const World world{.size = wires.size(), .node_size = node_size};
  for (const char* name :
       {"ring", "one-peer-exp", "complete", "static-exp", "directed-one-peer-exp"}) {
    for (const ClipMode mode : {ClipMode::kNone, ClipMode::kDelayedGlobal}) {
      Problem problem;
      problem.num_ranks = world.size;
      problem.topology = make_topology(name, world);
      problem.rule = {.type = "accum_adamw", .eps = 1e-3, .accum_iter = 2};
      problem.lr = 0.02;
      problem.dtype = DType::kFloat32;
      problem.gradients = {.clip_mode = mode, .clip_norm = 0.6};
      train(problem, {wires, *compute}, name);
    }
    say(wires, concat("the pipeline on ", name, " holds"));
  }
  Problem problem;
  problem.num_ranks = world.size;
  problem.algorithm = "allreduce";
  problem.dtype = DType::kFloat32;
  train(problem, {wires, *compute}, "allreduce");
  say(wires, "the pipeline with allreduce holds");
}

int run_rank(Communicator& host, const World& world) {
  const int count = num_gpus();
  if (count == 0) {
    say(host, "skipped: this machine has no GPU, or no driver for it");
    return kSkipped;
  }
  const bool shares = world.placement.local_world_size > count;
  if (shares) {
    setenv("NCCL_HOSTID", ("gossamer-" + std::to_string(world.rank)).c_str(), 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  }
  const std::unique_ptr<NcclApi> nccl = nccl_or_null();
  if (nccl == nullptr) {
    say(host, "skipped: the loader finds no libnccl.so.2, or this build has no NCCL");
    return kSkipped;
  }
  const std::shared_ptr<Stream> stream =
      make_stream({DeviceType::kCuda, world.placement.local_rank % count});
  stream->enter();
  host.barrier();
  const Cost first_cost;
  std::unique_ptr<Communicator> communicator;
  try {
    communicator = make_nccl_communicator(*nccl, host, stream, {60.0});
  } catch (const CommError& error) {
    // Some versions of NCCL see through the host names and refuse ranks that share a GPU.
    const bool refuses = error.reason().find("Duplicate GPU") != std::string::npos;
    if (!shares || !refuses) throw;
    std::fprintf(stderr, "rank %d: skipped: NCCL %s refuses: %s\n", host.rank(),
                 nccl->version().c_str(), error.what());
    return kSkipped;
  }
  say(host, "first communicator of " + std::to_string(host.size()) + ": " + first_cost.text());
  for (const ConformanceCase& test : conformance_cases()) {
    try {
      test.body(*communicator);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", test.name.data(), error.what());
      throw;
    }
    stream->synchronize();
    communicator->check();
    communicator->barrier();
    say(host, std::string(test.name) + " holds");
  }
  follow_recursions(*communicator, stream->device(), world.node_size);
  std::vector<std::unique_ptr<Communicator>> more;
  const Buffer number = stream->allocate(1, DType::kFloat32);
  const Buffer sum = stream->allocate(1, DType::kFloat32);
  for (int i = 0; i < 4; ++i) {
    host.barrier();
    const Cost cost;
    more.push_back(communicator->split(0));
    // NCCL connects and allocates with the first operation.
    more.back()->all_reduce_sum(number.block(), sum.block(), {}).wait();
    say(host, "further communicator of all: " + cost.text());
  }
  stream->synchronize();
  communicator->close();
  return 0;
}

}  // namespace
}  // namespace gossamer

int main() { return gossamer::launch_process({.timeout_s = 60.0}, gossamer::run_rank); }
