// The timeline of a training on several ranks, each with a clock of its own.

#include "core/trace/step_timeline.hpp"

#include "test/apps/folder.hpp"
#include "test/core/problem.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

using apps::read_file;
using TraceFile = nlohmann::json;

constexpr int kRanks = 4;

/// Seconds apart, and 100 millionths faster from rank to rank.
NanosecondClock clock_of(int rank) {
  return [rank, begin = steady_ns()] {
    const std::int64_t now = steady_ns();
    return now + rank * 3'000'000'000LL + (now - begin) * rank / 10'000;
  };
}

Problem ring_of_four() {
  return {.num_ranks = kRanks,
          .topology = make_topology("ring", {.size = kRanks, .node_size = kRanks}),
          .num_steps = 12};
}

struct Recorded {
  /// Null if there is no file.
  TraceFile file;
  std::vector<std::string> texts = {};
  Trajectory trajectory;
};

/// Trains with a timeline, except with an empty path.
Recorded record(const Problem& problem, const StepTimeline::Config& config) {
  Recorded recorded{.file = nullptr, .trajectory = empty_trajectory(problem)};
  FakeNcclHub hub;
  run_ranks(problem.num_ranks, [&](Communicator& communicator, const World& world) {
    StepTimeline::Config own = config;
    own.clock = clock_of(world.rank);
    StepTimeline timeline(communicator, own);
    TestDevice device(problem.where, communicator, hub);
    Pipeline::Config pipeline = config_of(problem);
    pipeline.stream = device.stream();
    if (!config.path.empty()) pipeline.timeline = timeline.timeline();
    ToyModel model = model_of(problem, device.communicator(), std::move(pipeline));
    const auto drain = [&model] { model.pipeline().drain(); };
    const auto tell = [&](const std::string& text) {
      if (!text.empty()) recorded.texts.push_back(text);
    };
    for (int step = 0; step < problem.num_steps; ++step) {
      if (!config.path.empty()) tell(timeline.before_step(step + 1, drain));
      const TimelineScope scope(timeline.timeline().get(), {.what = "step"});
      train_step(problem, model, world.rank, step);
      recorded.trajectory[static_cast<std::size_t>(step)][static_cast<std::size_t>(world.rank)] =
          model.values();
    }
    if (!config.path.empty()) tell(timeline.finish(drain));
    model.pipeline().drain();
  });
  const std::string text = config.path.empty() ? "" : read_file(config.path);
  if (!text.empty()) recorded.file = TraceFile::parse(text);
  return recorded;
}

/// The timeline of the steps from `begin` to `end`.
TraceFile record_steps(const Problem& problem, std::int64_t begin, std::int64_t end) {
  const Folder folder;
  return record(problem, {.path = folder.file("trace.json"), .steps = {.begin = begin, .end = end}})
      .file;
}

std::vector<TraceFile> spans_of(const TraceFile& file, const std::string& kind) {
  std::vector<TraceFile> spans;
  for (const TraceFile& event : file["traceEvents"]) {
    if (event["ph"] == "X" && (kind.empty() || event["cat"] == kind)) spans.push_back(event);
  }
  return spans;
}

double begin_of(const TraceFile& span) { return span["ts"].get<double>(); }
double end_of(const TraceFile& span) { return begin_of(span) + span["dur"].get<double>(); }

/// Bytes of each bucket's block.
std::vector<std::int64_t> bucket_bytes(const Problem& problem) {
  const auto infos = parameters_of_sizes(problem.sizes, problem.dtype, 0.0);
  std::vector<std::int64_t> bytes;
  for (const BucketSpec& bucket :
       plan_buckets(infos, declared_order(infos.size()), problem.bucket_bytes).buckets) {
    bytes.push_back(bucket.numel * size_of(bucket.dtype));
  }
  return bytes;
}

