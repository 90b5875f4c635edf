#pragma once
// Tests that need a GPU. Where there is none they are skipped, with a word about it.

#include <memory>

#include <gtest/gtest.h>

#include "base/cuda_stream.hpp"

namespace gossamer {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "this machine has no GPU, or no driver for it";
  }
};

/// A stream whose device memory the host reaches as well, so that work of run() may look at it.
inline std::unique_ptr<CudaStream> stream_on_pinned_memory() {
  const auto allocate = [](std::int64_t numel, DType dtype) -> Buffer {
    CudaStream host({});
    const Buffer memory = host.allocate_host(numel, dtype);
    Block block = memory.block();
    block.device = {DeviceType::kCuda, 0};
    return {memory.owner(), block};
  };
  return std::make_unique<CudaStream>(CudaStreamOptions{.allocate = allocate});
}

}  // namespace gossamer
