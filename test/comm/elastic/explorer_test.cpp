#include "test/comm/elastic/explorer.hpp"

#include <cstdint>
#include <ostream>
#include <string>

#include <gtest/gtest.h>

namespace gossamer::membership {
namespace {

struct Explored {
  std::string name;
  Setting setting;
  /// Epochs that the longest line has.
  std::int64_t epochs = 0;
};

void PrintTo(const Explored& explored, std::ostream* out) { *out << explored.name; }

class EveryOrder : public testing::TestWithParam<Explored> {};

TEST_P(EveryOrder, KeepsOneLineAndEnds) {
  const Exploration result = explore(GetParam().setting);
  EXPECT_EQ(result.fault, "");
  EXPECT_EQ(result.epochs, GetParam().epochs);
  EXPECT_GT(result.training, 0);
  RecordProperty("states", std::to_string(result.states));
}

const auto name_of = [](const auto& test) { return test.param.name; };

INSTANTIATE_TEST_SUITE_P(
    Agreement, EveryOrder,
    testing::Values(
        Explored{"TwoOneDies", {.members = 2, .deaths = 1}, 0},
        Explored{"TwoOneDiesOneJoins", {.members = 2, .deaths = 1, .joins = 1}, 3},
        Explored{
            "TwoConnectionBreaksOneJoins", {.members = 2, .broken_connections = 1, .joins = 1}, 4},
        Explored{"OneTwoJoin", {.members = 1, .joins = 2}, 4},
        Explored{"TwoTwoJoin", {.members = 2, .joins = 2}, 4},
        Explored{"ThreeOneDies", {.members = 3, .deaths = 1, .steps = 2}, 1},
        Explored{"ThreeTwoDie", {.members = 3, .deaths = 2, .steps = 1}, 1},
        Explored{
            "ThreeOneDiesAllAreNeeded", {.members = 3, .deaths = 1, .quorum = {.least = 3}}, 0},
        Explored{"ThreeTwoConnectionsBreak", {.members = 3, .broken_connections = 2}, 1},
        Explored{"ThreeOneDiesOneConnectionBreaks",
                 {.members = 3, .deaths = 1, .broken_connections = 1},
                 1},
        Explored{"ThreeOneDiesOneIsDisturbed", {.members = 3, .deaths = 1, .disturbances = 1}, 2},
        Explored{"ThreeOneJoins", {.members = 3, .joins = 1}, 2},
        Explored{"ThreeOneIsDisturbedOneJoins", {.members = 3, .disturbances = 1, .joins = 1}, 3},
        Explored{"TwoOneDiesOneIsDisturbedOneJoins",
                 {.members = 2, .deaths = 1, .disturbances = 1, .joins = 1},
                 5},
        Explored{"OneDiesTwoJoin", {.members = 1, .deaths = 1, .joins = 2}, 5},
        Explored{"FourTwoDie", {.members = 4, .deaths = 2}, 2}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Pairs, EveryOrder,
    testing::Values(Explored{"OneAPairJoins", {.members = 1, .joins = 2, .first_of_pair = 1}, 2},
                    Explored{"OneAPairJoinsOneDies",
                             {.members = 1, .deaths = 1, .joins = 2, .first_of_pair = 1},
                             3},
                    Explored{"TwoAPairJoins", {.members = 2, .joins = 2, .first_of_pair = 2}, 2},
                    Explored{"FourOneDies", {.members = 4, .deaths = 1, .first_of_pair = 2}, 1},
                    Explored{"FourOneDiesOneIsDisturbed",
                             {.members = 4, .deaths = 1, .disturbances = 1, .first_of_pair = 0},
                             2},
                    Explored{"FourAConnectionBreaks",
                             {.members = 4, .broken_connections = 1, .first_of_pair = 1},
                             1}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Wide, EveryOrder,
    testing::Values(
        Explored{"ThreeOneDiesOneJoins", {.members = 3, .deaths = 1, .joins = 1}, 3},
        Explored{"ThreeTwoDieOneJoins", {.members = 3, .deaths = 2, .joins = 1}, 7},
        Explored{"FourTwoConnectionsBreak", {.members = 4, .broken_connections = 2}, 2},
        Explored{"FourOneDiesOneConnectionBreaks",
                 {.members = 4, .deaths = 1, .broken_connections = 1},
                 2},
        Explored{"FourOneDiesOneIsDisturbed", {.members = 4, .deaths = 1, .disturbances = 1}, 2}),
    name_of);

TEST(Explorer, FindsAStoreThatDoesNotCompare) {
  const Exploration result =
      explore({.members = 3, .broken_connections = 2, .store_compares = false});
  EXPECT_EQ(result.fault.substr(0, result.fault.find('\n')), "two lines of epochs");
}

}  // namespace
}  // namespace gossamer::membership
