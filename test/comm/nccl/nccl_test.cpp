// The NCCL communicator over a stand-in for NCCL's calls.

#include "test/base/thrown.hpp"
#include "test/comm/conformance.hpp"
#include "test/support/fake_nccl.hpp"
#include "test/support/thread_stream.hpp"

#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>

#include "comm/backends.hpp"
#include "comm/nccl/communicator.hpp"

namespace gossamer {
namespace {

constexpr Device kDevice{DeviceType::kCuda, 0};

class NcclConformance : public testing::TestWithParam<std::tuple<ConformanceCase, int>> {};

TEST_P(NcclConformance, Holds) {
  const auto& [test, num_ranks] = GetParam();
  FakeNcclHub hub;
  const auto body = [&hub, &body = test.body](Communicator& host, const World&) {
    FakeNccl nccl(hub);
    const auto stream = std::make_shared<ThreadStream>(kDevice);
    const auto communicator = make_nccl_communicator(nccl, host, stream, {.timeout_s = 60.0});
    body(*communicator);
    stream->synchronize();
    communicator->check();
    communicator->barrier();
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = num_ranks, .timeout_s = 60.0}, body), 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclConformance,
                         testing::Combine(testing::ValuesIn(conformance_cases().begin(),
                                                            conformance_cases().end()),
                                          testing::ValuesIn(kRankCounts)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_n" +
                                  std::to_string(std::get<1>(test.param));
                         });

/// Two ranks, of which `body` gets both ends; what it throws is returned, by rank.
std::vector<std::string> errors_of_two(
    double timeout_s,
    const std::function<void(Communicator&, Stream&, FakeNccl&, int rank)>& body) {
  FakeNcclHub hub;
  std::vector<std::string> errors(2);
  const auto run = [&](Communicator& host, const World& world) {
    FakeNccl nccl(hub);
    const auto stream = std::make_shared<ThreadStream>(kDevice);
    const auto communicator = make_nccl_communicator(nccl, host, stream, {.timeout_s = timeout_s});
    try {
      body(*communicator, *stream, nccl, world.rank);
    } catch (const CommError& error) {
      errors[static_cast<std::size_t>(world.rank)] = error.what();
    }
    host.barrier();
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = 2, .timeout_s = 60.0}, run), 0);
  return errors;
}

TEST(NcclFailure, NamesThePeerThatDoesNotCome) {
  const auto errors =
      errors_of_two(0.3, [](Communicator& communicator, Stream& stream, FakeNccl&, int rank) {
        if (rank == 1) return;
        const Buffer mine = stream.allocate(4, DType::kFloat32);
        const Buffer theirs = stream.allocate(4, DType::kFloat32);
        Request request = communicator.exchange(1, mine.block(), theirs.block(),
                                                {.label = {.bucket = 2, .round = 7}});
        request.wait();
      });
  EXPECT_CONTAINS(errors[0],
                  "rank 0: exchange of bucket 2, round 7 with rank 1: no end after 0.3 s");
  EXPECT_EQ(errors[1], "");
}

TEST(NcclFailure, ReachesWhoeverUsesTheCommunicatorLater) {
  const auto errors =
      errors_of_two(0.3, [](Communicator& communicator, Stream& stream, FakeNccl&, int rank) {
        if (rank == 1) return;
        ThreadStream compute(kDevice);
        const Buffer mine = stream.allocate(4, DType::kFloat32);
        const Buffer theirs = stream.allocate(4, DType::kFloat32);
        communicator.exchange(1, mine.block(), theirs.block(), {}).wait_on(compute);
        // The stream goes on when the operation is aborted; the host is told.
        compute.synchronize();
        EXPECT_THROW(communicator.check(), CommError);
        communicator.broadcast(mine.block(), 0, {});
      });
  EXPECT_CONTAINS(errors[0], "with rank 1");
}

TEST(NcclFailure, DoesNotCountTheTimeOfThisRanksOwnComputing) {
  // Ends at the same time on both ranks, so that none waits for the other.
  std::barrier<> computed(2);
  const auto errors = errors_of_two(
      1.0, [&computed](Communicator& communicator, Stream& stream, FakeNccl&, int rank) {
        ThreadStream compute(kDevice);
        const Buffer mine = stream.allocate(4, DType::kFloat32);
        const Buffer theirs = stream.allocate(4, DType::kFloat32);
        compute.run([&computed] {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          computed.arrive_and_wait();
        });
        communicator.exchange(1 - rank, mine.block(), theirs.block(), {.ready = compute.record()})
            .wait();
      });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
}

TEST(NcclFailure, TellsWhatTheLibrarySays) {
  const auto errors = errors_of_two(60.0, [](Communicator& communicator, Stream& stream,
                                             FakeNccl& nccl, int rank) {
    if (rank == 1) return;
    const Buffer mine = stream.allocate(4, DType::kFloat32);
    nccl.set_error("remote process exited");
    communicator.broadcast(mine.block(), 0, {.label = {.what = "broadcast of the model"}}).wait();
  });
  EXPECT_CONTAINS(errors[0], "remote process exited");
}

