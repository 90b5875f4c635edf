// Tests the GPU's sweep on processors. The test runs the work of every thread of every block, one
// after the other, and compares with the sweep of processors bit for bit.

#include "optim/cuda/sweep_table.hpp"

#include "test/optim/parameters.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "base/host_stream.hpp"
#include "base/random.hpp"
#include "optim/block_update.hpp"
#include "optim/registry.hpp"
#include "optim/rules/accum_adam.hpp"
#include "optim/rules/adam.hpp"
#include "optim/rules/extra.hpp"
#include "optim/rules/lion.hpp"
#include "optim/rules/mixing_adam.hpp"
#include "optim/rules/qadam.hpp"
#include "optim/rules/qg_sgd.hpp"
#include "optim/rules/sgd.hpp"

namespace gossamer {
namespace {

template <class Rule, class T, class G, Phase kPhase>
void run_table(const typename SweepLaunches<Rule, T, G>::Table& table) {
  for (std::int32_t chunk = 0; chunk < table.num_chunks; ++chunk) {
    const SweepSegment& segment =
        table.segments[static_cast<std::size_t>(segment_of(table, chunk))];
    const SweepBlock<T, G>& block = table.blocks[segment.block];
    const auto gradients = BlockGradients<T>::of(block.decision);
    const std::int64_t first = (chunk - segment.first_chunk) * kChunk<T>;
    const std::int64_t count = std::min(kChunk<T>, segment.numel - first);
    for (int thread = 0; thread < kSweepThreads; ++thread) {
      SeenDifferences<T> seen;
      SweepThread<Rule, T, G, kPhase, false>{table, segment, block, gradients, seen}.run(
          first, count, thread);
    }
  }
}

/// Returns the number of launches.
template <class Rule, class T, class G>
int run_like_a_gpu(const Rule& rule, std::span<const BlockUpdate> updates) {
  int num_launches = 0;
  const auto sweep = [&num_launches]<class Some>(const Some& some,
                                                 std::span<const Portion> portions) {
    using Written = std::conditional_t<std::is_same_v<Some, NoRule>, T, G>;
    SweepLaunches<Some, T, Written>(some, portions).run([&](Phase phase, const auto& table) {
      ++num_launches;
      with_phase<Some>(phase, [&]<Phase kPhase>() { run_table<Some, T, Written, kPhase>(table); });
    });
  };
  while (!updates.empty()) {
    const auto some = updates.first(num_alike(updates));
    updates = updates.subspan(some.size());
    if (some.size() > 1) {
      std::vector<Portion> portions;
      for (const BlockUpdate& update : some) portions.push_back(whole(update));
      sweep(rule, portions);
      continue;
    }
    const Block& x = some.front().parameters;
    const Buffer scratch(x.numel, x.dtype);
    in_portions(
        rule, some.front(), kNeedsBefore<Rule> ? scratch.block() : x,
        [&](const auto& any, const Portion& portion) { sweep(any, std::span(&portion, 1)); });
  }
  return num_launches;
}

struct Layout {
  std::vector<std::int64_t> sizes;
  std::int64_t num_inboxes = 1;
  /// Offset in elements of the gradients from the places where vectors may begin.
  std::int64_t shift = 0;
  /// Segment i is i % num_step_counts steps ahead of the first segment.
  std::int64_t num_step_counts = 1;
  std::int64_t num_decays = 1;
  /// Every n-th segment has no gradient; 0: all have one.
  int missing = 0;
  /// Every second segment has a rate of its own, and this optimizer, if there is one.
  bool has_own_rates = false;
  const Optimizer* own = nullptr;
  GradientDecision decision = {.factor = 0.75, .apply = 1};
};

/// One side of the comparison: memory and the step to make on it. G as in SweepTable.
template <class T, class G>
class Side {
 public:
  Side(const Layout& layout, int num_states) : layout_(layout) {
    for (const std::int64_t size : layout.sizes) {
      offsets_.push_back(numel_);
      // Parameters begin at multiples of 128 bytes, as in buckets.
      const std::int64_t grain = Buffer::kAlignment / std::int64_t{sizeof(T)};
      numel_ += (size + grain - 1) / grain * grain;
    }
    parameters_ = draw<T>(numel_, 0, 1.0);
    if (!std::is_same_v<T, G>) rounded_ = draw<G>(numel_, 2, 1.0);
    for (int k = 0; k < num_states; ++k) states_.push_back(draw<T>(numel_, 1, 0.0));
    for (std::int64_t k = 0; k < layout.num_inboxes; ++k) {
      inboxes_.push_back(draw<T>(numel_, 100 + static_cast<std::uint64_t>(k), 1.0));
    }
    for (std::size_t i = 0; i < layout.sizes.size(); ++i) {
      gradients_.push_back(draw<G>(layout.sizes[i] + layout.shift, 1000 + i, 1.0));
    }
  }

