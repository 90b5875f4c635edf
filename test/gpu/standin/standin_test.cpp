// The stand-in's own rules, which the other tests rely on to notice mistakes.

#include "test/gpu/standin/standin.hpp"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "base/cuda_stream.hpp"

namespace gossamer {
namespace {

/// The program starts anew for what must end it: after a fork there would be no streams.
class CudaStandinDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CudaStandinDeathTest, KeepsDeviceMemoryOutOfTheHostsReach) {
  CudaStream stream({});
  const Buffer memory = stream.allocate(4, DType::kFloat32);
  stream.synchronize();
  EXPECT_DEATH(memory.block().as<float>()[0] = 1.0F, "");
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

}  // namespace
}  // namespace gossamer
