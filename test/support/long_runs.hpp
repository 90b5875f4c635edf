#pragma once
// For tests of thousands of steps.

#include "test/support/sanitized.hpp"

#include <gtest/gtest.h>

namespace gossamer {

/// Thousands of steps, whose numbers are the point. The sanitizers find nothing in them that they
/// do not find in short runs.
class LongRuns : public testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "thousands of steps, for builds without sanitizers";
  }
};

}  // namespace gossamer