  [[nodiscard]] BlockUpdate update(std::int64_t step) const {
    BlockUpdate update{.parameters = parameters_.block(),
                       .rounded = rounded_.block(),
                       .lr = 0.01,
                       .decision = &layout_.decision,
                       .intake = {.keep = 0.4}};
    for (std::size_t k = 0; k < states_.size(); ++k) update.states[k] = states_[k].block().data;
    const double weight = 0.6 / static_cast<double>(inboxes_.size());
    for (const Buffer& inbox : inboxes_) update.intake.inboxes.push_back({inbox.block(), weight});
    for (std::size_t i = 0; i < layout_.sizes.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i);
      Segment segment{
          .offset = offsets_[i],
          .numel = layout_.sizes[i],
          .gradient = part_of(ConstBlock(gradients_[i].block()), layout_.shift, layout_.sizes[i]),
          .step = step + place % layout_.num_step_counts,
          .weight_decay = 0.01 * static_cast<double>(place % layout_.num_decays)};
      if (layout_.missing != 0 && static_cast<int>(i) % layout_.missing == 0) segment.gradient = {};
      if ((layout_.has_own_rates || layout_.own != nullptr) && i % 2 == 1) {
        segment.lr = 0.01 * static_cast<double>(i);
        segment.optimizer = layout_.own;
      }
      update.segments.push_back(segment);
    }
    return update;
  }

  /// Bytes, buffer by buffer.
  [[nodiscard]] std::vector<std::string> memory() const {
    std::vector<std::string> all;
    for (const Buffer* buffer : buffers()) {
      const Block block = buffer->block();
      all.emplace_back(static_cast<const char*>(block.data),
                       static_cast<std::size_t>(block.bytes()));
    }
    return all;
  }

 private:
  [[nodiscard]] std::vector<const Buffer*> buffers() const {
    std::vector<const Buffer*> all = {&parameters_, &rounded_};
    for (const auto* list : {&states_, &inboxes_, &gradients_}) {
      for (const Buffer& buffer : *list) all.push_back(&buffer);
    }
    return all;
  }

  template <class E>
  static Buffer draw(std::int64_t numel, std::uint64_t stream, double bound) {
    Buffer buffer(numel, DTypeOf<E>::kValue);
    Random random(7, stream);
    for (E& x : buffer.block().as<E>()) x = element<E>(random.uniform(-bound, bound));
    return buffer;
  }

  Layout layout_;
  std::int64_t numel_ = 0;
  std::vector<std::int64_t> offsets_;
  Buffer parameters_;
  Buffer rounded_;
  std::vector<Buffer> states_;
  std::vector<Buffer> inboxes_;
  std::vector<Buffer> gradients_;
};

/// The blocks of `layouts` are updated together, and expected is what single updates give. Returns
/// the number of launches of the last step.
template <class Rule, class T, class G = T>
int expect_the_same(const Rule& rule, const Optimizer& optimizer,
                    const std::vector<Layout>& layouts) {
  std::vector<Side<T, G>> expected;
  std::vector<Side<T, G>> actual;
  for (const Layout& layout : layouts) {
    expected.emplace_back(layout, kNumStates<Rule>);
    actual.emplace_back(layout, kNumStates<Rule>);
  }
  InlineStream stream;
  int num_launches = 0;
  for (std::int64_t step = 1; step <= 2 * optimizer.cycle() + 1; ++step) {
    std::vector<BlockUpdate> updates;
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      enqueue_update(stream, optimizer, expected[i].update(step));
      updates.push_back(actual[i].update(step));
    }
    num_launches = run_like_a_gpu<Rule, T, G>(rule, updates);
  }
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    EXPECT_EQ(actual[i].memory(), expected[i].memory()) << "block " << i;
  }
  return num_launches;
}

template <class Rule, class T, class G = T>
int expect_the_same(const Rule& rule, const Optimizer& optimizer, const Layout& layout) {
  return expect_the_same<Rule, T, G>(rule, optimizer, std::vector<Layout>{layout});
}

struct Case {
  const char* name;
  void (*check)(const std::vector<Layout>& layouts);
};

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

template <class Rule>
void check_rule(const Rule& rule, const char* optimizer, const char* yaml,
                const std::vector<Layout>& layouts) {
  const auto made = make_optimizer(optimizer, Options::parse(yaml));
  expect_the_same<Rule, float>(rule, *made, layouts);
  expect_the_same<Rule, double>(rule, *made, layouts);
  expect_the_same<Rule, float, BFloat16>(rule, *made, layouts);
}

