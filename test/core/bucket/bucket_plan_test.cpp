#include "core/bucket/bucket_plan.hpp"

#include "test/base/thrown.hpp"
#include "test/core/ranks.hpp"
#include "test/core/toy_model.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/forwarding_communicator.hpp"
#include "core/exchange/shard.hpp"
#include "optim/registry.hpp"

namespace gossamer {
namespace {

using Indices = std::vector<std::int64_t>;

/// The parameters of every bucket.
std::vector<Indices> cut(const BucketPlan& plan) {
  std::vector<Indices> buckets;
  for (const BucketSpec& spec : plan.buckets) {
    Indices& bucket = buckets.emplace_back();
    for (const BucketEntry& entry : spec.entries) bucket.push_back(entry.parameter);
  }
  return buckets;
}

std::vector<Indices> cut_sizes(const std::vector<std::int64_t>& sizes, std::int64_t limit_bytes) {
  const auto infos = parameters_of_sizes(sizes, DType::kFloat32);
  return cut(plan_buckets(infos, declared_order(sizes.size()), limit_bytes));
}

TEST(BucketPlan, ClosesWithTheParameterThatReachesTheLimit) {
  // 32 floats are 128 bytes.
  const std::vector<std::int64_t> sizes = {32, 32, 32, 32, 32};
  EXPECT_EQ(cut_sizes(sizes, 256), (std::vector<Indices>{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(cut_sizes(sizes, 255), (std::vector<Indices>{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(cut_sizes(sizes, 257), (std::vector<Indices>{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(cut_sizes(sizes, 128), (std::vector<Indices>{{0}, {1}, {2}, {3}, {4}}));
  EXPECT_EQ(cut_sizes(sizes, 1), (std::vector<Indices>{{0}, {1}, {2}, {3}, {4}}));
  EXPECT_EQ(cut_sizes(sizes, 1 << 20), (std::vector<Indices>{{0, 1, 2, 3, 4}}));
}

TEST(BucketPlan, LetsALargeParameterOverflowItsBucket) {
  EXPECT_EQ(cut_sizes({8, 100'000, 8}, 1024), (std::vector<Indices>{{0, 1}, {2}}));
}

TEST(BucketPlan, CountsRoundedSizes) {
  // Ten scalars take 128 bytes each.
  EXPECT_EQ(cut_sizes(std::vector<std::int64_t>(10, 1), 512).size(), 3U);
}

TEST(BucketPlan, RoundsEveryParameterTo128Bytes) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    const std::int64_t unit = 128 / size_of(dtype);
    const auto infos = parameters_of_sizes({1, unit, unit + 1, 0, 5}, dtype);
    const BucketPlan plan = plan_buckets(infos, declared_order(5), 1 << 20);
    ASSERT_EQ(plan.buckets.size(), 1U);
    Indices offsets;
    for (const BucketEntry& entry : plan.buckets[0].entries) offsets.push_back(entry.offset);
    EXPECT_EQ(offsets, (Indices{0, unit, 2 * unit, 4 * unit, 4 * unit}));
    EXPECT_EQ(plan.buckets[0].numel, 5 * unit);
    EXPECT_EQ(plan.buckets[0].bytes(), 5 * 128);
    EXPECT_EQ(plan.bytes(), 5 * 128);
  }
}

TEST(BucketPlan, FollowsTheOrderOfArrival) {
  const auto infos = parameters_of_sizes({32, 32, 32}, DType::kFloat32);
  EXPECT_EQ(cut(plan_buckets(infos, Indices{2, 0, 1}, 256)), (std::vector<Indices>{{2, 0}, {1}}));
}

TEST(BucketPlan, KeepsTypesApart) {
  std::vector<ParameterInfo> infos = parameters_of_sizes({32, 32, 32, 32, 32, 32}, DType::kFloat32);
  infos[1].dtype = DType::kFloat64;
  infos[3].dtype = DType::kFloat64;
  const BucketPlan plan = plan_buckets(infos, declared_order(6), 1 << 20);
  EXPECT_EQ(cut(plan), (std::vector<Indices>{{0, 2, 4, 5}, {1, 3}}));
  EXPECT_EQ(plan.buckets[1].dtype, DType::kFloat64);
  // Buckets fill up side by side, and full buckets come first.
  EXPECT_EQ(cut(plan_buckets(infos, declared_order(6), 512)),
            (std::vector<Indices>{{1, 3}, {0, 2, 4, 5}}));
}

TEST(BucketPlan, PutsUnseenParametersIntoLastBuckets) {
  const auto infos = parameters_of_sizes({32, 32, 32, 32, 32}, DType::kFloat32);
  const std::vector<Indices> expected = {{3, 1}, {0, 2, 4}};
  EXPECT_EQ(cut(plan_buckets(infos, Indices{3, 1}, 1 << 20)), expected);
  EXPECT_EQ(cut(plan_buckets(infos, Indices{}, 256)), (std::vector<Indices>{{0, 1}, {2, 3}, {4}}));
  EXPECT_TRUE(plan_buckets({}, Indices{}, 256).buckets.empty());
}

TEST(BucketPlan, RefusesABadOrder) {
  const auto infos = parameters_of_sizes({32, 32}, DType::kFloat32);
  EXPECT_THROW((void)plan_buckets(infos, Indices{0, 2}, 1), std::logic_error);
  EXPECT_THROW((void)plan_buckets(infos, Indices{-1}, 1), std::logic_error);
  EXPECT_THROW((void)plan_buckets(infos, Indices{1, 1}, 1), std::logic_error);
}

TEST(BucketPlan, HoldsOneKindOfOptimizerInABucket) {
  std::vector<ParameterInfo> infos = parameters_of_sizes({32, 32, 32, 32}, DType::kFloat32);
  const std::shared_ptr<const Optimizer> adamw = make_optimizer("adamw");
  const std::shared_ptr<const Optimizer> other =
      make_optimizer("adamw", Options::parse("eps: 0.5"));
  const std::shared_ptr<const Optimizer> muon = make_optimizer("muon");
  infos[0].optimizer = adamw;
  infos[1].optimizer = muon;
  infos[2].optimizer = other;
  infos[3].optimizer = muon;
  const BucketPlan plan = plan_buckets(infos, Indices{0, 1, 2, 3}, 1 << 20);
  ASSERT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets[0].entries[0].parameter, 0);
  EXPECT_EQ(plan.buckets[0].entries[1].parameter, 2);
  EXPECT_EQ(plan.buckets[1].entries[0].parameter, 1);
  EXPECT_EQ(plan.buckets[1].entries[1].parameter, 3);
}

TEST(BucketPlan, RefusesAnOptimizerOfMatricesForVectors) {
  std::vector<ParameterInfo> infos = parameters_of_sizes({32, 8}, DType::kFloat32);
  infos[1].shape = {8};
  const auto muon = make_optimizer("muon");
  const std::string what = what_of<ConfigError>([&] { check_matrices(infos, *muon); });
  EXPECT_TRUE(contains(what, "none: p1; give them another one in optimizer.groups")) << what;
  infos[1].optimizer = make_optimizer("adamw");
  EXPECT_NO_THROW(check_matrices(infos, *muon));
}

TEST(Shards, BeginAtBordersWhereThereAreSome) {
  const std::vector<std::int64_t> borders = {0, 64, 96, 800};
  for (int count = 1; count <= 6; ++count) {
    for (std::int64_t turn = 0; turn < 3; ++turn) {
      std::vector<Shard> shards;
      for (int place = 0; place < count; ++place) {
        shards.push_back(shard_of(1024, DType::kFloat32, place, count, borders, turn));
      }
      std::ranges::sort(shards, {}, [](const Shard& shard) { return shard.first + shard.last(); });
      std::int64_t next = 0;
      for (const Shard& shard : shards) {
        EXPECT_EQ(shard.first, next);
        EXPECT_TRUE(next == 1024 || std::ranges::find(borders, next) != borders.end());
        next = shard.last();
      }
      EXPECT_EQ(next, 1024);
    }
  }
  EXPECT_EQ(shard_of(1024, DType::kFloat32, 1, 2, borders).first, 800);
}

TEST(Shards, OfSingleMatricesGoRoundTheMembers) {
  const std::vector<std::int64_t> one_matrix = {0};
  std::set<int> owners;
  for (std::int64_t turn = 0; turn < 4; ++turn) {
    for (int place = 0; place < 4; ++place) {
      const Shard shard = shard_of(1024, DType::kFloat32, place, 4, one_matrix, turn);
      if (shard.numel == 1024) owners.insert(place);
    }
  }
  EXPECT_EQ(owners.size(), 4U);
}

TEST(BucketPlan, DescribesItself) {
  std::vector<ParameterInfo> infos = parameters_of_sizes({32, 8}, DType::kFloat32);
  infos[0].shape = {32};
  infos[1].shape = {2, 4};
  const std::string table = describe(plan_buckets(infos, Indices{1, 0}, 1), infos);
  EXPECT_TRUE(contains(table, "bucket 0: 32 float32 elements, 128 B, 1 parameters: p1")) << table;
  EXPECT_TRUE(contains(table, "bucket 1:")) << table;
  EXPECT_EQ(describe(infos), "p0 [32] float32\np1 [2, 4] float32\n");
}

TEST(Agree, IsSilentWhenAllRanksSayTheSame) {
  for (const int n : {1, 2, 5}) {
    run_ranks(n, [](Communicator& communicator, const World&) {
      EXPECT_NO_THROW(agree(communicator, "their models", "a\nb\n"));
      EXPECT_NO_THROW(agree(communicator, "nothing", ""));
    });
  }
}

TEST(AgreeWithFirst, LetsTheRanksThatDifferLeaveAlone) {
  const std::vector<std::string> lines = {"a\nb", "a\nc", "a\nb"};
  run_ranks(3, [&](Communicator& communicator, const World& world) {
    const std::string& own = lines[static_cast<std::size_t>(world.rank)];
    EXPECT_EQ(
        what_of<ConfigError>([&] { agree_with_first(communicator, "the order", own); }),
        world.rank == 1 ? "the ranks differ in the order: rank 0 has \"b\", rank 1 has \"c\"" : "");
    communicator.barrier();
  });
}

/// Counts the bytes of text that this rank has got from all ranks.
class CountingCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  std::vector<std::string> all_gather(std::string text) override {
    std::vector<std::string> all = ForwardingCommunicator::all_gather(std::move(text));
    for (const std::string& one : all) num_bytes_ += one.size();
    return all;
  }
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }

 private:
  std::size_t num_bytes_ = 0;
};

TEST(Agree, GathersHashesOfTextsThatAreEqual) {
  const std::string model(100'000, 'x');
  run_ranks(6, [&](Communicator& communicator, const World&) {
    CountingCommunicator counting(communicator);
    agree(counting, "their models", model);
    agree_with_first(counting, "their models", model);
    // Two times a hash of 64 digits from each of 6 ranks.
    EXPECT_EQ(counting.num_bytes(), 768U);
  });
}

TEST(Agree, GathersTheTwoTextsThatItQuotes) {
  run_ranks(6, [&](Communicator& communicator, const World& world) {
    CountingCommunicator counting(communicator);
    const std::string model(100'000, world.rank < 2 ? 'x' : 'y');
    EXPECT_THROW(agree(counting, "their models", model), ConfigError);
    EXPECT_EQ(counting.num_bytes(), 200'384U);
  });
}

TEST(AgreeWithFirst, GathersTheTextOfTheFirst) {
  run_ranks(6, [&](Communicator& communicator, const World& world) {
    CountingCommunicator counting(communicator);
    const std::string model(100'000, world.rank < 2 ? 'x' : 'y');
    const std::string error =
        what_of<ConfigError>([&] { agree_with_first(counting, "their models", model); });
    EXPECT_EQ(error.empty(), world.rank < 2) << error;
    EXPECT_EQ(counting.num_bytes(), 100'384U);
  });
}

TEST(GatherDistinct, SendsEveryTextOnce) {
  const std::string a(1000, 'a');
  const std::string b(1000, 'b');
  struct Case {
    std::vector<std::string> texts;
    std::vector<std::string> distinct;
    /// Beside a hash of 64 digits from each rank.
    std::size_t num_bytes;
  };
  for (const auto& [texts, distinct, num_bytes] :
       {Case{{a, a, a}, {a}, 0}, Case{{b, a, b}, {b, a}, 2000}, Case{{"", a, ""}, {"", a}, 1000}}) {
    run_ranks(3, [&](Communicator& communicator, const World& world) {
      CountingCommunicator counting(communicator);
      EXPECT_EQ(gather_distinct(counting, texts[static_cast<std::size_t>(world.rank)]), distinct);
      EXPECT_EQ(counting.num_bytes(), 192 + num_bytes);
    });
  }
}

/// The message that `agree` throws on each rank.
std::vector<std::string> disagreement(const std::vector<std::string>& lines) {
  std::vector<std::string> errors(lines.size());
  run_ranks(static_cast<int>(lines.size()), [&](Communicator& communicator, const World& world) {
    const auto place = static_cast<std::size_t>(world.rank);
    errors[place] = what_of<ConfigError>([&] { agree(communicator, "the order", lines[place]); });
    // All ranks have failed alike, and none is left waiting.
    communicator.barrier();
  });
  return errors;
}

TEST(Agree, QuotesOfLongLinesThePartThatDiffers) {
  const std::string same(1000, 'a');
  const auto errors = disagreement({same + "b" + same, same + "c" + same});
  const auto part = [](char different) {
    return concat("\"...", std::string(40, 'a'), different, std::string(119, 'a'), "...\"");
  };
  for (const std::string& error : errors) {
    EXPECT_EQ(error, concat("the ranks differ in the order: rank 0 has ", part('b'),
                            ", rank 1 has ", part('c')));
  }
}

TEST(Agree, NamesTheFirstDifferenceOnAllRanks) {
  const auto errors = disagreement({"a\nb\nc", "a\nb\nc", "a\nX\nY", "Z"});
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "the ranks differ in the order: rank 0 has \"b\", rank 2 has \"X\"");
  }
}

TEST(Agree, NoticesMissingAndAdditionalLines) {
  EXPECT_EQ(disagreement({"a\nb", "a"})[1],
            "the ranks differ in the order: rank 0 has \"b\", rank 1 has nothing");
  EXPECT_TRUE(contains(disagreement({"", "a"})[0], "rank 1 has \"a\""));
}

TEST(Agree, NoticesTextsThatDifferInALineBreakOnly) {
  for (const std::string& error : disagreement({"a", "a\n"})) {
    EXPECT_TRUE(contains(error, "the ranks differ in the order")) << error;
  }
  for (const std::string& error : disagreement({"a\n(nothing)", "a"})) {
    EXPECT_TRUE(contains(error, "the ranks differ in the order")) << error;
  }
}

}  // namespace
}  // namespace gossamer
