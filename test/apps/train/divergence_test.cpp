#include "apps/train/divergence.hpp"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "base/text.hpp"

namespace gossamer::apps {
namespace {

TEST(Divergence, IsALossAThousandTimesThatOfTheBeginning) {
  Divergence divergence;
  divergence.note_loss(10, 2.0);
  divergence.note_loss(20, 2000.0);
  EXPECT_FALSE(divergence.has_diverged());
  divergence.note_loss(30, 2001.0);
  EXPECT_EQ(divergence.step(), 30);
  EXPECT_EQ(divergence.what(),
            "the run has diverged: after step 30 the loss is 2e+03, and it began with 2");
}

TEST(Divergence, GoesByTheFirstStepWhereTheFirstRecordIsOfLaterOnes) {
  Divergence divergence;
  divergence.begin(2.0);
  divergence.begin(1e9);
  divergence.note_loss(10, 1e9);
  EXPECT_EQ(divergence.what(),
            "the run has diverged: after step 10 the loss is 1e+09, and it began with 2");
}

TEST(Divergence, IsALossThatIsNotFiniteForTenSteps) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Divergence divergence;
  divergence.note_loss(10, 2.0);
  divergence.note_loss(19, kNaN);
  EXPECT_FALSE(divergence.has_diverged());
  divergence.note_loss(20, kNaN);
  EXPECT_EQ(divergence.what(),
            "the run has diverged: after step 20 no loss has been finite for 10 steps");
}

TEST(Divergence, IsNotALossThatIsFiniteAgain) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  Divergence divergence;
  for (const std::int64_t step : {1, 9, 17, 25}) {
    divergence.note_loss(step, kNaN);
    divergence.note_loss(step + 1, 2.0);
  }
  EXPECT_FALSE(divergence.has_diverged());
}

TEST(Divergence, IsADistanceBeyondThatOfModelsAtRandom) {
  Divergence divergence;
  divergence.note_consensus(10, 20.0, 1.0, 4);
  EXPECT_FALSE(divergence.has_diverged());
  divergence.note_consensus(20, 20.5, 1.0, 4);
  EXPECT_EQ(
      divergence.what(),
      "the run has diverged: after step 20 the consensus distance is 20.5, 20.5 times the norm "
      "of the mean model: the ranks' models drift apart");
}

TEST(Divergence, IsNotALossThatFalls) {
  Divergence divergence;
  for (const double loss : {2.3, 4.0, 1.0, 1e-6}) divergence.note_loss(10, loss);
  EXPECT_FALSE(divergence.has_diverged());
}

TEST(Divergence, KeepsItsFirstSign) {
  Divergence divergence;
  divergence.note_consensus(10, 1e3, 1.0, 1);
  divergence.note_consensus(20, 1e6, 1.0, 1);
  EXPECT_EQ(divergence.step(), 10);
}

TEST(Divergence, IsNewsOnce) {
  Divergence divergence;
  EXPECT_FALSE(divergence.is_news());
  divergence.note_consensus(10, 1e3, 1.0, 1);
  EXPECT_TRUE(divergence.is_news());
  EXPECT_FALSE(divergence.is_news());
}

TEST(Divergence, GoesByTheBeginningOfARunThatIsResumed) {
  /// Loads a loss of 0.01.
  class Loader : public StateVisitor {
    [[nodiscard]] bool loads() const override { return true; }
    [[nodiscard]] bool holds(const std::string& /*name*/) const override { return true; }
    void block(const std::string& /*name*/, const Block& /*block*/) override {}
    void number(const std::string& /*name*/, double& value) override { value = 0.01; }
    void number(const std::string& /*name*/, std::int64_t& /*value*/) override {}
  };
  Divergence divergence;
  Loader loader;
  divergence.visit(loader);
  divergence.note_loss(10, 11.0);
  EXPECT_TRUE(divergence.has_diverged());
}

}  // namespace
}  // namespace gossamer::apps
