#include "apps/train/compute_threads.hpp"

#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer::apps {
namespace {

/// A rank that may use `count` processors from `first` on.
UsableCores bound_to(int first, int count) {
  UsableCores cores;
  cores.processors.resize(static_cast<std::size_t>(count));
  std::iota(cores.processors.begin(), cores.processors.end(), first);
  return cores;
}

UsableCores limited_to(int count, double quota, const std::string& cgroup) {
  UsableCores cores = bound_to(0, count);
  cores.quota = quota;
  cores.quota_from = cgroup;
  return cores;
}

TEST(ComputeThreads, AreAnEvenShareOfTheHost) {
  const UsableCores own = bound_to(0, 12);
  const ThreadShare share = share_of_cores(own, {own, own, own});
  EXPECT_EQ(share.threads, 4);
  EXPECT_EQ(share.reason, "4 compute threads per rank: 12 processors, shared by 3 ranks");
}

TEST(ComputeThreads, OfARankBoundAloneAreAllItsProcessors) {
  const UsableCores own = bound_to(4, 4);
  EXPECT_EQ(share_of_cores(own, {bound_to(0, 4), own, bound_to(8, 4)}).threads, 4);
}

TEST(ComputeThreads, OfTheRanksOfAContainerShareItsQuota) {
  const UsableCores own = limited_to(64, 4.0, "/sys/fs/cgroup/pod");
  const ThreadShare share = share_of_cores(own, {own, own});
  EXPECT_EQ(share.threads, 2);
  EXPECT_EQ(share.reason,
            "2 compute threads per rank: the CPU quota of /sys/fs/cgroup/pod is 4 cores, shared by "
            "2 ranks");
}

TEST(ComputeThreads, OfContainersOnOneHostHaveAQuotaEach) {
  const UsableCores own = limited_to(64, 4.0, "/sys/fs/cgroup/a");
  EXPECT_EQ(share_of_cores(own, {own, limited_to(64, 2.0, "/sys/fs/cgroup/b")}).threads, 4);
}

TEST(ComputeThreads, OfAQuotaAboveTheProcessorsAreTheProcessors) {
  const UsableCores own = limited_to(2, 8.0, "/sys/fs/cgroup/pod");
  EXPECT_EQ(share_of_cores(own, {own}).reason, "2 compute threads per rank: 2 processors");
}

TEST(ComputeThreads, AreAtLeastOne) {
  const UsableCores own = limited_to(2, 0.5, "/sys/fs/cgroup/pod");
  EXPECT_EQ(share_of_cores(own, {own, own, own}).threads, 1);
}

}  // namespace
}  // namespace gossamer::apps
