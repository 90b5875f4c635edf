// The communicators of a device in runs whose ranks are lost, over the stand-in for NCCL's calls.

#include "comm/elastic/elastic_transport.hpp"

#include "test/base/thrown.hpp"
#include "test/comm/conformance.hpp"
#include "test/comm/elastic_ranks.hpp"
#include "test/support/fake_nccl.hpp"
#include "test/support/thread_stream.hpp"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/collectives/staged_communicator.hpp"
#include "comm/nccl/communicator.hpp"
#include "comm/options.hpp"

namespace gossamer {
namespace {

constexpr Device kDevice{DeviceType::kCuda, 0};

/// What one rank has.
struct Rank {
  Session& session;
  FakeNccl& nccl;
  const std::shared_ptr<Stream>& stream;
  Communicator& device;
};

/// The sum of 1 of every rank, in the device's memory.
double count_ranks(Rank& rank) {
  const Buffer one = rank.stream->allocate(1, DType::kFloat64);
  const Buffer sum = rank.stream->allocate(1, DType::kFloat64);
  one.block().as<double>()[0] = 1.0;
  rank.device
      .all_reduce_sum(one.block(), sum.block(),
                      {.owner = both(one.owner(), sum.owner()), .ready = rank.stream->record()})
      .wait();
  return sum.block().as<double>()[0];
}

/// All ranks have come here, unless one of them ends the world already.
void meet(Rank& rank) {
  static_cast<void>(what_of<PeerLost>([&rank] { rank.device.barrier(); }));
}

/// Counts ranks until one is lost. Returns the message.
std::string count_until_lost(Rank& rank) {
  return what_of<PeerLost>([&rank] {
    while (true) count_ranks(rank);
  });
}

class ElasticTransport : public testing::TestWithParam<std::string> {
 protected:
  using Make = std::function<std::unique_ptr<Communicator>(Rank& rank, const std::string& flaw)>;

  static std::unique_ptr<Communicator> make_nccl(Rank& rank) {
    return make_nccl_communicator(rank.nccl, rank.session.communicator(), rank.stream,
                                  {.timeout_s = 60.0});
  }

  void run(
      int size, const std::function<void(Rank& rank)>& live,
      const Make& make = [](Rank& rank, const std::string&) { return make_nccl(rank); }) {
    LaunchOptions options{.timeout_s = 60.0, .log_level = LogLevel::kOff};
    options.fault.survives = true;
    elastic_test::run_sessions(GetParam(), size, options, [&](Session& session) {
      FakeNccl nccl(hub);
      const std::shared_ptr<Stream> stream = std::make_shared<ThreadStream>(kDevice);
      Rank* self = nullptr;
      const auto device =
          make_transport(session.communicator(), stream,
                         [&](Communicator&, const std::string& flaw) { return make(*self, flaw); });
      Rank rank{session, nccl, stream, *device};
      self = &rank;
      live(rank);
    });
  }

  /// All ranks have done their work.
  static void leave(Rank& rank) {
    rank.device.barrier();
    rank.device.close();
    rank.session.close();
  }

