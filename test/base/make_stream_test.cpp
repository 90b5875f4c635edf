#include "base/make_stream.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer {
namespace {

TEST(ParseDevice, KnowsProcessorsAndGpus) {
  EXPECT_EQ(parse_device("cpu"), Device{});
  EXPECT_EQ(parse_device("cuda"), (Device{DeviceType::kCuda, 0}));
  EXPECT_EQ(parse_device("cuda:12"), (Device{DeviceType::kCuda, 12}));
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cpu:0"}) {
    EXPECT_THROW(parse_device(text), ConfigError) << text;
  }
}

TEST(MakeStream, MakesThatOfTheProcessors) {
  const auto stream = make_stream({});
  EXPECT_TRUE(stream->immediate());
  EXPECT_EQ(stream->device(), Device{});
}

TEST(MakeStream, RefusesAGpuThatIsNotThere) {
  EXPECT_THROW(make_stream({DeviceType::kCuda, 1'000}), ConfigError);
}

}  // namespace
}  // namespace gossamer
