#pragma once
// Runs tests of several ranks; the ranks are threads of the test.

#include "test/base/thrown.hpp"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "comm/backends.hpp"

namespace gossamer {

using RankTest = std::function<void(Communicator& communicator, const World& world)>;

/// Runs `body` on `num_ranks` threads and expects that no rank fails.
inline void run_ranks(int num_ranks, const RankTest& body, int node_size = 0) {
  const LaunchOptions options{.num_ranks = num_ranks,
                              .node_size = node_size,
                              .timeout_s = 60.0,
                              .log_level = LogLevel::kError};
  const int code = launch("threads", options, [&](Communicator& communicator, const World& world) {
    body(communicator, world);
    return 0;
  });
  EXPECT_EQ(code, 0) << "with " << num_ranks << " ranks";
}

/// The name of a test whose parameter is a name.
inline std::string own_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

}  // namespace gossamer
