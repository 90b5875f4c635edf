#include "core/torch/orthogonalize.hpp"

#include "test/core/torch/scenario.hpp"
#include "test/optim/muon_steps.hpp"

#include <gtest/gtest.h>

namespace gossamer {
namespace {

TEST(TorchOrthogonalize, MovesMatricesAsTorchDoes) {
  const Orthogonalize own = torch_orthogonalize;
  for (const MuonTrace& trace : kMuonTraces) {
    SCOPED_TRACE(trace.options);
    if (has_bfloat16_products(trace)) {
      // Processors sum products in bfloat16 in different orders.
      expect_near(muon_steps<float>(trace, &own), trace.matrix, 2e-3);
      continue;
    }
    expect_near(muon_steps<double>(trace, &own), trace.matrix, 1e-12);
    expect_near(muon_steps<float>(trace, &own), trace.matrix, 1e-6);
  }
}

TEST(TorchOrthogonalize, HasTheProductsInBFloat16OnRequest) {
  for (const auto& [rows, cols] : {std::pair{24, 40}, {40, 24}}) {
    torch::Tensor plain =
        torch::arange(rows * cols, torch::kFloat32).square().sin().reshape({rows, cols});
    torch::Tensor rounded = plain.clone();
    const auto matrix = [&](torch::Tensor& x) {
      return MatrixBlock{{x.data_ptr(), x.numel(), DType::kFloat32, {}}, rows, cols};
    };
    torch_orthogonalize(matrix(plain), {});
    torch_orthogonalize(matrix(rounded), {.in_bfloat16 = true});
    EXPECT_FALSE(torch::equal(plain, rounded));
    // What bfloat16 holds: float32 leaves lower bits.
    EXPECT_TRUE(torch::equal(rounded, rounded.to(torch::kBFloat16).to(torch::kFloat32)));
    EXPECT_LE((plain - rounded).abs().max().item<double>(), 0.1);
  }
}

Scenario with_muon() {
  return {.num_ranks = 3,
          .optimizer = "muon",
          .momentum = 0.8,
          .nesterov = true,
          .weight_decay = 0.05,
          .groups = {{.match = "b", .lr_factor = 0.5, .optimizer = "adamw"}},
          .num_steps = 5};
}

TEST(Muon, TakesItsWholeStepUnderEveryAlgorithmBesideAdamW) {
  for (Scenario scenario : with_every_algorithm(with_muon())) {
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 20U}) {
      scenario.bucket_bytes = bytes;
      expect_as_by_hand(scenario);
    }
  }
}

TEST(Muon, TakesItsWholeStepUnderEveryKindOfOuterStep) {
  Scenario scenario = with_muon();
  scenario.algorithm = "outer";
  for (const char* const options :
       {"every: 2, kind: slowmo", "every: 2, kind: diloco", "every: 2, kind: noloco",
        "every: 2, kind: gasloc", "every: 3, kind: diloco, late: 2"}) {
    SCOPED_TRACE(options);
    scenario.algorithm_options = options;
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 20U}) {
      scenario.bucket_bytes = bytes;
      expect_as_by_hand(scenario);
    }
  }
}

TEST(Muon, SharesItsStatesWithinANodeMatrixByMatrix) {
  Scenario scenario = with_muon();
  scenario.num_ranks = 4;
  scenario.node_size = 2;
  scenario.algorithm = "node_gossip";
  scenario.topology = topology_for("node_gossip", "ring");
  for (const char* const options : {"shard: none", "shard: optimizer"}) {
    scenario.algorithm_options = options;
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1} << 20U}) {
      scenario.bucket_bytes = bytes;
      expect_as_by_hand(scenario);
    }
  }
}

TEST(Muon, MayBeTheOptimizerOfAGroup) {
  Scenario scenario = with_muon();
  scenario.optimizer = "adamw";
  scenario.groups = {{.match = "w1", .optimizer = "muon"}, {.match = "b1", .optimizer = "sgd"}};
  expect_as_by_hand(scenario);
}

TEST(Muon, SharesMomentumAndTheOtherOptimizersMoments) {
  // Over second moments of its own AdamW shares no first ones.
  for (const char* const options :
       {"share_momentum: 2", "share_moments: 2", "share_moments: 2, share_momentum: 4"}) {
    for (const bool is_base : {true, false}) {
      Scenario scenario = with_muon();
      scenario.num_steps = 7;
      scenario.algorithm_options = options;
      if (!is_base) {
        scenario.optimizer = "adamw";
        scenario.groups = {{.match = "w", .optimizer = "muon"}};
      }
      expect_as_by_hand(scenario);
    }
  }
}

}  // namespace
}  // namespace gossamer
