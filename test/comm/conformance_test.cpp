// The conformance suite over the threads backend.

#include "comm/conformance.hpp"

#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "gossamer/comm/launch.hpp"

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