constexpr MomentOptions kMoments{};
const std::vector<Case> kCases = {
    {"sgd",
     [](const std::vector<Layout>& layouts) { check_rule(PlainRule{}, "sgd", "", layouts); }},
    {"momentum",
     [](const std::vector<Layout>& layouts) {
       check_rule(MomentumRule<false>{0.9}, "sgd", "momentum: 0.9", layouts);
     }},
    {"nesterov",
     [](const std::vector<Layout>& layouts) {
       check_rule(MomentumRule<true>{0.9}, "sgd", "momentum: 0.9, nesterov: true", layouts);
     }},
    {"adam",
     [](const std::vector<Layout>& layouts) {
       check_rule(AdamRule<Decay::kCoupled>{kMoments}, "adam", "", layouts);
     }},
    {"adamw",
     [](const std::vector<Layout>& layouts) {
       check_rule(AdamRule<Decay::kDecoupled>{kMoments}, "adamw", "", layouts);
     }},
    {"mixing_adam",
     [](const std::vector<Layout>& layouts) {
       check_rule(MixingAdamRule<Decay::kCoupled>{{kMoments}, 0.3}, "adam", "mixing_momentum: 0.3",
                  layouts);
     }},
    {"mixing_adamw",
     [](const std::vector<Layout>& layouts) {
       check_rule(MixingAdamRule<Decay::kDecoupled>{{kMoments}, 0.2}, "adamw",
                  "mixing_momentum: 0.2", layouts);
     }},
    {"qadam",
     [](const std::vector<Layout>& layouts) {
       check_rule(QAdamRule{kMoments, 2}, "qadam", "warmup: 2", layouts);
     }},
    {"accum_adam",
     [](const std::vector<Layout>& layouts) {
       check_rule(AccumAdamRule<Decay::kCoupled>{kMoments, 3}, "accum_adam", "accum_iter: 3",
                  layouts);
     }},
    {"accum_adamw_1",
     [](const std::vector<Layout>& layouts) {
       check_rule(AccumAdamRule<Decay::kDecoupled>{kMoments, 1}, "accum_adamw", "accum_iter: 1",
                  layouts);
     }},
    {"accum_adamw",
     [](const std::vector<Layout>& layouts) {
       check_rule(AccumAdamRule<Decay::kDecoupled>{kMoments, 4}, "accum_adamw", "accum_iter: 4",
                  layouts);
     }},
    {"lion",
     [](const std::vector<Layout>& layouts) { check_rule(LionRule{}, "lion", "", layouts); }},
    {"qg_sgd",
     [](const std::vector<Layout>& layouts) {
       check_rule(QuasiGlobalRule{}, "qg_sgd", "", layouts);
     }},
    {"extra",
     [](const std::vector<Layout>& layouts) {
       check_rule(ExtraRule<MomentumRule<false>>{{0.9}}, "extra",
                  "rule: {name: sgd, momentum: 0.9}", layouts);
     }},
};

class SweepTable : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Rules, SweepTable, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(SweepTable, GivesTheSameBitsForAllSizes) {
  const std::int64_t chunk = kChunk<float>;
  GetParam().check(
      {{.sizes = {0, 1, 2, 3, 4, 5, 31, 33, 1023, chunk - 1, chunk, chunk + 1, 3 * chunk + 7}}});
}

TEST_P(SweepTable, GivesTheSameBitsForAllNumbersOfInboxes) {
  for (const std::int64_t count : {0, 1, 2, 3, kMaxInboxes, kMaxInboxes + 1, 2 * kMaxInboxes + 3}) {
    GetParam().check({{.sizes = {70, 5000}, .num_inboxes = count}});
  }
}

TEST_P(SweepTable, GivesTheSameBitsWhereGradientsAreNotAligned) {
  for (const std::int64_t shift : {1, 2, 3}) {
    GetParam().check({{.sizes = {1, 9, 5000}, .shift = shift}});
  }
}

TEST_P(SweepTable, GivesTheSameBitsWhereGradientsAreMissing) {
  GetParam().check({{.sizes = {5, 6, 7, 8, 9}, .missing = 2}});
  GetParam().check({{.sizes = {5, 6}, .missing = 1}});
  GetParam().check({{.sizes = {5, 6}, .num_inboxes = 0, .missing = 1}});
}

TEST_P(SweepTable, GivesTheSameBitsWhereSegmentsDifferInStepAndDecay) {
  GetParam().check(
      {{.sizes = std::vector<std::int64_t>(60, 37), .num_step_counts = 5, .num_decays = 9}});
}

TEST_P(SweepTable, MixesAloneWhereAStepIsLeftOut) {
  GetParam().check({{.sizes = {5, 4500}, .decision = {.factor = 0.0, .apply = 0}}});
}

TEST_P(SweepTable, GivesTheSameBitsWhereSegmentsHaveRatesOfTheirOwn) {
  GetParam().check({{.sizes = {5, 6, 7, 8, 5000}, .has_own_rates = true}});
}