  FakeNcclHub hub;
};
INSTANTIATE_TEST_SUITE_P(Of, ElasticTransport, testing::Values("threads", "tcp"),
                         [](const auto& test) { return test.param; });

TEST_P(ElasticTransport, DoWhatEveryBackendDoes) {
  for (const int size : {1, 3}) {
    run(size, [](Rank& rank) {
      for (const ConformanceCase& test : conformance_cases()) {
        SCOPED_TRACE(test.name);
        test.body(rank.device);
        rank.stream->synchronize();
        rank.device.barrier();
      }
      leave(rank);
    });
  }
}

TEST_P(ElasticTransport, GoOnWithoutARankThatDies) {
  run(4, [](Rank& rank) {
    EXPECT_TRUE(rank.device.is_elastic());
    EXPECT_EQ(count_ranks(rank), 4.0);
    meet(rank);
    if (rank.session.world().rank == 1) return;
    EXPECT_NE(count_until_lost(rank), "");
    EXPECT_EQ(rank.device.elastic()->reconfigure(1).world.size, 3);
    EXPECT_EQ(count_ranks(rank), 3.0);
    const auto part = rank.device.split(rank.device.rank() == 0 ? 0 : 1);
    EXPECT_EQ(part->size(), rank.device.rank() == 0 ? 1 : 2);
    leave(rank);
  });
  // Those of the world that has ended, and those of the rank that died.
  EXPECT_EQ(hub.num_aborted, 4);
  EXPECT_EQ(hub.num_destroyed, hub.num_made - 4);
}

TEST_P(ElasticTransport, BeginAgainWithTheSameRanksWhenTheLibraryFails) {
  run(3, [](Rank& rank) {
    EXPECT_EQ(count_ranks(rank), 3.0);
    meet(rank);
    if (rank.device.rank() == 2) rank.nccl.set_error("network is down");
    const std::string text = count_until_lost(rank);
    if (rank.device.rank() == 2) {
      EXPECT_CONTAINS(text, "network is down");
    }
    EXPECT_EQ(rank.device.elastic()->reconfigure(1).world.size, 3);
    EXPECT_EQ(count_ranks(rank), 3.0);
    leave(rank);
  });
}

/// The library tells it after the operation has ended on the device.
TEST_P(ElasticTransport, TakeNothingFromAnOperationThatTheLibraryHasGivenUp) {
  run(2, [](Rank& rank) {
    EXPECT_EQ(count_ranks(rank), 2.0);
    meet(rank);
    const bool fails = rank.device.rank() == 0;
    const Buffer mine = rank.stream->allocate(1, DType::kFloat64);
    const Buffer sum = rank.stream->allocate(1, DType::kFloat64);
    Request request = rank.device.all_reduce_sum(mine.block(), sum.block(), {});
    rank.stream->synchronize();
    if (fails) rank.nccl.set_error("remote process exited");
    ThreadStream compute(kDevice);
    // Later work would go on with what has arrived.
    const std::string text = what_of<PeerLost>([&] { request.wait_on(compute); });
    if (fails) {
      EXPECT_CONTAINS(text, "remote process exited");
    }
    // The other one may hear of it. It goes no further before.
    if (!fails) meet(rank);
    rank.device.elastic()->reconfigure(1);
    EXPECT_EQ(count_ranks(rank), 2.0);
    leave(rank);
  });
}

/// The start fails on one rank. The others wait for that rank in vain, or hear of it.
TEST_P(ElasticTransport, TellWhoeverAsksThatAStartHasFailed) {
  std::atomic<bool> fails = true;
  run(
      3,
      [](Rank& rank) {
        EXPECT_NE(what_of<PeerLost>([&] { rank.device.connect(); }), "");
        EXPECT_NE(what_of<PeerLost>([&] { rank.device.check(); }), "");
        EXPECT_NE(what_of<PeerLost>([&] { count_ranks(rank); }), "");
        EXPECT_EQ(rank.device.elastic()->reconfigure(0).world.size, 3);
        rank.device.check();
        EXPECT_EQ(count_ranks(rank), 3.0);
        leave(rank);
      },
      [&fails](Rank& rank, const std::string&) {
        rank.session.communicator().barrier();
        if (rank.device.rank() == 1 && fails.exchange(false)) {
          throw PeerLost({.rank = 1}, "no way there");
        }
        return make_nccl(rank);
      });
}

TEST_P(ElasticTransport, TellWhyTheyHaveFailedThreeTimesInARow) {
  std::atomic<int> num_staged = 0;
  run(
      3,
      [](Rank& rank) {
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(count_ranks(rank), 3.0);
          meet(rank);
          if (rank.device.rank() == 1) rank.nccl.set_error("no way there");
          EXPECT_NE(count_until_lost(rank), "");
          rank.device.elastic()->reconfigure(1);
        }
        EXPECT_EQ(count_ranks(rank), 3.0);
        leave(rank);
      },
      [&num_staged](Rank& rank, const std::string& flaw) {
        const auto flaws = rank.session.communicator().all_gather(flaw);
        EXPECT_EQ(flaws[0], "");
        EXPECT_EQ(flaws[2], "");
        if (flaws[1].empty()) return make_nccl(rank);
        EXPECT_EQ(flaws[1], "no way there");
        ++num_staged;
        return make_staged_communicator(rank.session.communicator(), rank.stream);
      });
  EXPECT_EQ(num_staged, 3);
}

TEST_P(ElasticTransport, EndWithoutTheLastRankWhereItDoesNotFit) {
  std::atomic<bool> fits = true;
  run(
      3,
      [&fits](Rank& rank) {
        EXPECT_EQ(count_ranks(rank), 3.0);
        meet(rank);
        fits = false;
        const bool is_last = rank.device.rank() == 2;
        if (is_last) rank.nccl.set_error("network is down");
        EXPECT_NE(count_until_lost(rank), "");
        rank.device.elastic()->reconfigure(1);
        if (is_last) {
          EXPECT_THROW(count_ranks(rank), ConfigError);
          return;
        }
        // Until the last rank has left, worlds begin with it.
        const auto count_both = [&rank] {
          EXPECT_EQ(count_ranks(rank), 2.0);
          rank.device.barrier();
        };
        while (!what_of<PeerLost>(count_both).empty()) rank.device.elastic()->reconfigure(1);
        rank.device.close();
        rank.session.close();
      },
      [&fits](Rank& rank, const std::string&) {
        if (!fits && rank.session.communicator().size() == 3) throw ConfigError("does not fit");
        return make_nccl(rank);
      });
}

TEST_P(ElasticTransport, EndTheRunWhereItsFirstRanksDoNotFit) {
  run(
      2,
      [](Rank& rank) {
        // Both have opened their sessions then.
        meet(rank);
        EXPECT_THROW(count_ranks(rank), ConfigError);
      },
      [](Rank&, const std::string&) -> std::unique_ptr<Communicator> {
        throw ConfigError("does not fit");
      });
}

}  // namespace
}  // namespace gossamer
