// The conformance suite over the threads backend, and over staging on top of it.

#include "comm/conformance.hpp"

#include <string>
#include <tuple>

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

TEST_P(Conformance, HoldsForBlocksOfADeviceThatTheCommunicatorReaches) {
  const auto& [test, num_ranks] = GetParam();
  const auto body = [&body = test.body](Communicator& communicator, const World&) {
    ThreadStream device({DeviceType::kCuda, 0});
    const auto direct = make_direct_communicator(communicator, device);
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
