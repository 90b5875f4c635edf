// The conformance suite over the backend `tcp`, in each of the ways in which messages can go.

#include "test/comm/conformance.hpp"
#include "test/comm/tcp/tcp_ranks.hpp"
#include "test/support/sanitized.hpp"
#include "test/support/thread_stream.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "comm/collectives/staged_communicator.hpp"
#include "comm/options.hpp"

namespace gossamer::tcp {
namespace {

struct Way {
  const char* name;
  LaunchOptions options;
};

std::vector<Way> ways() {
  const LaunchOptions plain{.timeout_s = 60.0, .log_level = LogLevel::kError};
  Way memory{"memory", plain};
  Way sockets{"sockets", plain};
  sockets.options.meeting.reads_memory = false;
  Way streams{"streams", sockets.options};
  streams.options.meeting.num_streams = 5;
  Way tls{"tls", streams.options};
  tls.options.meeting.num_streams = 2;
  tls.options.meeting.secret = "a secret of the ranks of this test";
  Way ring{"ring", sockets.options};
  ring.options.least_ring_bytes = 0;
  if (kThreadSanitized) return {memory, tls};
  if (kSanitized) return {memory, tls, ring};
  return {memory, sockets, streams, tls, ring};
}

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class TcpConformance : public testing::TestWithParam<std::tuple<ConformanceCase, Way, int>> {};

TEST_P(TcpConformance, Holds) {
  const auto& [test, way, num_ranks] = GetParam();
  const auto codes = launch_ranks(num_ranks, way.options,
                                  [&body = test.body](Communicator& communicator, const World&) {
                                    body(communicator);
                                    return 0;
                                  });
  EXPECT_EQ(codes, std::vector<int>(codes.size(), 0));
}

INSTANTIATE_TEST_SUITE_P(
    Tcp, TcpConformance,
    testing::Combine(testing::ValuesIn(conformance_cases().begin(), conformance_cases().end()),
                     testing::ValuesIn(ways()), testing::ValuesIn(kRankCounts)),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).name) + "_" + std::get<1>(test.param).name + "_n" +
             std::to_string(std::get<2>(test.param));
    });

class TcpStaging : public testing::TestWithParam<ConformanceCase> {};

TEST_P(TcpStaging, Holds) {
  const auto body = [&](Communicator& communicator, const World&) {
    // Stands for a device: its memory is written by a thread that lags behind.
    const auto device = std::make_shared<ThreadStream>(Device{DeviceType::kCuda, 0});
    GetParam().body(*make_staged_communicator(communicator, device, {.piece_bytes = 100'000}));
    return 0;
  };
  for (const Way& way : ways()) {
    const auto codes = launch_ranks(3, way.options, body);
    EXPECT_EQ(codes, std::vector<int>(codes.size(), 0)) << way.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Tcp, TcpStaging,
                         testing::ValuesIn(conformance_cases().begin(), conformance_cases().end()),
                         [](const auto& test) { return std::string(test.param.name); });

/// More than eight ranks of several hosts sum blocks of middle size by halves.
TEST(TcpSums, OfMiddleSizeAreTheSameOnAllRanks) {
  LaunchOptions options{.timeout_s = 60.0, .log_level = LogLevel::kError};
  options.least_ring_bytes = std::int64_t{1} << 30U;
  options.meeting.reads_memory = false;
  for (const int num_ranks : {9, 13}) {
    const auto body = [num_ranks](Communicator& communicator, const World& world) {
      // The last shards are empty, short, and whole.
      for (const std::int64_t numel : {20'003, 26'000}) {
        std::vector<double> mine(static_cast<std::size_t>(numel));
        std::vector<double> sum(mine.size(), -1.0);
        for (std::size_t i = 0; i < mine.size(); ++i) {
          mine[i] = std::ldexp(static_cast<double>(i + 1), 3 * world.rank);
        }
        for (int turn = 0; turn < 2; ++turn) {
          communicator.all_reduce_sum(block_of(std::span(mine)), block_of(std::span(sum)), {})
              .wait();
          const auto bytes = std::as_bytes(std::span(sum));
          const std::string own(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          for (const std::string& other : communicator.all_gather(own))
            require(other == own, "bits");
        }
        const double factor = (std::ldexp(1.0, 3 * num_ranks) - 1.0) / 7.0;
        for (std::size_t i = 0; i < sum.size(); ++i) {
          require(sum[i] == factor * static_cast<double>(i + 1), "element ", i, " is ", sum[i]);
        }
      }
      return 0;
    };
    EXPECT_EQ(launch_ranks(num_ranks, options, body),
              std::vector<int>(static_cast<std::size_t>(num_ranks), 0));
  }
}

TEST(TcpSharing, ReachesTheRanksOfTheHost) {
  const auto body = [](Communicator& communicator, const World& world) {
    require_reached(communicator, [](int) { return true; });
    require(communicator.shared_memory()->num_on_host() == world.size, "all are on this host");
    return 0;
  };
  EXPECT_EQ(launch_ranks(3, {.timeout_s = 60.0}, body), std::vector<int>(3, 0));
}

}  // namespace
}  // namespace gossamer::tcp

namespace gossamer {
void PrintTo(const ConformanceCase& test, std::ostream* out) { *out << test.name; }
}  // namespace gossamer
