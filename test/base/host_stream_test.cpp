#include "base/host_stream.hpp"

#include "test/support/thread_stream.hpp"

#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/relay_stream.hpp"

namespace gossamer {
namespace {

struct Kind {
  const char* name;
  std::unique_ptr<Stream> (*make)();
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

/// A relay that owns two streams and has just changed from one to the other.
class OwnRelay : public RelayStream {
 public:
  OwnRelay() : OwnRelay(std::make_shared<ThreadStream>()) { set_current(second_); }

 private:
  explicit OwnRelay(std::shared_ptr<ThreadStream> first)
      : RelayStream(*first), first_(std::move(first)) {}
  std::shared_ptr<ThreadStream> first_;
  ThreadStream second_;
};

class AnyHostStream : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Stream> stream_ = GetParam().make();
};

TEST_P(AnyHostStream, RunsWorkInOrder) {
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) stream_->run([&order, i] { order.push_back(i); });
  stream_->synchronize();
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(AnyHostStream, CopiesAndAllocates) {
  for (const std::int64_t numel : {0, 1, 5, 1000}) {
    const Buffer host = stream_->allocate_host(numel, DType::kFloat32);
    const Buffer device = stream_->allocate(numel, DType::kFloat32);
    const Buffer back = stream_->allocate_host(numel, DType::kFloat32);
    EXPECT_EQ(device.block().device, stream_->device());
    EXPECT_EQ(host.block().device, Device{});
    for (float& x : back.block().as<float>()) x = 7.0F;
    stream_->copy(back.block(), device.block());
    stream_->synchronize();
    for (const float x : back.block().as<float>()) ASSERT_EQ(x, 0.0F);
    float value = 0.0F;
    for (float& x : host.block().as<float>()) x = value += 1.0F;
    stream_->copy(device.block(), host.block());
    stream_->copy(back.block(), device.block());
    stream_->synchronize();
    for (std::size_t i = 0; i < static_cast<std::size_t>(numel); ++i) {
      ASSERT_EQ(back.block().as<float>()[i], static_cast<float>(i + 1));
    }
    stream_->zero(device.block());
    stream_->copy(back.block(), device.block());
    stream_->synchronize();
    for (const float x : back.block().as<float>()) ASSERT_EQ(x, 0.0F);
  }
}

TEST_P(AnyHostStream, RefusesCopiesBetweenSizes) {
  const Buffer small(3, DType::kFloat32);
  const Buffer large(4, DType::kFloat32);
  EXPECT_THROW(stream_->copy(large.block(), small.block()), std::logic_error);
}

TEST_P(AnyHostStream, WaitsForAnotherStream) {
  ThreadStream other;
  std::atomic<bool> go = false;
  int value = 0;
  other.run([&] {
    while (!go) std::this_thread::yield();
    value = 42;
  });
  const EventPtr written = other.record();
  ASSERT_NE(written, nullptr);
  EXPECT_FALSE(written->done());
  std::thread starter([&go] { go = true; });
  int seen = 0;
  stream_->wait(written);
  stream_->run([&] { seen = value; });
  stream_->wait(nullptr);
  stream_->synchronize();
  EXPECT_EQ(seen, 42);
  EXPECT_TRUE(written->done());
  starter.join();
}

INSTANTIATE_TEST_SUITE_P(
    Streams, AnyHostStream,
    testing::Values(
        Kind{"inline",
             []() -> std::unique_ptr<Stream> { return std::make_unique<InlineStream>(); }},
        Kind{"thread",
             []() -> std::unique_ptr<Stream> {
               return std::make_unique<ThreadStream>(Device{DeviceType::kCuda, 1});
             }},
        Kind{"relay", []() -> std::unique_ptr<Stream> { return std::make_unique<OwnRelay>(); }}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(InlineStream, ThrowsWhatItsWorkThrows) {
  InlineStream stream;
  EXPECT_THROW(stream.run([] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(stream.record(), nullptr);
}

TEST(ThreadStream, DropsWhatFollowsAnErrorAndTellsIt) {
  ThreadStream stream;
  std::atomic<bool> go = false;
  bool ran = false;
  stream.run([&go] {
    while (!go) std::this_thread::yield();
  });
  stream.run([] { throw std::runtime_error("broken"); });
  stream.run([&ran] { ran = true; });
  const EventPtr event = stream.record();
  stream.check();
  go = true;
  event->wait();
  EXPECT_THROW(stream.synchronize(), std::runtime_error);
  EXPECT_THROW(stream.check(), std::runtime_error);
  EXPECT_THROW(stream.record(), std::runtime_error);
  stream.run([&ran] { ran = true; });
  EXPECT_FALSE(ran);
}

TEST(ThreadStream, FinishesItsWorkBeforeItGoes) {
  int done = 0;
  {
    ThreadStream stream;
    for (int i = 0; i < 100; ++i) stream.run([&done] { ++done; });
  }
  EXPECT_EQ(done, 100);
}

}  // namespace
}  // namespace gossamer
