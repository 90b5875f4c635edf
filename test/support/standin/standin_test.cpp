// The stand-in's own rules, which the other tests rely on to notice mistakes.

#include "test/support/standin/standin.hpp"

#include <chrono>
#include <cstdlib>
#include <future>
#include <optional>
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

TEST_F(CudaStandinDeathTest, EndsAProcessThatWaitsForItself) {
  EXPECT_DEATH(
      {
        CudaStream stream({});
        CudaStream other({});
        std::optional<Buffer> memory = stream.allocate(4, DType::kFloat32);
        std::promise<void> go;
        stream.run([&go] { go.get_future().wait(); });
        std::thread helper([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          other.record();
          go.set_value();
        });
        memory.reset();
        helper.join();
      },
      "cudaFree\\(\\) waits for the device, .*: a deadlock");
}

TEST_F(CudaStandinDeathTest, StartsPreparedKernelsWhileAStreamIsBusy) {
  // In a new process no kernel is loaded.
  EXPECT_EXIT(
      {
        CudaStream stream({});
        const Buffer squares = stream.allocate(1, DType::kFloat64);
        const Buffer flag = stream.allocate(1, DType::kFloat64);
        prepare_device(stream);
        std::promise<void> go;
        stream.run([&go] { go.get_future().wait(); });
        // Without prepare_device() this would wait for the device, which waits for the promise.
        enqueue_flag(stream, squares.block(), static_cast<double*>(flag.block().data));
        enqueue_mix(stream, squares.block(), 0.5, {{flag.block(), 0.5}});
        go.set_value();
        stream.synchronize();
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gossamer
