#include "topology/topology_picture.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

std::int64_t count_of(const std::string& text, std::string_view part) {
  std::int64_t count = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::string picture_of(const std::string& name, int num_ranks, int node_size = 1) {
  return topology_picture(*make_topology(name, {0, num_ranks, node_size}), num_ranks);
}

TEST(TopologyPicture, HasEveryRankInEveryRound) {
  const std::string svg = picture_of("ring", 8);
  EXPECT_EQ(count_of(svg, "class=\"round\""), 2);
  EXPECT_EQ(count_of(svg, "class=\"rank\""), 16);
  EXPECT_EQ(count_of(svg, "class=\"edge\""), 8);
}

TEST(TopologyPicture, DrawsMessagesInOneDirectionAsArrows) {
  const std::string svg = picture_of("directed-one-peer-exp", 4);
  EXPECT_EQ(count_of(svg, "class=\"arc\""), 8);
  EXPECT_EQ(count_of(svg, "class=\"edge\""), 0);
}

TEST(TopologyPicture, DrawsAGroupAsOneShape) {
  EXPECT_EQ(count_of(picture_of("complete", 5), "class=\"edge\""), 1);
}

TEST(TopologyPicture, OfOneRoundShowsThatRound) {
  const auto ring = make_topology("ring", {0, 8, 1});
  const std::string svg = topology_picture(*ring, 8, 1);
  EXPECT_EQ(count_of(svg, "class=\"round\""), 1);
  EXPECT_EQ(count_of(svg, ">round 1<"), 1);
}

TEST(TopologyPicture, IsRefusedForMoreRanksThanCanBeSeen) {
  EXPECT_THROW(picture_of("ring", 513), ConfigError);
}

}  // namespace
}  // namespace gossamer
