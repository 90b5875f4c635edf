#pragma once
// Multi-rank tests: ranks that are threads of the test.

#include <functional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "comm/launch.hpp"

namespace gossamer {

using RankTest = std::function<void(Communicator& communicator, const World& world)>;

/// Runs `body` on `num_ranks` threads and expects that no rank fails.
inline void run_ranks(int num_ranks, const RankTest& body, int local_size = 0) {
  const LaunchOptions options{.num_ranks = num_ranks,
                              .local_size = local_size,
                              .timeout_s = 60.0,
                              .log_level = LogLevel::kError};
  const int code = launch("threads", options, [&](Communicator& communicator, const World& world) {
    body(communicator, world);
    return 0;
  });
  EXPECT_EQ(code, 0) << "with " << num_ranks << " ranks";
}

/// What a call throws, as text; empty when it returns.
template <class Error, class Call>
std::string what_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// The name of a test whose parameter is a name.
inline std::string own_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace gossamer
