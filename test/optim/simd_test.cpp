// Tests that every instruction set that the sweep is compiled for gives the same bits.

#include "optim/simd.hpp"

#include "test/optim/parameters.hpp"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace gossamer {
namespace {

class Simd : public testing::TestWithParam<reference::Rule> {};
INSTANTIATE_TEST_SUITE_P(Rules, Simd, testing::ValuesIn(rules_under_test()), rule_name);

/// The parameters and their rounded copy. G as in TestParameter.
template <class T, class G>
std::pair<std::vector<T>, std::vector<G>> train(const reference::Rule& rule, SimdPath path,
                                                std::size_t numel, std::size_t num_inboxes) {
  const auto optimizer = make_optimizer(rule.type, Options::parse(rule.yaml()));
  TestParameter<T, G> x(numel, optimizer->num_states());
  Fenced<T> other(numel);
  Random random(11);
  draw(random, x.p.values());
  for (int step = 0; step < 9; ++step) {
    draw(random, x.g.values());
    draw(random, x.inbox.values());
    draw(random, other.values());
    ParameterUpdate update = x.next_update();
    if (step == 5) update.gradient = {};
    std::vector<Inbox> inboxes;
    if (num_inboxes > 0) inboxes.push_back({x.inbox.block(), 0.3});
    while (inboxes.size() < num_inboxes) inboxes.push_back({other.block(), 0.05});
    update.keep = 0.7;
    update.inboxes = inboxes;
    update.lr = 0.01;
    update.weight_decay = 0.1;
    update.gradient_scale = 0.5;
    update.simd = path;
    update_one(*optimizer, update);
    if (update.gradient.data != nullptr) ++x.num_updates;
  }
  EXPECT_TRUE(x.intact()) << name_of(path);
  return {{x.p.values().begin(), x.p.values().end()},
          {x.rounded.values().begin(), x.rounded.values().end()}};
}

template <class T, class G = T>
void expect_same_bits(const reference::Rule& rule) {
  for (const std::size_t numel : {0U, 1U, 15U, 16U, 17U, 1000U}) {
    for (const std::size_t num_inboxes : {0U, 1U, 2U, 3U}) {
      const auto expected = train<T, G>(rule, SimdPath::kBaseline, numel, num_inboxes);
      for (const SimdPath path : available_simd_paths()) {
        const auto actual = train<T, G>(rule, path, numel, num_inboxes);
        EXPECT_TRUE(actual == expected)
            << name_of(path) << ", " << numel << " elements, " << num_inboxes << " inboxes";
      }
    }
  }
}

TEST_P(Simd, PathsGiveTheSameBitsInFloat32) { expect_same_bits<float>(GetParam()); }
TEST_P(Simd, PathsGiveTheSameBitsInFloat64) { expect_same_bits<double>(GetParam()); }

TEST_P(Simd, PathsGiveTheSameBitsWithAMasterCopy) { expect_same_bits<float, BFloat16>(GetParam()); }

TEST(SimdPaths, BeginWithTheOneThatIsAlwaysThere) {
  const std::vector<SimdPath> paths = available_simd_paths();
  ASSERT_FALSE(paths.empty());
  EXPECT_EQ(paths.front(), SimdPath::kBaseline);
  EXPECT_EQ(paths.back(), best_simd_path());
}

}  // namespace
}  // namespace gossamer
