#include "base/cuda_stream.hpp"

#include "test/gpu/gpu_test.hpp"

#include <atomic>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/host_stream.hpp"
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

TEST_F(CudaStreamTest, WaitsUntilItIsReleased) {
  const auto stream = make_stream({DeviceType::kCuda, 0});
  const Buffer one = stream->allocate(1, DType::kFloat32);
  const Buffer two = stream->allocate(1, DType::kFloat32);
  write(*stream, one.block(), 1.0F);
  // More than one allocation of gates.
  for (int round = 0; round < 3000; ++round) {
    const StreamHold release = stream->hold();
    if (round % 500 == 0) {
      stream->copy(two.block(), one.block());
      const EventPtr event = stream->record();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_FALSE(event->done());
      release(nullptr);
      event->wait();
      EXPECT_TRUE(event->done());
    } else {
      release(nullptr);
    }
  }
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
  const StreamHold release = first->hold();
  first->copy(from.block(), value.block());
  second->wait(first->record());
  second->copy(to.block(), from.block());
  release(nullptr);
  EXPECT_EQ(read(*second, to.block())[0], 5.0F);
}

TEST_F(CudaStreamTest, WaitsForWorkOnProcessors) {
  ThreadStream host;
  const auto stream = make_stream({DeviceType::kCuda, 0});
  std::atomic<bool> go = false;
  std::atomic<bool> ran = false;
  host.run([&go] {
    while (!go) std::this_thread::yield();
  });
  stream->wait(host.record());
  stream->run([&ran] { ran = true; });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(ran);
  go = true;
  stream->synchronize();
  EXPECT_TRUE(ran);
}

TEST_F(CudaStreamTest, TellsErrorsOfWorkAndHolds) {
  const auto stream = make_stream({DeviceType::kCuda, 0});
  stream->run([] { throw std::runtime_error("broken"); });
  EXPECT_THROW(stream->synchronize(), std::runtime_error);
  const auto other = make_stream({DeviceType::kCuda, 0});
  other->hold()(std::make_exception_ptr(std::runtime_error("lost")));
  // Nobody would release the device if this threw.
  other->hold()(nullptr);
  EXPECT_THROW(other->synchronize(), std::runtime_error);
  EXPECT_THROW(other->record(), std::runtime_error);
}

TEST_F(CudaStreamTest, KeepsOwnersUntilTheirWorkIsDone) {
  const auto stream = make_stream({DeviceType::kCuda, 0});
  const StreamHold release = stream->hold();
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owner;
  stream->keep(std::move(owner));
  EXPECT_FALSE(watched.expired());
  release(nullptr);
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