TEST(NcclFailure, IsNoticedWhileNobodyCalls) {
  const auto errors =
      errors_of_two(60.0, [](Communicator& communicator, Stream& stream, FakeNccl& nccl, int rank) {
        if (rank == 1) return;
        const Buffer mine = stream.allocate(4, DType::kFloat32);
        const Buffer theirs = stream.allocate(4, DType::kFloat32);
        Request request = communicator.exchange(1, mine.block(), theirs.block(),
                                                {.label = {.bucket = 3, .round = 9}});
        nccl.set_error("network is down");
        request.wait();
      });
  EXPECT_CONTAINS(errors[0], "exchange of bucket 3, round 9 with rank 1: network is down");
}

TEST(NcclFailure, OfAnotherRankEndsTheWaiting) {
  FakeNcclHub hub;
  std::string error;
  const LaunchOptions options{.num_ranks = 2, .timeout_s = 60.0, .log_level = LogLevel::kOff};
  const int code = launch("threads", options, [&](Communicator& host, const World& world) {
    FakeNccl nccl(hub);
    const auto stream = std::make_shared<ThreadStream>(kDevice);
    // Rank 1 may leave before rank 0 has its communicator.
    try {
      const auto communicator = make_nccl_communicator(nccl, host, stream, {.timeout_s = 60.0});
      if (world.rank == 1) throw DataError("torn file");
      const Buffer mine = stream->allocate(4, DType::kFloat32);
      const Buffer theirs = stream->allocate(4, DType::kFloat32);
      communicator->exchange(1, mine.block(), theirs.block(), {}).wait();
    } catch (const CommError& thrown) {
      error = thrown.what();
    }
    return 0;
  });
  EXPECT_CONTAINS(error, "rank 1");
  EXPECT_CONTAINS(error, "that rank has failed");
  EXPECT_EQ(code, static_cast<int>(ExitCode::kData));
}

/// What has become of the communicators of a run.
struct Ends {
  int made = 0;
  int finalized = 0;
  int destroyed = 0;
  int aborted = 0;
  friend bool operator==(const Ends&, const Ends&) = default;
};

Ends ends_of(const FakeNcclHub& hub) {
  return {hub.num_made, hub.num_finalized, hub.num_destroyed, hub.num_aborted};
}

TEST(NcclEnd, IsFinalizedAndDestroyedWhenAllGoesWell) {
  FakeNcclHub hub;
  const auto run = [&hub](Communicator& host, const World& world) {
    FakeNccl nccl(hub);
    const auto stream = std::make_shared<ThreadStream>(kDevice);
    const auto communicator = make_nccl_communicator(nccl, host, stream, {.timeout_s = 60.0});
    const auto part = communicator->split(world.rank % 2);
    const Buffer mine = stream->allocate(4, DType::kFloat32);
    const Buffer sum = stream->allocate(4, DType::kFloat32);
    // Nobody waits for it: the end does.
    Request request = part->all_reduce_sum(mine.block(), sum.block(), {});
    communicator->close();
    EXPECT_TRUE(request.done());
    EXPECT_NO_THROW(communicator->close());
    EXPECT_THROW(communicator->broadcast(mine.block(), 0, {}), std::logic_error);
    return 0;
  };
  EXPECT_EQ(launch("threads", {.num_ranks = 3, .timeout_s = 60.0}, run), 0);
  EXPECT_EQ(ends_of(hub), (Ends{.made = 6, .finalized = 6, .destroyed = 6, .aborted = 0}));
}

/// Two ranks; `body` may throw what ends its rank.
Ends ends_of_two(FakeNcclHub& hub, double host_timeout_s, double timeout_s,
                 const std::function<void(Communicator&, FakeNccl&, int rank)>& body) {
  const auto run = [&](Communicator& host, const World& world) {
    FakeNccl nccl(hub);
    const auto stream = std::make_shared<ThreadStream>(kDevice);
    const auto communicator = make_nccl_communicator(nccl, host, stream, {.timeout_s = timeout_s});
    body(*communicator, nccl, world.rank);
    return 0;
  };
  const LaunchOptions options{
      .num_ranks = 2, .timeout_s = host_timeout_s, .log_level = LogLevel::kOff};
  EXPECT_EQ(launch("threads", options, run), static_cast<int>(ExitCode::kPeerLost));
  return ends_of(hub);
}

TEST(NcclEnd, IsAnAbortWhenTheLibraryFails) {
  FakeNcclHub hub;
  const Ends ends =
      ends_of_two(hub, 60.0, 60.0, [](Communicator& communicator, FakeNccl& nccl, int) {
        nccl.set_error("remote process exited");
        communicator.close();
      });
  EXPECT_EQ(ends.destroyed, 0);
  EXPECT_EQ(ends.aborted, ends.made);
}

TEST(NcclEnd, IsAnAbortWhenARankDoesNotCome) {
  FakeNcclHub hub;
  const Ends ends =
      ends_of_two(hub, 2.0, 60.0, [](Communicator& communicator, FakeNccl&, int rank) {
        if (rank == 0) communicator.close();
      });
  EXPECT_EQ(ends, (Ends{.made = 2, .finalized = 0, .destroyed = 0, .aborted = 2}));
}

TEST(NcclEnd, IsAnAbortWhenItTakesTooLong) {
  FakeNcclHub hub;
  hub.finalize_hangs = true;
  const Ends ends = ends_of_two(
      hub, 60.0, 0.3, [](Communicator& communicator, FakeNccl&, int) { communicator.close(); });
  EXPECT_GE(ends.finalized, 1);
  EXPECT_EQ(ends.destroyed, 0);
  EXPECT_EQ(ends.aborted, 2);
}

}  // namespace
}  // namespace gossamer
