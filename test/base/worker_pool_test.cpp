#include "base/worker_pool.hpp"

#include "test/base/few_threads.hpp"
#include "test/base/thrown.hpp"

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(WorkerPool, RunsEveryPartOnceInEveryTurn) {
  for (int num_threads = 1; num_threads <= 5; ++num_threads) {
    WorkerPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    std::vector<std::atomic<int>> counts(static_cast<std::size_t>(num_threads));
    for (int turn = 1; turn <= 200; ++turn) {
      pool.run([&](int part) { ++counts[static_cast<std::size_t>(part)]; });
      for (const auto& count : counts) ASSERT_EQ(count, turn);
    }
  }
}

TEST(WorkerPool, PassesErrorsOnAndGoesOn) {
  WorkerPool pool(3);
  for (int bad = 0; bad < 3; ++bad) {
    const auto part = [bad](int index) {
      if (index == bad) throw std::runtime_error("part");
    };
    EXPECT_THROW(pool.run(part), std::runtime_error) << bad;
    std::atomic<int> count = 0;
    pool.run([&](int) { ++count; });
    EXPECT_EQ(count, 3);
  }
}

TEST(WorkerPool, NeedsAThread) { EXPECT_THROW(WorkerPool(0), std::logic_error); }

TEST(WorkerPool, SaysSoWhenTheSystemGivesNoThread) {
  for (const int num_threads : {0, 2}) {
    const FewThreads few(num_threads);
    const std::string error = what_of<std::runtime_error>([] { const WorkerPool pool(5); });
    EXPECT_CONTAINS(error, "no more threads");
  }
}

TEST(PartRange, CutsEverythingIntoContiguousParts) {
  for (const std::int64_t numel : {0, 1, 31, 32, 33, 1000, 4097}) {
    for (const std::int64_t grain : {1, 32}) {
      for (int parts = 1; parts <= 7; ++parts) {
        std::int64_t next = 0;
        std::int64_t most = 0;
        for (int index = 0; index < parts; ++index) {
          const PartRange range = part_range(numel, parts, index, grain);
          EXPECT_EQ(range.first, next);
          EXPECT_TRUE(range.first % grain == 0 || range.first == numel);
          EXPECT_LE(range.first, range.last);
          most = std::max(most, range.last - range.first);
          next = range.last;
        }
        EXPECT_EQ(next, numel);
        EXPECT_LT(most, numel / parts + 2 * grain);
      }
    }
  }
}

}  // namespace
}  // namespace gossamer
