#include "base/timeline.hpp"

#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

/// Every reading is 1 more than the one before.
NanosecondClock counting_clock() {
  return [now = std::int64_t{0}]() mutable { return ++now; };
}

TEST(TimelineScope, RecordsItsTimeAndItsStep) {
  Timeline timeline(4, counting_clock());
  timeline.begin_step(7);
  {
    const TimelineScope outer(&timeline, {.what = "backward"});
    const TimelineScope inner(&timeline, {.what = "wait", .bucket = 2, .round = 6});
  }
  const auto spans = timeline.spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].label.what, "wait");
  EXPECT_EQ(spans[0].label.bucket, 2);
  EXPECT_EQ(spans[0].label.round, 6);
  EXPECT_EQ(spans[0].step, 7);
  EXPECT_EQ(spans[0].start_ns, 2);
  EXPECT_EQ(spans[0].end_ns, 3);
  EXPECT_EQ(spans[1].label.what, "backward");
  EXPECT_EQ(spans[1].start_ns, 1);
  EXPECT_EQ(spans[1].end_ns, 4);
}

TEST(TimelineScope, RecordsNothingWithoutATimelineAndWhilePaused) {
  { const TimelineScope scope(nullptr, {.what = "wait"}); }
  Timeline timeline(4, counting_clock());
  { const TimelineScope scope(&timeline, {.what = "wait"}); }
  timeline.begin_step(1);
  {
    const TimelineScope scope(&timeline, {.what = "forward"});
    timeline.pause();
    const TimelineScope late(&timeline, {.what = "wait"});
  }
  const auto spans = timeline.spans();
  // What begins while the timeline records counts, though it ends later.
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].label.what, "forward");
  // No reading of the clock for what is not recorded.
  EXPECT_EQ(timeline.now_ns(), 3);
}

TEST(Timeline, CountsSpansThatFindNoRoom) {
  Timeline timeline(3);
  timeline.begin_step(1);
  for (int i = 0; i < 5; ++i) const TimelineScope scope(&timeline, {.what = "update", .bucket = i});
  ASSERT_EQ(timeline.spans().size(), 3U);
  EXPECT_EQ(timeline.spans().back().label.bucket, 2);
  EXPECT_EQ(timeline.num_dropped(), 2);
}

TEST(Timeline, TakesSpansOfSeveralThreads) {
  Timeline timeline;
  timeline.begin_step(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&timeline, t] {
      for (int i = 0; i < 500; ++i) {
        const TimelineScope scope(&timeline, {.what = "update", .bucket = t});
        // Others may read meanwhile.
        if (i % 100 == 0) {
          EXPECT_LE(timeline.spans().size(), 2000U);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(timeline.spans().size(), 2000U);
  EXPECT_EQ(timeline.num_dropped(), 0);
}

TEST(TimelineSpan, KeepsTheFirstPeersAndCountsAll) {
  TimelineSpan span;
  EXPECT_TRUE(span.known_peers().empty());
  span.set_peers(std::vector<int>{3, 1});
  EXPECT_EQ(std::vector<int>(span.known_peers().begin(), span.known_peers().end()),
            (std::vector<int>{3, 1}));
  std::vector<int> many(20, 5);
  span.set_peers(many);
  EXPECT_EQ(span.num_peers, 20);
  EXPECT_EQ(span.known_peers().size(), TimelineSpan::kMostPeers);
}

}  // namespace
}  // namespace gossamer
