#include "apps/train/device_choice.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/agreement.hpp"
#include "apps/train/rank_setup.hpp"
#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "comm/backends.hpp"
#include "comm/collectives/placement.hpp"

namespace gossamer::apps {
namespace {

TEST(DeviceChoice, ReadsItsSection) {
  const DeviceChoice choice = read_device_choice(
      Options::parse("name: cuda, share: true, exchange: host, precision: bf16"));
  EXPECT_EQ(choice.name, "cuda");
  EXPECT_TRUE(choice.transport.share);
  EXPECT_EQ(choice.transport.exchange, "host");
  EXPECT_EQ(choice.precision, Precision::kBf16);
  const DeviceChoice plain = read_device_choice(Options::parse(""));
  EXPECT_EQ(plain.name, "cpu");
  EXPECT_FALSE(plain.transport.share);
  EXPECT_EQ(plain.transport.exchange, "auto");
  EXPECT_EQ(plain.precision, Precision::kFloat32);
  EXPECT_THROW(read_device_choice(Options::parse("name: tpu")), ConfigError);
  EXPECT_THROW(read_device_choice(Options::parse("precision: fp8")), ConfigError);
}

TEST(DeviceChoice, GivesEveryRankOfAHostItsGpu) {
  for (int rank = 0; rank < 4; ++rank) {
    const Placement place{.local_rank = rank, .local_world_size = 4};
    EXPECT_EQ(device_of_rank({.name = "cpu"}, place, 4), Device{});
    EXPECT_EQ(device_of_rank({.name = "auto"}, place, 0), Device{});
    EXPECT_EQ(device_of_rank({.name = "auto"}, place, 8), (Device{DeviceType::kCuda, rank}));
    EXPECT_EQ(device_of_rank({.name = "cuda"}, place, 4), (Device{DeviceType::kCuda, rank}));
    EXPECT_EQ(device_of_rank({.name = "cuda", .transport = {.share = true}}, place, 2),
              (Device{DeviceType::kCuda, rank % 2}));
  }
}

TEST(DeviceChoice, GoesByTheHostWhateverTheLayout) {
  // Uneven, and dealt to hosts in turn: no topology's node is a host here.
  const std::vector<int> hosts = {0, 1, 0, 1, 0};
  const std::vector<int> gpus = {0, 0, 1, 1, 2};
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const Placement place = placement_of(hosts, static_cast<int>(rank));
    EXPECT_EQ(device_of_rank({.name = "cuda"}, place, 8), (Device{DeviceType::kCuda, gpus[rank]}));
  }
}

TEST(DeviceChoice, AsksForAGpuWhereThereIsNone) {
  EXPECT_THROW(static_cast<void>(device_of_rank({.name = "cuda"}, {}, 0)), ConfigError);
}

TEST(TrainingDevice, ThatOneRankLacksIsSaidOnAllWithTheRanksName) {
  if (num_gpus() > 0) GTEST_SKIP() << "this machine has a GPU";
  const LaunchOptions options{.num_ranks = 3, .timeout_s = 60};
  EXPECT_EQ(
      launch("threads", options,
             [](Communicator& communicator, const World& world) {
               const DeviceChoice choice{.name = world.rank == 1 ? "cuda" : "auto"};
               try {
                 const TrainingDevice device(choice,
                                             {.host = communicator, .world = world, .logger = {}});
                 ADD_FAILURE() << "rank " << world.rank;
               } catch (const JointFailure& failure) {
                 EXPECT_EQ(std::string(failure.what()).find("on rank 1: device.name: cuda"), 0U)
                     << failure.what();
                 EXPECT_EQ(failure.code(), ExitCode::kConfig);
               }
               return 0;
             }),
      0);
}

}  // namespace
}  // namespace gossamer::apps
