#include "apps/train/device_choice.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "apps/train/agreement.hpp"
#include "apps/train/rank_setup.hpp"
#include "base/error.hpp"
#include "base/make_stream.hpp"
#include "comm/launch.hpp"
#include "comm/placement.hpp"

namespace gossamer::apps {
namespace {

TEST(DeviceChoice, ReadsItsSection) {
  const DeviceChoice choice = read_device_choice(
      Options::parse("name: cuda, share: true, exchange: host, precision: bf16"));
  EXPECT_EQ(choice.name, "cuda");
  EXPECT_TRUE(choice.share);
  EXPECT_EQ(choice.exchange, "host");
  EXPECT_EQ(choice.precision, Precision::kBf16);
  const DeviceChoice plain = read_device_choice(Options::parse(""));
  EXPECT_EQ(plain.name, "cpu");
  EXPECT_FALSE(plain.share);
  EXPECT_EQ(plain.exchange, "auto");
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
    EXPECT_EQ(device_of_rank({.name = "cuda", .share = true}, place, 2),
              (Device{DeviceType::kCuda, rank % 2}));
  }
}

TEST(DeviceChoice, GoesByTheHostWhateverTheLayout) {
  // Uneven, and dealt to hosts in turn: no topology's node is a host here.
  const std::vector<int> hosts = {0, 1, 0, 1, 0};
  const std::vector<int> gpus = {0, 0, 1, 1, 2};
  const std::vector<std::int64_t> threads = {4, 6, 4, 6, 4};
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const Placement place = placement_of(hosts, static_cast<int>(rank));
    EXPECT_EQ(device_of_rank({.name = "cuda"}, place, 8), (Device{DeviceType::kCuda, gpus[rank]}));
    EXPECT_EQ(compute_threads(place, 12), threads[rank]);
  }
}

TEST(DeviceChoice, LeavesEveryRankOneThread) {
  EXPECT_EQ(compute_threads({.local_rank = 1, .local_world_size = 3}, 2), 1);
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

/// Ranks with these GPUs, each a process of its own.
std::vector<RankPlace> places_of(const std::vector<std::string>& uuids) {
  std::vector<RankPlace> places;
  for (const std::string& uuid : uuids) places.push_back({uuid, std::to_string(places.size())});
  return places;
}

TEST(DeviceChoice, SeesRanksThatAreThreads) {
  EXPECT_FALSE(ranks_are_threads({}));
  EXPECT_FALSE(ranks_are_threads({{"GPU-a", "x"}, {"GPU-a", "y"}}));
  EXPECT_TRUE(ranks_are_threads({{"GPU-a", "x"}, {"GPU-b", "y"}, {"GPU-c", "x"}}));
}

TEST(DeviceChoice, KnowsRanksThatShareByTheirGpus) {
  const DeviceChoice alone{.name = "cuda"};
  EXPECT_FALSE(share_gpus(alone, places_of({"", "", ""})));
  // Also where a launcher shows every rank one GPU of its own, the first of one.
  EXPECT_FALSE(share_gpus(alone, places_of({"GPU-a", "GPU-b", "GPU-c"})));
  const DeviceChoice sharing{.name = "cuda", .share = true};
  EXPECT_FALSE(share_gpus(sharing, places_of({"GPU-a", "GPU-b"})));
  EXPECT_TRUE(share_gpus(sharing, places_of({"GPU-a", "GPU-b", "GPU-a"})));
  // Threads of one process may have a GPU each.
  EXPECT_FALSE(share_gpus(alone, {{"GPU-a", "x"}, {"GPU-b", "x"}}));
}

std::string refused_choice(const DeviceChoice& choice, const std::vector<RankPlace>& places) {
  try {
    static_cast<void>(share_gpus(choice, places));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceChoice, RefusesMoreRanksThanGpusWithAdvice) {
  const std::string text = refused_choice({.name = "cuda"}, places_of({"GPU-a", "GPU-b", "GPU-b"}));
  EXPECT_NE(text.find("ranks 1 and 2 have the same GPU (GPU-b)"), std::string::npos) << text;
  EXPECT_NE(text.find("device.share: true"), std::string::npos) << text;
}

TEST(DeviceChoice, RefusesThreadsThatShareAGpu) {
  const std::string text =
      refused_choice({.name = "cuda", .share = true}, {{"GPU-a", "x"}, {"GPU-a", "x"}});
  EXPECT_EQ(text,
            "device.share: ranks 0 and 1 have the same GPU (GPU-a) and are threads of one process, "
            "allowed: processes (mpirun -n 2 in place of --ranks 2)");
}

TEST(DeviceChoice, RefusesGpusForSomeRanksOnly) {
  EXPECT_NE(refused_choice({.name = "auto"}, places_of({"GPU-a", ""}))
                .find("rank 0 has a GPU and rank 1 sees none"),
            std::string::npos);
  EXPECT_NE(refused_choice({.name = "auto"}, places_of({"", "GPU-a"}))
                .find("rank 0 sees no GPU and rank 1 has one"),
            std::string::npos);
  // Also where two ranks before it share one.
  EXPECT_NE(refused_choice({.name = "auto", .share = true}, places_of({"GPU-a", "GPU-a", ""}))
                .find("rank 2 sees none"),
            std::string::npos);
}

const std::vector<std::string> kSameNccl = {"NCCL 2.28.9", "NCCL 2.28.9"};
const std::vector<std::string> kOddNccl = {"NCCL 2.28.9", "NCCL 2.20.1"};
const std::vector<std::string> kNoNccl = {"no NCCL: x", "no NCCL: x"};
const std::vector<std::string> kMpi = {"MPI that reaches GPUs", "MPI that reaches GPUs"};
const std::vector<std::string> kNoMpi = {"MPI that reaches GPUs", "no MPI that reaches GPUs"};

TEST(ChooseWires, TakesTheBestThatAllRanksHave) {
  EXPECT_EQ(choose_wires("auto", kSameNccl, kMpi), WireKind::kNccl);
  EXPECT_EQ(choose_wires("auto", kOddNccl, kMpi), WireKind::kMpi);
  EXPECT_EQ(choose_wires("auto", kNoNccl, kMpi), WireKind::kMpi);
  EXPECT_EQ(choose_wires("auto", kNoNccl, kNoMpi), WireKind::kHost);
  EXPECT_EQ(choose_wires("nccl", kSameNccl, kNoMpi), WireKind::kNccl);
  EXPECT_EQ(choose_wires("mpi", kSameNccl, kMpi), WireKind::kMpi);
  EXPECT_EQ(choose_wires("host", kSameNccl, kMpi), WireKind::kHost);
}

TEST(ChooseWires, SaysWhichRankDoesNotHaveWhatIsAskedFor) {
  const auto text = [](std::string_view exchange, const std::vector<std::string>& nccl) {
    try {
      static_cast<void>(choose_wires(exchange, nccl, kNoMpi));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(text("nccl", kOddNccl),
            "device.exchange: nccl, but rank 1 has NCCL 2.20.1, and rank 0 has NCCL 2.28.9, "
            "allowed: auto, nccl, mpi, host");
  EXPECT_EQ(text("nccl", kNoNccl),
            "device.exchange: nccl, but rank 0 has no NCCL: x, allowed: auto, nccl, mpi, host");
  EXPECT_EQ(
      text("mpi", kSameNccl),
      "device.exchange: mpi, but rank 1 has no MPI that reaches GPUs, and rank 0 has MPI that "
      "reaches GPUs, allowed: auto, nccl, mpi, host");
}

}  // namespace
}  // namespace gossamer::apps
