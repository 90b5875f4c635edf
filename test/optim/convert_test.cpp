#include "optim/convert.hpp"

#include "test/support/thread_stream.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "base/host_stream.hpp"

namespace gossamer {
namespace {

TEST(Convert, RoundsAndWidens) {
  ThreadStream stream((Device()));
  for (const std::size_t numel : {0U, 1U, 5U, 1000U}) {
    std::vector<float> values(numel);
    for (std::size_t i = 0; i < numel; ++i) values[i] = 0.1F * static_cast<float>(i);
    std::vector<BFloat16> rounded(numel);
    std::vector<float> back(numel);
    enqueue_convert(stream, block_of(std::span(rounded)), block_of(std::span(values)));
    enqueue_convert(stream, block_of(std::span(back)), block_of(std::span(rounded)));
    stream.synchronize();
    for (std::size_t i = 0; i < numel; ++i) {
      EXPECT_EQ(back[i], widened(rounded_to_bfloat16(values[i])));
    }
  }
}

TEST(Convert, CopiesWhatHasTheSameType) {
  InlineStream stream;
  const std::vector<double> from = {1.0, 2.5};
  std::vector<double> to(2);
  enqueue_convert(stream, block_of(std::span(to)), ConstBlock(from.data(), 2, DType::kFloat64));
  EXPECT_EQ(to, from);
}

TEST(Convert, RefusesOtherTypesAndSizes) {
  InlineStream stream;
  std::vector<double> doubles(2);
  std::vector<float> floats(2);
  std::vector<BFloat16> halves(3);
  const auto convert = [&stream](const Block& to, const Block& from) {
    enqueue_convert(stream, to, from);
  };
  EXPECT_THROW(convert(block_of(std::span(doubles)), block_of(std::span(floats))),
               std::logic_error);
  EXPECT_THROW(convert(block_of(std::span(halves)), block_of(std::span(floats))), std::logic_error);
}

}  // namespace
}  // namespace gossamer
