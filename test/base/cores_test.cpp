#include "base/cores.hpp"

#include "test/base/folder.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sched.h>

namespace gossamer {
namespace {

/// The files of a machine that say which quotas a process has.
class Machine {
 public:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_.file("") + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] UsableCores cores() const { return usable_cores(folder_.file(".")); }

 private:
  Folder folder_;
};

constexpr const char* kUnifiedMount =
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(Cores, AreThoseOfTheBoundProcessorsWithoutAQuota) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  const UsableCores cores = Machine().cores();
  EXPECT_EQ(cores.count(), CPU_COUNT(&set));
  EXPECT_FALSE(cores.quota);
}

TEST(Cores, OfAQuotaOfVersionTwo) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/\n");
  machine.write("/proc/self/mountinfo", kUnifiedMount);
  machine.write("/sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(machine.cores().quota, 1.5);
  EXPECT_EQ(machine.cores().count(), 1);
  EXPECT_EQ(machine.cores().quota_from, "/sys/fs/cgroup");
}

TEST(Cores, OfTheSmallestQuotaAboveTheProcess) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/pod/box/job\n");
  machine.write("/proc/self/mountinfo", kUnifiedMount);
  machine.write("/sys/fs/cgroup/pod/cpu.max", "200000 100000\n");
  machine.write("/sys/fs/cgroup/pod/box/cpu.max", "75000 50000\n");
  machine.write("/sys/fs/cgroup/pod/box/job/cpu.max", "max 100000\n");
  EXPECT_EQ(machine.cores().quota, 1.5);
  EXPECT_EQ(machine.cores().quota_from, "/sys/fs/cgroup/pod/box");
}

TEST(Cores, OfAQuotaOfVersionOne) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n1:name=systemd:/\n0::/\n");
  machine.write("/proc/self/mountinfo",
                "31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
                "33 25 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "34 25 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n");
  machine.write("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "250000\n");
  machine.write("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  machine.write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.cores().quota, 2.5);
}

// A container without a namespace of cgroups sees its own folder at the mount point.
TEST(Cores, OfAMountThatBeginsAtTheContainersCgroup) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "4:cpu:/docker/1f/inner\n");
  machine.write("/proc/self/mountinfo",
                "34 25 0:31 /docker/1f /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  machine.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  machine.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(machine.cores().quota, 3.0);
}

TEST(Cores, OfAPlaceOutsideTheMountAreThoseOfTheMount) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/../other\n");
  machine.write("/proc/self/mountinfo", kUnifiedMount);
  machine.write("/sys/fs/cgroup/cpu.max", "400000 100000\n");
  EXPECT_EQ(machine.cores().quota, 4.0);
}

TEST(Cores, FindAMountPointWithABlank) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/\n");
  machine.write("/proc/self/mountinfo", "30 23 0:26 / /sys/a\\040b rw - cgroup2 cgroup2 rw\n");
  machine.write("/sys/a b/cpu.max", "100000 100000\n");
  EXPECT_EQ(machine.cores().quota, 1.0);
}

TEST(Cores, AreAtLeastOne) {
  const UsableCores cores{.processors = {3, 4}, .quota = 0.25};
  EXPECT_EQ(cores.count(), 1);
}

TEST(Cores, AreNoMoreThanTheBoundProcessors) {
  const UsableCores cores{.processors = {3, 4}, .quota = 64.0};
  EXPECT_EQ(cores.count(), 2);
}

TEST(Cores, OfFilesWithoutSenseAreThoseOfTheBoundProcessors) {
  const Machine machine;
  machine.write("/proc/self/cgroup", "nonsense\n0::/\n::\n");
  machine.write("/proc/self/mountinfo", std::string("- - -\n1 2\n") + kUnifiedMount);
  machine.write("/sys/fs/cgroup/cpu.max", "many per cent\n");
  EXPECT_FALSE(machine.cores().quota);
}

}  // namespace
}  // namespace gossamer