TEST(StepTimeline, HasEveryRankStepAndBucket) {
  const Folder folder;
  const Problem problem = ring_of_four();
  const auto buckets = bucket_bytes(problem);
  ASSERT_GE(buckets.size(), 2U);
  const Recorded recorded =
      record(problem, {.path = folder.file("new/trace.json"), .steps = {.begin = 4, .end = 9}});
  ASSERT_EQ(recorded.texts.size(), 1U);
  EXPECT_TRUE(contains(recorded.texts[0], "the timeline of 5 steps is in "));
  EXPECT_FALSE(contains(recorded.texts[0], "no room"));
  EXPECT_EQ(recorded.file["otherData"]["dropped_spans"], 0);
  std::map<std::pair<int, std::string>, std::size_t> counts;
  for (const TraceFile& span : spans_of(recorded.file, "")) {
    ++counts[{span["pid"].get<int>(), span["cat"].get<std::string>()}];
    EXPECT_GE(span["args"]["step"], 5);
    EXPECT_LE(span["args"]["step"], 9);
    EXPECT_GE(begin_of(span), 0.0);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ((counts[{rank, "step"}]), 5U);
    for (const char* const kind : {"wait", "update", "queued", "exchange"}) {
      EXPECT_EQ((counts[{rank, kind}]), 5 * buckets.size()) << kind;
    }
  }
  std::vector<std::string> names;
  for (const TraceFile& event : recorded.file["traceEvents"]) {
    if (event["name"] == "process_name") names.push_back(event["args"]["name"]);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"rank 0", "rank 1", "rank 2", "rank 3"}));
}

TEST(StepTimeline, KnowsThePeersAndBytesOfARing) {
  for (const char* const codec : {"fp32", "bf16"}) {
    SCOPED_TRACE(codec);
    Problem problem = ring_of_four();
    problem.codec = codec;
    const std::int64_t plain = size_of(problem.dtype);
    const std::int64_t sent =
        problem.codec == "fp32" ? plain : find_codec(codec)->mixing()->encoded_bytes(1);
    const auto buckets = bucket_bytes(problem);
    const TraceFile file = record_steps(problem, 2, 6);
    EXPECT_EQ(spans_of(file, "exchange").size(), 4 * kRanks * buckets.size());
    for (const TraceFile& span : spans_of(file, "exchange")) {
      const int rank = span["pid"].get<int>();
      const std::int64_t round = span["args"]["round"].get<std::int64_t>();
      const auto bucket = span["args"]["bucket"].get<std::size_t>();
      // Round 0 pairs (0, 1) and (2, 3), round 1 pairs (1, 2) and (3, 0), and so on.
      const int step = (rank + static_cast<int>(round)) % 2 == 0 ? 1 : kRanks - 1;
      EXPECT_EQ(span["args"]["peers"], TraceFile::array({(rank + step) % kRanks})) << span;
      EXPECT_EQ(span["args"]["bytes"], buckets.at(bucket) / plain * sent);
      EXPECT_EQ(span["args"]["step"].get<std::int64_t>(), round + 1);
    }
  }
}

TEST(StepTimeline, AlignsTheClocksOfRanks) {
  Problem problem = ring_of_four();
  // With shared memory a peer may be done before this rank's worker has begun to wait.
  problem.shares_memory = false;
  const TraceFile file = record_steps(problem, 2, 12);
  double round_trip_us = 0.0;
  const TraceFile& clocks = file["otherData"]["clock_at_begin_and_end_of_each_rank"];
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (const TraceFile& reading : clocks[rank]) {
      round_trip_us = std::max(round_trip_us, reading["round_trip_us"].get<double>());
      EXPECT_NEAR(reading["offset_us"].get<double>(), -3e6 * static_cast<double>(rank), 1e5);
    }
  }
  EXPECT_LT(round_trip_us, 1e6);
  // An exchange is over on both ranks after both have started it.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<TraceFile>> meetings;
  for (const TraceFile& span : spans_of(file, "exchange")) {
    meetings[{span["args"]["bucket"], span["args"]["round"]}].push_back(span);
  }
  EXPECT_FALSE(meetings.empty());
  for (const auto& [key, spans] : meetings) {
    EXPECT_EQ(spans.size(), static_cast<std::size_t>(kRanks));
    for (const TraceFile& one : spans) {
      for (const TraceFile& other : spans) {
        if (one["args"]["peers"][0] != other["pid"]) continue;
        EXPECT_GE(end_of(one) + round_trip_us, begin_of(other)) << one << other;
      }
    }
  }
}

