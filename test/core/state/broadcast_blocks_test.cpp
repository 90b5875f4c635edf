#include "core/state/broadcast_blocks.hpp"

#include "test/base/thrown.hpp"
#include "test/core/ranks.hpp"
#include "test/support/thread_stream.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "comm/forwarding_communicator.hpp"

namespace gossamer {
namespace {

/// Notes the bytes of every broadcast.
class BroadcastNoter : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Request broadcast(Block block, int root, OpContext context) override {
    EXPECT_NE(context.owner, nullptr);
    bytes.push_back(block.bytes());
    return ForwardingCommunicator::broadcast(block, root, std::move(context));
  }
  std::vector<std::int64_t> bytes;
};

/// Fails every broadcast.
class BrokenCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  Request broadcast(Block /*block*/, int /*root*/, OpContext /*context*/) override {
    auto state = std::make_shared<RequestState>();
    state->fail("a peer is gone");
    return Request(std::move(state));
  }
};

using Values = std::vector<std::vector<std::int64_t>>;

Values values_of(const std::vector<std::size_t>& sizes, int rank) {
  Values values;
  for (const std::size_t size : sizes) {
    std::vector<std::int64_t>& own = values.emplace_back(size);
    for (std::size_t i = 0; i < size; ++i) {
      own[i] = 1000 * rank + static_cast<std::int64_t>(values.size() + i);
    }
  }
  return values;
}

/// The bytes of each broadcast that gives all ranks the blocks of rank 0.
std::vector<std::int64_t> bytes_of_broadcasts(int num_ranks, const std::vector<std::size_t>& sizes,
                                              bool threaded = false) {
  std::vector<std::int64_t> bytes;
  const Values expected = values_of(sizes, 0);
  run_ranks(num_ranks, [&](Communicator& communicator, const World& world) {
    Values values = values_of(sizes, world.rank);
    std::vector<Block> blocks;
    for (auto& own : values) blocks.push_back(block_of(std::span(own)));
    BroadcastNoter counting(communicator);
    std::unique_ptr<Stream> stream = std::make_unique<InlineStream>();
    if (threaded) stream = std::make_unique<ThreadStream>();
    broadcast_blocks(counting, *stream, blocks);
    EXPECT_TRUE(values == expected) << "rank " << world.rank;
    if (world.rank == num_ranks - 1) bytes = counting.bytes;
  });
  return bytes;
}

TEST(BroadcastBlocks, TakesOneOperationForManySmallBlocks) {
  for (const bool threaded : {false, true}) {
    for (const int n : {2, 5}) {
      EXPECT_EQ(bytes_of_broadcasts(n, std::vector<std::size_t>(500, 3), threaded),
                (std::vector<std::int64_t>{12'000}));
    }
  }
}

TEST(BroadcastBlocks, CutsLargeBlocks) {
  constexpr std::size_t kWhole = kBroadcastBytes / sizeof(std::int64_t);
  EXPECT_EQ(bytes_of_broadcasts(2, {1, 2 * kWhole, 0, 5}),
            (std::vector<std::int64_t>{kBroadcastBytes, kBroadcastBytes, 48}));
  EXPECT_EQ(bytes_of_broadcasts(2, {kWhole, 1}), (std::vector<std::int64_t>{kBroadcastBytes, 8}));
  // More than are under way at the same time.
  EXPECT_EQ(bytes_of_broadcasts(2, {10 * kWhole}).size(), 10U);
}

TEST(BroadcastBlocks, SendsNothingOfNothing) {
  EXPECT_TRUE(bytes_of_broadcasts(2, {}).empty());
  EXPECT_TRUE(bytes_of_broadcasts(2, {0, 0}).empty());
  EXPECT_TRUE(bytes_of_broadcasts(1, {3}).empty());
}

TEST(BroadcastBlocks, ThrowsTheErrorOfAnOperation) {
  run_ranks(2, [](Communicator& communicator, const World&) {
    BrokenCommunicator broken(communicator);
    std::vector<float> values(4);
    InlineStream stream;
    const std::string text = what_of<CommError>(
        [&] { broadcast_blocks(broken, stream, {block_of(std::span(values))}); });
    EXPECT_TRUE(contains(text, "a peer is gone")) << text;
  });
}

}  // namespace
}  // namespace gossamer
