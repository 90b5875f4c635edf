// The conformance suite over the threads backend, and over staging on top of it.

#include "test/comm/conformance.hpp"

#include "test/support/thread_stream.hpp"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "comm/backends.hpp"
#include "comm/collectives/staged_communicator.hpp"
#include "comm/forwarding_communicator.hpp"

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
    const auto device = std::make_shared<ThreadStream>(Device{DeviceType::kCuda, 0});
    // Small pieces, so that most blocks are cut into several.
    const auto staged = make_staged_communicator(communicator, device, {.piece_bytes = 100'000});
    body(*staged);
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0}, body), 0);
}

/// Reaches a device's memory as MPI does: for messages between two ranks.
class PointToPointOnly : public ForwardingCommunicator {
 public:
  explicit PointToPointOnly(Communicator& host) : ForwardingCommunicator(host) {}
  explicit PointToPointOnly(std::unique_ptr<Communicator> host)
      : ForwardingCommunicator(*host), own_(std::move(host)) {}

  [[nodiscard]] bool takes_device_memory() const override { return true; }
  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    require(is_on_host(send), "a sum of a device's memory");
    return ForwardingCommunicator::all_reduce_sum(send, receive, std::move(context));
  }
  Request broadcast(Block block, int root, OpContext context) override {
    require(is_on_host(block), "a broadcast of a device's memory");
    return ForwardingCommunicator::broadcast(block, root, std::move(context));
  }
  std::unique_ptr<Communicator> split(int color) override {
    auto part = ForwardingCommunicator::split(color);
    return part ? std::make_unique<PointToPointOnly>(std::move(part)) : nullptr;
  }

 private:
  std::unique_ptr<Communicator> own_;
};

TEST_P(Conformance, HoldsForBlocksOfADeviceThatTheCommunicatorReaches) {
  const auto& [test, num_ranks] = GetParam();
  const auto body = [&body = test.body](Communicator& communicator, const World&) {
    PointToPointOnly host(communicator);
    const auto device = std::make_shared<ThreadStream>(Device{DeviceType::kCuda, 0});
    const auto direct = make_staged_communicator(host, device, {.direct_messages = true});
    body(*direct);
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0}, body), 0);
}

TEST(Sharing, ReachesAllThreads) {
  const auto body = [](Communicator& communicator, const World&) {
    require_reached(communicator, [](int) { return true; });
    const auto part = communicator.split(communicator.rank() % 2);
    require_reached(*part, [](int) { return true; });
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = 5, .timeout_s = 60.0}, body), 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, Conformance,
                         testing::Combine(testing::ValuesIn(conformance_cases().begin(),
                                                            conformance_cases().end()),
                                          testing::ValuesIn(kRankCounts)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_n" +
                                  std::to_string(std::get<1>(test.param));
                         });

}  // namespace

void PrintTo(const ConformanceCase& test, std::ostream* out) { *out << test.name; }

}  // namespace gossamer