TEST(StepTimeline, HasSpansThatLieApartOrInsideOneAnother) {
  Problem problem = ring_of_four();
  // Two messages of each bucket in flight at once.
  problem.algorithm = "gradient_tracking";
  std::map<std::pair<int, int>, std::vector<TraceFile>> threads;
  for (const TraceFile& span : spans_of(record_steps(problem, 2, 12), "")) {
    threads[{span["pid"], span["tid"]}].push_back(span);
  }
  // Per rank: the computing thread, and two threads for each bucket.
  EXPECT_GE(threads.size(), kRanks * (1 + bucket_bytes(problem).size()));
  for (const auto& [thread, spans] : threads) {
    for (const TraceFile& a : spans) {
      EXPECT_GE(a["dur"].get<double>(), 0.0);
      for (const TraceFile& b : spans) {
        // The format has microseconds with three digits.
        constexpr double kDigit = 0.0005;
        const bool crosses = begin_of(a) < begin_of(b) - kDigit &&
                             begin_of(b) < end_of(a) - kDigit && end_of(a) < end_of(b) - kDigit;
        EXPECT_FALSE(crosses) << a << b;
      }
    }
  }
}

TEST(StepTimeline, LeavesTheResultsAsTheyAre) {
  const Folder folder;
  for (const char* const algorithm : {"gossip", "allreduce", "gradient_tracking"}) {
    for (const Where where : {Where::kHost, Where::kDevice}) {
      Problem problem = ring_of_four();
      problem.algorithm = algorithm;
      problem.where = where;
      if (problem.algorithm == "allreduce") problem.same_start = true;
      const Recorded with =
          record(problem, {.path = folder.file("trace.json"), .steps = {.begin = 3, .end = 8}});
      EXPECT_EQ(with.trajectory, record(problem, {}).trajectory) << algorithm;
      EXPECT_FALSE(spans_of(with.file, "update").empty());
    }
  }
}

TEST(StepTimeline, CountsTheBytesOfPieces) {
  Problem problem = ring_of_four();
  // Exchanges go through staging memory, in pieces of 300 bytes.
  problem.where = Where::kDevice;
  problem.sizes = {100, 20};
  const auto buckets = bucket_bytes(problem);
  ASSERT_GT(buckets[0], 600);
  std::map<std::tuple<int, std::size_t, int>, std::int64_t> sums;
  for (const TraceFile& span : spans_of(record_steps(problem, 2, 6), "exchange")) {
    const TraceFile& about = span["args"];
    sums[{span["pid"], about["bucket"], about["round"]}] += about["bytes"].get<std::int64_t>();
  }
  EXPECT_EQ(sums.size(), kRanks * buckets.size() * 4);
  for (const auto& [key, bytes] : sums) EXPECT_EQ(bytes, buckets.at(std::get<1>(key)));
}

TEST(StepTimeline, NamesTheOthersOfAnAllReduce) {
  Problem problem = ring_of_four();
  problem.algorithm = "allreduce";
  problem.same_start = true;
  const auto spans = spans_of(record_steps(problem, 2, 6), "all-reduce");
  EXPECT_EQ(spans.size(), kRanks * bucket_bytes(problem).size() * 4);
  for (const TraceFile& span : spans) {
    std::vector<int> others = {0, 1, 2, 3};
    std::erase(others, span["pid"].get<int>());
    EXPECT_EQ(span["args"]["peers"].get<std::vector<int>>(), others);
  }
}

TEST(StepTimeline, TellsHowManySpansFoundNoRoom) {
  const Folder folder;
  const Recorded recorded =
      record(ring_of_four(),
             {.path = folder.file("trace.json"), .steps = {.begin = 2, .end = 12}, .capacity = 20});
  EXPECT_EQ(spans_of(recorded.file, "").size(), 20U * kRanks);
  const auto dropped = recorded.file["otherData"]["dropped_spans"].get<std::int64_t>();
  EXPECT_GT(dropped, 0);
  ASSERT_EQ(recorded.texts.size(), 1U);
  EXPECT_TRUE(contains(recorded.texts[0],
                       concat(dropped, " of ", dropped + 20 * kRanks, " spans found no room")));
}

TEST(StepTimeline, EndsWithTheRun) {
  const Folder folder;
  const Recorded cut =
      record(ring_of_four(), {.path = folder.file("a.json"), .steps = {.begin = 10, .end = 30}});
  ASSERT_EQ(cut.texts.size(), 1U);
  EXPECT_TRUE(contains(cut.texts[0], "the timeline of 2 steps"));
  const Recorded none =
      record(ring_of_four(), {.path = folder.file("b.json"), .steps = {.begin = 12, .end = 30}});
  ASSERT_EQ(none.texts.size(), 1U);
  EXPECT_TRUE(contains(none.texts[0], "there is no timeline: the run has ended after 12 steps"));
  EXPECT_TRUE(none.file.is_null());
}

