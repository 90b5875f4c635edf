#include "base/cuda_stream.hpp"

#include "test/gpu/gpu_test.hpp"
#include "test/support/thread_stream.hpp"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/framework_stream.hpp"
#include "base/make_stream.hpp"

namespace gossamer {
namespace {

using CudaStreamTest = GpuTest;

std::vector<float> read(Stream& stream, const Block& block) {
  const Buffer host = stream.allocate_host(block.numel, block.dtype);
  stream.copy(host.block(), block);
  stream.synchronize();
  const auto values = host.block().as<float>();
  return {values.begin(), values.end()};
}

void write(Stream& stream, const Block& block, float value) {
  const Buffer host = stream.allocate_host(block.numel, block.dtype);
  for (float& x : host.block().as<float>()) x = value;
  stream.copy(block, host.block());
  stream.synchronize();
}

TEST_F(CudaStreamTest, AllocatesZerosAndCopies) {
  const auto stream = make_stream({DeviceType::kCuda, 0});
  EXPECT_FALSE(stream->on_host());
  EXPECT_FALSE(stream->immediate());
  for (const std::int64_t numel : {0, 1, 1000, 1 << 20}) {
    const Buffer memory = stream->allocate(numel, DType::kFloat32);
    EXPECT_EQ(memory.block().device, (Device{DeviceType::kCuda, 0}));
    const auto count = static_cast<std::size_t>(numel);
    EXPECT_EQ(read(*stream, memory.block()), std::vector<float>(count, 0.0F));
    write(*stream, memory.block(), 3.0F);
    EXPECT_EQ(read(*stream, memory.block()), std::vector<float>(count, 3.0F));
    stream->zero(memory.block());
    EXPECT_EQ(read(*stream, memory.block()), std::vector<float>(count, 0.0F));
  }
}

/// Work given to the stream while this object lives is not done before release().
class Blocked {
 public:
  explicit Blocked(Stream& stream) {
    stream.run([go = go_.get_future().share()] { go.wait(); });
  }
  void release() { go_.set_value(); }

 private:
  std::promise<void> go_;
};

TEST_F(CudaStreamTest, KeepsTheOrderOfAFrameworkThatChangesItsStream) {
  const auto first = make_stream({DeviceType::kCuda, 0});
  const auto second = make_stream({DeviceType::kCuda, 0});
  FrameworkStream stream({DeviceType::kCuda, 0}, first->native(), {});
  EXPECT_EQ(stream.native(), first->native());
  Blocked blocked(*first);
  // No lock guards this: only the order of the streams keeps the host functions apart.
  std::vector<int> order;
  std::vector<int> expected;
  for (int i = 0; i < 20; ++i) {
    stream.set_current(i % 3 == 0 ? first->native() : second->native());
    stream.run([&order, i] { order.push_back(i); });
    expected.push_back(i);
  }
  blocked.release();
  stream.synchronize();
  EXPECT_EQ(order, expected);
}

TEST_F(CudaStreamTest, TakesMemoryFromAFramework) {
  std::vector<std::int64_t> taken;
  FrameworkStream stream({DeviceType::kCuda, 0}, nullptr,
                         [&taken, allocate = cuda_malloc_allocator(0)](auto numel, DType dtype) {
                           taken.push_back(numel);
                           return allocate(numel, dtype);
                         });
  const Buffer memory = stream.allocate(7, DType::kFloat32);
  EXPECT_EQ(taken, std::vector<std::int64_t>{7});
  EXPECT_EQ(read(stream, memory.block()), std::vector<float>(7, 0.0F));
}

TEST_F(CudaStreamTest, RecordsAnEventBehindItsWork) {
  const auto stream = make_stream({DeviceType::kCuda, 0});
  const Buffer one = stream->allocate(1, DType::kFloat32);
  const Buffer two = stream->allocate(1, DType::kFloat32);
  write(*stream, one.block(), 1.0F);
  Blocked blocked(*stream);
  stream->copy(two.block(), one.block());
  const EventPtr event = stream->record();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(event->done());
  blocked.release();
  event->wait();
  EXPECT_TRUE(event->done());
  EXPECT_EQ(read(*stream, two.block())[0], 1.0F);
}

TEST_F(CudaStreamTest, WaitsForOtherStreams) {
  const auto first = make_stream({DeviceType::kCuda, 0});
  const auto second = make_stream({DeviceType::kCuda, 0});
  const Buffer from = first->allocate(1, DType::kFloat32);
  const Buffer to = second->allocate(1, DType::kFloat32);
  const Buffer value = first->allocate_host(1, DType::kFloat32);
  value.block().as<float>()[0] = 5.0F;
  second->synchronize();
  Blocked blocked(*first);
  first->copy(from.block(), value.block());
  second->wait(first->record());
  second->copy(to.block(), from.block());
  blocked.release();
  EXPECT_EQ(read(*second, to.block())[0], 5.0F);
}

TEST_F(CudaStreamTest, LetsTheHostWaitForWorkOnProcessors) {
  ThreadStream host;
  const auto stream = make_stream({DeviceType::kCuda, 0});
  std::atomic<bool> ran = false;
  host.run([&ran] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ran = true;
  });
  stream->wait(host.record());
  EXPECT_TRUE(ran);
}

TEST_F(CudaStreamTest, TellsErrorsOfWork) {
  const auto stream = make_stream({DeviceType::kCuda, 0});
  stream->run([] { throw std::runtime_error("broken"); });
  EXPECT_THROW(stream->synchronize(), std::runtime_error);
  EXPECT_THROW(stream->record(), std::runtime_error);
}

TEST_F(CudaStreamTest, KeepsOwnersUntilTheirWorkIsDone) {
  const auto stream = make_stream({DeviceType::kCuda, 0});
  Blocked blocked(*stream);
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owner;
  stream->keep(std::move(owner));
  EXPECT_FALSE(watched.expired());
  blocked.release();
  stream->synchronize();
  // Owners go when the stream is next used.
  stream->keep(nullptr);
  EXPECT_TRUE(watched.expired());
}

TEST_F(CudaStreamTest, NamesWhatTheDriverSays) {
  const auto stream = make_stream({DeviceType::kCuda, 0});
  EXPECT_THROW((void)stream->allocate(std::int64_t{1} << 50, DType::kFloat32), DeviceError);
}

}  // namespace
}  // namespace gossamer
