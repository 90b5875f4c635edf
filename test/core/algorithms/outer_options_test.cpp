// Which options of `outer` are refused, and which are doubtful.

#include "test/base/thrown.hpp"

#include <string>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/algorithms/algorithm.hpp"
#include "core/algorithms/outer_momentum.hpp"
#include "optim/codec.hpp"
#include "optim/registry.hpp"
#include "topology/registry.hpp"

namespace gossamer {
namespace {

std::string doubt_of(const std::string& options) {
  return outer_warning(AlgorithmChoice("outer", Options::parse(options)));
}

TEST(Outer, WarnsOfAMomentumThatIsTooLargeForThePeriod) {
  EXPECT_TRUE(
      contains(doubt_of("kind: diloco, momentum: 0.9"),
               "algorithm.momentum is 0.9 and algorithm.lr 0.7, which works like a learning "
               "rate 7 times as large; with averages every 8 steps more than 3 times"));
  EXPECT_TRUE(contains(doubt_of("every: 1, momentum: 0.9"), "every 1 step more than 5 times"));
  EXPECT_EQ(doubt_of("every: 1, momentum: 0.7"), "");
  EXPECT_EQ(doubt_of("kind: diloco, momentum: 0.9, every: 32"), "");
}

TEST(Outer, WarnsOfAMomentumThatIsTooLargeForPairs) {
  EXPECT_TRUE(contains(doubt_of("kind: gasloc, momentum: 0.9, every: 500"), "may drift apart"));
  EXPECT_TRUE(contains(doubt_of("kind: slowmo, rounds: topology, momentum: 0.6"), "above 0.55"));
  EXPECT_EQ(doubt_of("kind: gasloc, rounds: all, momentum: 0.9, every: 500"), "");
}

TEST(Outer, WarnsOfNoDefault) {
  for (const char* kind : {"slowmo", "diloco", "noloco", "gasloc"}) {
    for (const int every : {1, 8, 500}) {
      EXPECT_EQ(doubt_of(concat("kind: ", kind, ", every: ", every)), "") << kind;
    }
  }
}

TEST(Outer, RefusesADecayWithoutErrors) {
  const auto why_not = [](const std::string& options, const Codec* codec) {
    const auto topology = make_topology("ring", {.size = 4, .node_size = 4});
    return AlgorithmChoice("outer", Options::parse(options))
        .why_not({.topology = topology.get(), .codec = codec});
  };
  const Codec* const topk = find_codec("topk");
  EXPECT_EQ(why_not("kind: diloco, error_decay: 0.95", topk), "");
  EXPECT_EQ(why_not("kind: diloco, error_decay: 1", nullptr), "");
  EXPECT_TRUE(contains(why_not("kind: diloco, error_decay: 0.95", nullptr), "under a codec"));
  EXPECT_TRUE(contains(why_not("kind: noloco, error_decay: 0.95", find_codec("int8")),
                       "needs averages of all ranks"));
}

std::string refusal_of(const std::string& options) {
  return what_of<ConfigError>(
      [&] { static_cast<void>(AlgorithmChoice("outer", Options::parse(options))); });
}

TEST(Outer, RefusesWhatCannotBe) {
  EXPECT_TRUE(contains(refusal_of("every: 4, late: 5"), "late: 5 steps are more than the 4"));
  EXPECT_TRUE(contains(refusal_of("every: 4, late: 2, overlap: false"), "true, or late: 1"));
  EXPECT_TRUE(contains(refusal_of("every: 4, blend: 0.5"), "blend: needs late averages"));
  EXPECT_TRUE(contains(refusal_of("kind: fastmo"), "gasloc"));
  EXPECT_TRUE(contains(refusal_of("every: 4, share_moments: 6"),
                       "share_moments: 6 steps are no multiple of the 4"));
  EXPECT_TRUE(
      contains(refusal_of("every: 4, late: 2, share_moments: 4"), "allowed: 0, or late: 1"));
  const auto adamw = make_optimizer("adamw");
  EXPECT_TRUE(contains(AlgorithmChoice("outer", Options::parse("every: 4, share_momentum: 8"))
                           .why_not({.optimizer = adamw.get()}),
                       "share_momentum is 8 and algorithm.share_moments is 0"));
}

TEST(Outer, RefusesCodecsThatDoNotFit) {
  const auto why_not = [](const char* algorithm, const char* options, const char* codec) {
    const auto ring = make_topology("ring", {.size = 4, .node_size = 4});
    return AlgorithmChoice(algorithm, Options::parse(options))
        .why_not({.topology = ring.get(), .codec = find_codec(codec)});
  };
  for (const char* kind : {"kind: slowmo", "kind: diloco", "kind: noloco, rounds: all"}) {
    for (const char* codec : {"bf16", "int8", "int4", "topk"}) {
      EXPECT_EQ(why_not("outer", kind, codec), "") << kind << ", " << codec;
    }
  }
  EXPECT_EQ(why_not("outer", "kind: noloco", "int4"), "");
  EXPECT_TRUE(contains(why_not("outer", "kind: noloco", "topk"), "kind: diloco"));
  EXPECT_TRUE(contains(why_not("allreduce", "", "topk"), "kind: diloco"));
  EXPECT_TRUE(contains(why_not("gossip", "", "topk"), "kind: diloco"));
  EXPECT_EQ(why_not("outer", "kind: gasloc", "int8"), "");
  EXPECT_TRUE(contains(why_not("outer", "kind: gasloc, rounds: all", "int8"), "cannot send moves"));
}

TEST(Outer, NeedsATopologyWhereItsOptionsSaySo) {
  const auto needs = [](const char* options) {
    return AlgorithmChoice("outer", Options::parse(options)).needs_topology();
  };
  EXPECT_FALSE(needs(""));
  EXPECT_FALSE(needs("kind: diloco"));
  EXPECT_TRUE(needs("kind: diloco, rounds: topology"));
  EXPECT_TRUE(needs("kind: noloco"));
  EXPECT_TRUE(needs("kind: gasloc"));
  EXPECT_FALSE(needs("kind: noloco, rounds: all"));
  const AlgorithmChoice pairs("outer", Options::parse("kind: noloco"));
  EXPECT_EQ(pairs.text(),
            "outer {every: 8, kind: noloco, rounds: topology, lr: 0.7, momentum: 0.5, "
            "streaming: false, overlap: true, late: 1, blend: 0, error_decay: 1, share_moments: 0, "
            "share_momentum: 0}");
  EXPECT_TRUE(contains(pairs.why_not({}), "the algorithm outer needs a topology"));
  const auto directed = make_topology("directed-one-peer-exp", {.size = 4, .node_size = 4});
  EXPECT_TRUE(contains(pairs.why_not({.topology = directed.get()}), "in both directions"));
}

}  // namespace
}  // namespace gossamer
