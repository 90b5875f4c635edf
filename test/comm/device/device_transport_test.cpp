#include "comm/device/device_transport.hpp"

#include "test/base/thrown.hpp"

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer {
namespace {

TEST(DeviceTransport, ReadTheirKeys) {
  const TransportChoice choice =
      read_transport_choice(Options::parse("share: true, exchange: mpi"));
  EXPECT_TRUE(choice.share);
  EXPECT_EQ(choice.exchange, "mpi");
  EXPECT_FALSE(read_transport_choice(Options::parse("")).share);
  EXPECT_THROW(read_transport_choice(Options::parse("exchange: pigeons")), ConfigError);
}

/// Ranks with these GPUs, each a process of its own.
std::vector<RankPlace> places_of(const std::vector<std::string>& uuids) {
  std::vector<RankPlace> places;
  for (const std::string& uuid : uuids) places.push_back({uuid, std::to_string(places.size())});
  return places;
}

TEST(DeviceTransport, SeesRanksThatAreThreads) {
  EXPECT_FALSE(ranks_are_threads({}));
  EXPECT_FALSE(ranks_are_threads({{"GPU-a", "x"}, {"GPU-a", "y"}}));
  EXPECT_TRUE(ranks_are_threads({{"GPU-a", "x"}, {"GPU-b", "y"}, {"GPU-c", "x"}}));
}

TEST(DeviceTransport, KnowsRanksThatShareByTheirGpus) {
  EXPECT_FALSE(share_gpus(false, places_of({"", "", ""})));
  // Also where a launcher shows every rank one GPU of its own, the first of one.
  EXPECT_FALSE(share_gpus(false, places_of({"GPU-a", "GPU-b", "GPU-c"})));
  EXPECT_FALSE(share_gpus(true, places_of({"GPU-a", "GPU-b"})));
  EXPECT_TRUE(share_gpus(true, places_of({"GPU-a", "GPU-b", "GPU-a"})));
  // Threads of one process may have a GPU each.
  EXPECT_FALSE(share_gpus(false, {{"GPU-a", "x"}, {"GPU-b", "x"}}));
}

std::string refused_choice(bool may_share, const std::vector<RankPlace>& places) {
  return what_of<ConfigError>([&] { static_cast<void>(share_gpus(may_share, places)); });
}

TEST(DeviceTransport, RefusesMoreRanksThanGpusWithAdvice) {
  const std::string text = refused_choice(false, places_of({"GPU-a", "GPU-b", "GPU-b"}));
  EXPECT_CONTAINS(text, "ranks 1 and 2 have the same GPU (GPU-b)");
  EXPECT_CONTAINS(text, "device.share: true");
}

TEST(DeviceTransport, RefusesThreadsThatShareAGpu) {
  const std::string text = refused_choice(true, {{"GPU-a", "x"}, {"GPU-a", "x"}});
  EXPECT_EQ(text,
            "device.share: ranks 0 and 1 have the same GPU (GPU-a) and are threads of one process, "
            "allowed: a process for each (mpirun -n 2, --processes 2)");
}

TEST(DeviceTransport, RefusesGpusForSomeRanksOnly) {
  EXPECT_CONTAINS(refused_choice(false, places_of({"GPU-a", ""})),
                  "rank 0 trains on a GPU and rank 1 on processors");
  EXPECT_CONTAINS(refused_choice(false, places_of({"", "GPU-a"})),
                  "rank 1 trains on a GPU and rank 0 on processors");
  // Also where two ranks before it share one.
  EXPECT_CONTAINS(refused_choice(true, places_of({"GPU-a", "GPU-a", ""})),
                  "rank 0 trains on a GPU and rank 2 on processors");
}

TEST(DeviceTransport, TakesNcclOnSharedGpusOnlyWhereItIsAskedFor) {
  EXPECT_EQ(why_not_nccl("auto", false, false), "");
  EXPECT_EQ(why_not_nccl("auto", true, false),
            "no NCCL: ranks share GPUs, which NCCL refuses; device.exchange: nccl gets round it, "
            "for tests");
  EXPECT_TRUE(why_not_nccl("auto", false, true).starts_with("no NCCL: ranks are threads"));
  EXPECT_EQ(why_not_nccl("nccl", true, false), "");
  EXPECT_EQ(why_not_nccl("nccl", false, true), "");
  EXPECT_EQ(why_not_nccl("host", false, false), "no NCCL: not asked for");
}

const std::vector<std::string> kSameNccl = {"NCCL 2.28.9", "NCCL 2.28.9"};
const std::vector<std::string> kOddNccl = {"NCCL 2.28.9", "NCCL 2.20.1"};
const std::vector<std::string> kNoNccl = {"no NCCL: x", "no NCCL: x"};
const std::vector<std::string> kMpi = {"MPI that reaches GPUs", "MPI that reaches GPUs"};
const std::vector<std::string> kNoMpi = {"MPI that reaches GPUs", "no MPI that reaches GPUs"};

TEST(ChooseTransport, TakesTheBestThatAllRanksHave) {
  EXPECT_EQ(choose_transport("auto", kSameNccl, kMpi), TransportKind::kNccl);
  EXPECT_EQ(choose_transport("auto", kOddNccl, kMpi), TransportKind::kMpi);
  EXPECT_EQ(choose_transport("auto", kNoNccl, kMpi), TransportKind::kMpi);
  EXPECT_EQ(choose_transport("auto", kNoNccl, kNoMpi), TransportKind::kHost);
  EXPECT_EQ(choose_transport("nccl", kSameNccl, kNoMpi), TransportKind::kNccl);
  EXPECT_EQ(choose_transport("mpi", kSameNccl, kMpi), TransportKind::kMpi);
  EXPECT_EQ(choose_transport("host", kSameNccl, kMpi), TransportKind::kHost);
}

TEST(ChooseTransport, SaysWhichRankDoesNotHaveWhatIsAskedFor) {
  const auto text = [](std::string_view exchange, const std::vector<std::string>& nccl) {
    return what_of<ConfigError>(
        [&] { static_cast<void>(choose_transport(exchange, nccl, kNoMpi)); });
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
}  // namespace gossamer