/// One rank comes later, and one has repeated a step.
TEST(StepTimeline, FollowsRank0IntoANewWorld) {
  const Folder folder;
  const std::string path = folder.file("trace.json");
  run_ranks(3, [&](Communicator& communicator, const World& world) {
    const bool is_new = world.rank == 2;
    StepTimeline timeline(communicator, {.path = is_new ? "" : path,
                                         .about = "a run",
                                         .steps = {.begin = 4, .end = is_new ? 99 : 8},
                                         .clock = clock_of(world.rank)});
    const auto drain = [] {};
    if (!is_new) timeline.before_step(11, drain);
    if (world.rank == 1) timeline.before_step(11, drain);
    timeline.enter_world(1);
    for (int step = 12; step < 17; ++step) {
      EXPECT_EQ(timeline.before_step(step, drain), "");
      const TimelineScope scope(timeline.timeline().get(), {.what = "step"});
    }
    // Now the clocks have been compared.
    timeline.enter_world(6);
    for (int step = 17; step < 20; ++step) {
      const std::string text = timeline.before_step(step, drain);
      EXPECT_EQ(contains(text, "the timeline of 4 steps"), step == 19 && world.rank == 0) << text;
      const TimelineScope scope(timeline.timeline().get(), {.what = "step"});
    }
    EXPECT_EQ(timeline.finish(drain), "");
  });
  const TraceFile file = TraceFile::parse(read_file(path));
  std::map<int, std::vector<std::string>> steps;
  double last = 0.0;
  for (const TraceFile& span : spans_of(file, "step")) {
    steps[span["pid"].get<int>()].push_back(span["name"]);
    last = std::max(last, end_of(span));
  }
  const std::vector<std::string> expected = {"step 15", "step 16", "step 17", "step 18"};
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(steps[rank], expected) << rank;
  // The clocks are 3 s apart.
  EXPECT_LT(last, 3e6);
}

TEST(StepTimeline, FailsOnTheRankThatWrites) {
  const Folder folder;
  apps::write_bytes(folder.file("file"), "x");
  run_ranks(2, [&](Communicator& communicator, const World& world) {
    StepTimeline timeline(
        communicator, {.path = folder.file("file/trace.json"), .steps = {.begin = 0, .end = 1}});
    const auto drain = [] {};
    timeline.before_step(1, drain);
    if (world.rank == 0) {
      EXPECT_TRUE(
          contains(what_of<CheckpointError>([&] { timeline.finish(drain); }), "trace.json"));
    } else {
      EXPECT_EQ(timeline.finish(drain), "");
    }
    // Once is enough.
    EXPECT_EQ(timeline.finish(drain), "");
    EXPECT_EQ(timeline.before_step(2, drain), "");
  });
}

TEST(StepTimeline, LeavesADeviceInItsPlace) {
  const Folder folder;
  std::filesystem::create_symlink("/dev/null", folder.file("trace"));
  const Recorded recorded =
      record(ring_of_four(), {.path = folder.file("trace"), .steps = {.begin = 2, .end = 6}});
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("trace")));
}

TEST(TimelineSteps, AreReadFromText) {
  ASSERT_TRUE(parse_timeline_steps("10:30"));
  EXPECT_EQ(parse_timeline_steps("0:1")->begin, 0);
  EXPECT_EQ(parse_timeline_steps("0:1")->end, 1);
  for (const char* const wrong :
       {"", ":", "10", "10:", ":30", "3:3", "4:3", "-1:3", "a:b", "1:2:3", "1: 2", "1.5:3"}) {
    EXPECT_FALSE(parse_timeline_steps(wrong)) << wrong;
  }
}

TEST(TimelineSteps, FitShortRuns) {
  const auto both = [](std::int64_t total) {
    const TimelineSteps steps = default_timeline_steps(total);
    return std::pair(steps.begin, steps.end);
  };
  EXPECT_EQ(both(1'000), std::pair(std::int64_t{10}, std::int64_t{30}));
  EXPECT_EQ(both(25), std::pair(std::int64_t{10}, std::int64_t{25}));
  EXPECT_EQ(both(8), std::pair(std::int64_t{4}, std::int64_t{8}));
  EXPECT_EQ(both(1), std::pair(std::int64_t{0}, std::int64_t{1}));
}

}  // namespace
}  // namespace gossamer
