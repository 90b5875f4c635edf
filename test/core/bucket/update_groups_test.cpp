#include "core/bucket/update_groups.hpp"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "base/host_stream.hpp"
#include "optim/registry.hpp"

namespace gossamer {
namespace {

/// Buckets of one parameter each.
class Buckets {
 public:
  void add(std::int64_t numel, DType dtype = DType::kFloat32, const char* optimizer = "sgd") {
    const ParameterInfo info{
        .name = "p",
        .shape = {numel},
        .dtype = dtype,
        .optimizer = std::shared_ptr<const Optimizer>(make_optimizer(optimizer))};
    optimizers_.push_back(info.optimizer);
    const std::vector<std::int64_t> order = {0};
    const BucketSpec spec = plan_buckets(std::span(&info, 1), order, 1).buckets.front();
    buckets_.emplace_back(std::ssize(buckets_), spec, std::span(&info, 1),
                          Bucket::Memory{.model = allocate_parameters(spec, stream_)}, *sgd_,
                          stream_);
  }
  /// The numbers of buckets in the groups.
  std::vector<std::size_t> sizes(const Stream& stream, std::int64_t group_bytes = kGroupBytes) {
    std::vector<std::size_t> sizes;
    for (const auto group : groups_of(buckets_, stream, group_bytes)) sizes.push_back(group.size());
    return sizes;
  }
  [[nodiscard]] const Stream& stream() const { return stream_; }

 private:
  ThreadStream stream_;
  std::unique_ptr<const Optimizer> sgd_ = make_optimizer("sgd");
  std::vector<std::shared_ptr<const Optimizer>> optimizers_;
  std::vector<Bucket> buckets_;
};

using Sizes = std::vector<std::size_t>;

TEST(UpdateGroups, HoldNeighboursUpToTheirBytes) {
  Buckets buckets;
  for (int i = 0; i < 20; ++i) buckets.add(256);
  EXPECT_EQ(buckets.sizes(buckets.stream(), 8 * 1024), (Sizes{8, 8, 4}));
  EXPECT_EQ(buckets.sizes(buckets.stream(), 8 * 1024 - 1), (Sizes{7, 7, 6}));
}

TEST(UpdateGroups, LeaveALargeBucketAlone) {
  Buckets buckets;
  for (const std::int64_t numel : {64, 64, 5000, 64, 64, 64}) buckets.add(numel);
  EXPECT_EQ(buckets.sizes(buckets.stream(), 1024), (Sizes{2, 1, 3}));
}

TEST(UpdateGroups, HoldAtMost32Buckets) {
  Buckets buckets;
  for (int i = 0; i < 70; ++i) buckets.add(32);
  EXPECT_EQ(buckets.sizes(buckets.stream()), (Sizes{32, 32, 6}));
}

TEST(UpdateGroups, HoldOneTypeAndOneOptimizer) {
  Buckets buckets;
  for (const DType dtype : {DType::kFloat32, DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    buckets.add(32, dtype);
  }
  buckets.add(32, DType::kFloat64, "adamw");
  buckets.add(32, DType::kFloat64);
  EXPECT_EQ(buckets.sizes(buckets.stream()), (Sizes{2, 1, 1, 1, 1}));
}

TEST(UpdateGroups, AreSingleBucketsWhereWorkIsDoneAtOnce) {
  Buckets buckets;
  for (int i = 0; i < 3; ++i) buckets.add(32);
  EXPECT_EQ(buckets.sizes(InlineStream()), (Sizes{1, 1, 1}));
}

TEST(UpdateGroups, AreNoneWithoutBuckets) { EXPECT_TRUE(groups_of({}, InlineStream()).empty()); }

}  // namespace
}  // namespace gossamer
