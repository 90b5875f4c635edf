#include "base/shell_word.hpp"

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(ShellWord, LeavesPathsAndAddressesAsTheyAre) {
  EXPECT_EQ(shell_word("runs/quickstart-2"), "runs/quickstart-2");
  EXPECT_EQ(shell_word("[::1]:29500"), "[::1]:29500");
}

TEST(ShellWord, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(shell_word("runs/a b"), "'runs/a b'");
  EXPECT_EQ(shell_word("$HOME"), "'$HOME'");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

}  // namespace
}  // namespace gossamer
