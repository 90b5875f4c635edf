// Lists of nodes as SLURM writes them.

#include "comm/start/node_list.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace gossamer {
namespace {

TEST(NodeList, BeginsWithItsFirstHost) {
  EXPECT_EQ(first_node("n1"), "n1");
  EXPECT_EQ(first_node("gpu1,n[01-03]"), "gpu1");
  EXPECT_EQ(first_node("n[01-03,07],gpu1"), "n01");
  EXPECT_EQ(first_node("n[7,01-03]"), "n7");
  EXPECT_EQ(first_node("rack[2-3]-n[008-010]"), "rack2-n008");
  EXPECT_EQ(first_node("n[1-2].cluster.example"), "n1.cluster.example");
}

TEST(NodeList, IsRefusedWhenMalformed) {
  for (const char* const text : {"", ",n1", "n[", "n[1-2", "n]1[", "n[]", "n[a-b]", "n[-2]"}) {
    EXPECT_THROW(first_node(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace gossamer
