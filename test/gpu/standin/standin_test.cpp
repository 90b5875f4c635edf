// The stand-in's own rules, which the other tests rely on to notice mistakes.

#include "test/gpu/standin/standin.hpp"

#include <atomic>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "base/cuda_stream.hpp"
#include "optim/block_update.hpp"
#include "optim/gradient_control.hpp"

namespace gossamer {
namespace {

/// The program starts anew for what must end it: after a fork there would be no streams.
class CudaStandinDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaStandinDeathTest, KeepsDeviceMemoryOutOfTheHostsReach) {
  EXPECT_DEATH(
      {
        CudaStream stream({});
        const Buffer memory = stream.allocate(4, DType::kFloat32);
        // One use of the memory each time, so that one of eight writes finds it out of reach.
        for (int i = 0; i < 8; ++i) {
          stream.zero(memory.block());
          stream.synchronize();
          memory.block().as<float>()[0] = 1.0F;
        }
      },
      "");
}

TEST_F(CudaStandinDeathTest, EndsAProcessWhoseHostFunctionCallsCuda) {
  EXPECT_DEATH(
      {
        CudaStream stream({});
        CudaStream other({});
        stream.run([&other] { other.synchronize(); });
        stream.synchronize();
      },
      "a host function calls CUDA");
}

TEST(CudaStandin, WaitsForTheDeviceInCallsThatExcludeOthers) {
  CudaStream stream({});
  const standin::ExclusiveCalls rule;
  std::atomic<bool> released = false;
  const StreamHold release = stream.hold();
  std::thread helper([&] {
    released = true;
    release(nullptr);
  });
  static_cast<void>(stream.allocate_host(1, DType::kFloat32));
  EXPECT_TRUE(released);
  helper.join();
}

TEST(CudaStandin, PreparedKernelsStartWhileAStreamWaits) {
  CudaStream stream({});
  const Buffer squares = stream.allocate(1, DType::kFloat64);
  const Buffer flag = stream.allocate(1, DType::kFloat64);
  stream.synchronize();
  const standin::ExclusiveCalls rule;
  prepare_device(stream);
  const StreamHold release = stream.hold();
  // Without prepare_device() this would wait for the device, which waits for the release below.
  enqueue_flag(stream, squares.block(), static_cast<double*>(flag.block().data));
  enqueue_mix(stream, squares.block(), 0.5, {{flag.block(), 0.5}});
  release(nullptr);
  stream.synchronize();
}

TEST(CudaStandin, StreamsWaitOnTheHostWhereTheUserWants) {
  EXPECT_TRUE(CudaStream({}).may_hold());
  setenv("GOSSAMER_HOST_WAITS", "1", 1);
  EXPECT_FALSE(CudaStream({}).may_hold());
  unsetenv("GOSSAMER_HOST_WAITS");
}

}  // namespace
}  // namespace gossamer
