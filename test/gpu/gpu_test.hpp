#pragma once
// Tests that need a GPU. Where there is none they are skipped, with a word about it.

#include <gtest/gtest.h>

#include "base/cuda_stream.hpp"

namespace gossamer {

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "this machine has no GPU, or no driver for it";
  }
};

}  // namespace gossamer
