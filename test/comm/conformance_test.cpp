// The conformance suite over the threads backend, and over staging on top of it.

#include "comm/conformance.hpp"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "gossamer/comm/direct_communicator.hpp"
#include "gossamer/comm/launch.hpp"
#include "gossamer/comm/staged_communicator.hpp"
#include "gossamer/core/base/host_stream.hpp"

namespace gossamer {
namespace {

class Conformance : public testing::TestWithParam<std::tuple<ConformanceCase, int>> {};

TEST_P(Conformance, HoldsForThreads) {
  const auto& [test, num_ranks] = GetParam();
  // A failure on one rank ends the others too; the exit code is that of a logic error.
  const int code = launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0},
                          [&body = test.body](Communicator& communicator, const World&) {
                            body(communicator);
                            return 0;
                          });
  EXPECT_EQ(code, 0);
}

TEST_P(Conformance, HoldsForBlocksOfAnotherDevice) {
  const auto& [test, num_ranks] = GetParam();
  const auto body = [&body = test.body](Communicator& communicator, const World&) {
    // Stands for a device: its memory is written by a thread that lags behind.
    ThreadStream device({DeviceType::kCuda, 0});
    // Small pieces, so that most blocks are cut into several.
    const auto staged = make_staged_communicator(communicator, device, 100'000);
    body(*staged);
    // What nobody has waited for may still use the device.
    staged->barrier();
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0}, body), 0);
}

/// Reaches a device's memory as MPI does: for messages between two ranks.
class PointToPointOnly : public Communicator {
 public:
  explicit PointToPointOnly(Communicator& host) : host_(host) {}
  explicit PointToPointOnly(std::unique_ptr<Communicator> host)
      : own_(std::move(host)), host_(*own_) {}

  [[nodiscard]] int rank() const override { return host_.rank(); }
  [[nodiscard]] int size() const override { return host_.size(); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override { return host_.world_ranks(); }
  [[nodiscard]] Stream& stream() override { return host_.stream(); }
  [[nodiscard]] bool reaches_gpus() const override { return true; }
  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    return host_.exchange(peer, send, receive, std::move(context));
  }
  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    return host_.exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                         std::move(context));
  }
  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    require(is_on_host(send), "a sum of a device's memory");
    return host_.all_reduce_sum(send, receive, std::move(context));
  }
  Request broadcast(Block block, int root, OpContext context) override {
    require(is_on_host(block), "a broadcast of a device's memory");
    return host_.broadcast(block, root, std::move(context));
  }
  std::vector<std::string> all_gather(std::string text) override {
    return host_.all_gather(std::move(text));
  }
  void check() override { host_.check(); }
  void barrier() override { host_.barrier(); }
  std::unique_ptr<Communicator> split(int color) override {
    auto part = host_.split(color);
    return part ? std::make_unique<PointToPointOnly>(std::move(part)) : nullptr;
  }

 private:
  std::unique_ptr<Communicator> own_;
  Communicator& host_;
};

TEST_P(Conformance, HoldsForBlocksOfADeviceThatTheCommunicatorReaches) {
  const auto& [test, num_ranks] = GetParam();
  const auto body = [&body = test.body](Communicator& communicator, const World&) {
    PointToPointOnly host(communicator);
    ThreadStream device({DeviceType::kCuda, 0});
    const auto direct = make_direct_communicator(host, device);
    body(*direct);
    direct->barrier();
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0}, body), 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, Conformance,
                         testing::Combine(testing::ValuesIn(conformance_cases().begin(),
                                                            conformance_cases().end()),
                                          testing::Values(1, 2, 3, 4, 7)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_n" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace

void PrintTo(const ConformanceCase& test, std::ostream* out) { *out << test.name; }

}  // namespace gossamer