TEST(SweepTable, GivesTheSameBitsWhereSegmentsHaveNumbersOfTheirOwn) {
  using AdamW = AdamRule<Decay::kDecoupled>;
  using AccumAdamW = AccumAdamRule<Decay::kDecoupled>;
  const auto own_adamw = make_optimizer("adamw", Options::parse("betas: [0.5, 0.6]"));
  const auto own_accum =
      make_optimizer("accum_adamw", Options::parse("betas: [0.5, 0.6], accum_iter: 2"));
  Layout layout{
      .sizes = {5, 6, 7, 8, 5000}, .num_inboxes = kMaxInboxes + 3, .own = own_adamw.get()};
  expect_the_same<AdamW, float>({kMoments}, *make_optimizer("adamw"), layout);
  layout.own = own_accum.get();
  // Segments are in different phases of their cycles.
  const auto accum = make_optimizer("accum_adamw", Options::parse("accum_iter: 3"));
  expect_the_same<AccumAdamW, float, BFloat16>({kMoments, 3}, *accum, layout);
}

TEST(SweepTable, CutsWhatDoesNotFitIntoSeveralLaunches) {
  const AdamRule<Decay::kDecoupled> rule{kMoments};
  const auto adamw = make_optimizer("adamw");
  using Rule = AdamRule<Decay::kDecoupled>;
  const auto launches = [&](const Layout& layout) {
    return expect_the_same<Rule, float>(rule, *adamw, layout);
  };
  EXPECT_EQ(launches({.sizes = std::vector<std::int64_t>(kMaxSegments, 3)}), 1);
  EXPECT_EQ(launches({.sizes = std::vector<std::int64_t>(kMaxSegments + 1, 3)}), 2);
  EXPECT_EQ(launches({.sizes = std::vector<std::int64_t>(3 * kMaxSegments, 3)}), 3);
  EXPECT_EQ(launches({.sizes = std::vector<std::int64_t>(kMaxCoefficients, 3),
                      .num_decays = kMaxCoefficients}),
            1);
  EXPECT_EQ(launches({.sizes = std::vector<std::int64_t>(kMaxCoefficients + 1, 3),
                      .num_decays = kMaxCoefficients + 1}),
            2);
}

TEST_P(SweepTable, GivesTheSameBitsForSeveralBlocksAtOnce) {
  GetParam().check({{.sizes = {5, 4500}},
                    {.sizes = {1, 7}, .num_inboxes = 0, .shift = 1},
                    {.sizes = {}},
                    {.sizes = {900}, .num_inboxes = 3, .missing = 1},
                    {.sizes = {33}, .num_inboxes = kMaxInboxes + 1},
                    {.sizes = {3, 70}, .num_step_counts = 2, .decision = {.factor = 2.0}},
                    {.sizes = {64}, .decision = {.factor = 0.0, .apply = 0}},
                    {.sizes = {0, 3000}, .num_inboxes = 2, .has_own_rates = true}});
}

TEST(SweepTable, CutsBlocksThatDoNotFitIntoSeveralLaunches) {
  const auto adamw = make_optimizer("adamw");
  using Rule = AdamRule<Decay::kDecoupled>;
  const auto launches = [&](std::size_t count, const Layout& layout) {
    return expect_the_same<Rule, float>({kMoments}, *adamw, std::vector<Layout>(count, layout));
  };
  EXPECT_EQ(launches(32, {.sizes = {3}}), 1);
  EXPECT_EQ(launches(33, {.sizes = {3}}), 2);
  // 64 inboxes fit, and then 65 do not.
  EXPECT_EQ(launches(16, {.sizes = {3}, .num_inboxes = 4}), 1);
  EXPECT_EQ(launches(13, {.sizes = {3}, .num_inboxes = 5}), 2);
  EXPECT_EQ(launches(8, {.sizes = std::vector<std::int64_t>(64, 3)}), 1);
  EXPECT_EQ(launches(9, {.sizes = std::vector<std::int64_t>(64, 3)}), 2);
  // A block with more inboxes than one launch takes is alone.
  EXPECT_EQ(launches(2, {.sizes = {3}, .num_inboxes = 17}), 4);
}

TEST(SweepTable, FindsTheSegmentOfEveryChunk) {
  struct {
    int num_segments = 0;
    std::array<SweepSegment, 9> segments;
  } table;
  for (int count = 1; count <= 9; ++count) {
    table.num_segments = count;
    std::int32_t chunks = 0;
    for (int i = 0; i < count; ++i) {
      table.segments[static_cast<std::size_t>(i)].first_chunk = chunks;
      chunks += 1 + i % 3;
    }
    std::int32_t chunk = 0;
    for (int i = 0; i < count; ++i) {
      for (int k = 0; k < 1 + i % 3; ++k) EXPECT_EQ(segment_of(table, chunk++), i);
    }
  }
}

}  // namespace
}  // namespace gossamer
