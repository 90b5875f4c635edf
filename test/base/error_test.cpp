#include "base/error.hpp"

#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(Error, HasTheDocumentedExitCode) {
  EXPECT_EQ(static_cast<int>(exit_code_of(ConfigError("x"))), 2);
  EXPECT_EQ(static_cast<int>(exit_code_of(DataError("x"))), 3);
  EXPECT_EQ(static_cast<int>(exit_code_of(CheckpointError("x"))), 4);
  EXPECT_EQ(static_cast<int>(exit_code_of(CommError({}, "x"))), 74);
  EXPECT_EQ(static_cast<int>(exit_code_of(NonFiniteError("x"))), 76);
  EXPECT_EQ(static_cast<int>(exit_code_of(std::logic_error("x"))), 70);
  EXPECT_EQ(static_cast<int>(exit_code_of(std::runtime_error("x"))), 70);
  EXPECT_EQ(static_cast<int>(exit_code_of(std::bad_alloc())), 70);
  EXPECT_EQ(static_cast<int>(ExitCode::kDone), 0);
  EXPECT_EQ(static_cast<int>(ExitCode::kCheckFailed), 1);
  EXPECT_EQ(static_cast<int>(ExitCode::kPreempted), 75);
}

TEST(Error, OfTheFileSystemIsNoInternalError) {
  EXPECT_EQ(exit_code_of(std::filesystem::filesystem_error("status", std::error_code())),
            ExitCode::kCheckpoint);
}

TEST(Error, ConfigErrorNamesPlaceAndKey) {
  EXPECT_STREQ(ConfigError("f.yaml:3:5", "a.b", "is bad").what(), "f.yaml:3:5: a.b: is bad");
  EXPECT_STREQ(ConfigError("f.yaml:3:5", "", "is bad").what(), "f.yaml:3:5: is bad");
  EXPECT_STREQ(ConfigError("is bad").what(), "is bad");
}

TEST(Error, LabelLeavesOutWhatItLacks) {
  EXPECT_EQ(to_string(OpLabel{}), "exchange");
  EXPECT_EQ(to_string(OpLabel{"exchange", 2, 7}), "exchange of bucket 2, round 7");
  EXPECT_EQ(to_string(OpLabel{"all-reduce", 0, -1}), "all-reduce of bucket 0");
  EXPECT_EQ(to_string(OpLabel{"average", -1, 0}), "average of round 0");
}

TEST(Error, CommErrorNamesRankOperationAndPeers) {
  const CommError one({3, {5}, {"exchange", 2, 7}}, "is late");
  EXPECT_STREQ(one.what(), "rank 3: exchange of bucket 2, round 7 with rank 5: is late");
  const CommError several({0, {1, 2}, {.what = "barrier"}}, "are late");
  EXPECT_STREQ(several.what(), "rank 0: barrier with ranks 1, 2: are late");
  const CommError none({.rank = 0, .label = {.what = "split"}}, "failed");
  EXPECT_STREQ(none.what(), "rank 0: split: failed");
}

TEST(Error, CommErrorKeepsItsContext) {
  const CommError error({3, {5, 6}, {"exchange", 2, 7}}, "is late");
  EXPECT_EQ(error.context().rank, 3);
  EXPECT_EQ(error.context().peers, (std::vector<int>{5, 6}));
  EXPECT_EQ(error.context().label.what, "exchange");
  EXPECT_EQ(error.context().label.bucket, 2);
  EXPECT_EQ(error.context().label.round, 7);
}

TEST(Error, CommErrorWithoutARankNamesNone) {
  EXPECT_STREQ(CommError({}, "failed").what(), "exchange: failed");
}

}  // namespace
}  // namespace gossamer
