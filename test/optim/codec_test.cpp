// Tests every codec against a reference in double, and updates whose inboxes are encoded.

#include "test/optim/parameters.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "optim/block_update.hpp"
#include "optim/stream_copy.hpp"

namespace gossamer {
namespace {

/// A floating-point type: significant bits, the exponent of its smallest normal number, and its
/// largest finite number.
struct SmallFloat {
  int num_bits;
  int least_exponent;
  double largest;

  /// The nearest number of the type, ties to even; beyond the largest number, the largest.
  [[nodiscard]] double nearest(double x) const {
    if (x == 0.0) return x;
    const int exponent = std::max(std::ilogb(x), least_exponent);
    const double spacing = std::ldexp(1.0, exponent - num_bits + 1);
    const double rounded = std::nearbyint(x / spacing) * spacing;
    return std::clamp(rounded, -largest, largest);
  }
};

SmallFloat float_of(std::string_view codec) {
  if (codec == "bf16") return {8, -126, std::ldexp(255.0, 120)};
  if (codec == "fp16") return {11, -14, 65504.0};
  throw std::logic_error("the tests do not know this codec");
}

class EveryCodec : public testing::TestWithParam<std::string> {
 protected:
  const MixingCodec& codec_ = *find_codec(GetParam())->mixing();
  /// For codecs that need one: room for differences of up to 15.
  const Grid grid_ = {.exponent = codec_.most_steps() == 7 ? 2 : -3, .seed = 11};

  [[nodiscard]] Buffer encoded(const Block& x, SimdPath simd = best_simd_path()) const {
    Buffer wire(codec_.encoded_bytes(x.numel), DType::kUInt8);
    codec_.encode(wire.block(), x, grid_, simd);
    return wire;
  }
  /// How an update mixes encoded blocks, and encodes the result.
  [[nodiscard]] ExchangeWork exchange_of(const Buffer& own) const {
    return {.coding = {.codec = &codec_,
                       .own = own.block(),
                       .decodes = true,
                       .encodes = true,
                       .grid = grid_,
                       .next_grid = {.exponent = -5, .seed = 12}},
            .stats = stats_};
  }
  /// What the encoded blocks of a pair say about the difference between them.
  [[nodiscard]] DifferenceRange range_of(const Block& heard, const Block& own,
                                         std::int64_t numel) const {
    std::vector<double> sum(static_cast<std::size_t>(numel));
    return codec_.add_difference(block_of(std::span(sum)), {heard, 1.0}, own, grid_,
                                 best_simd_path());
  }
  std::shared_ptr<DifferenceStats> stats_ = std::make_shared<DifferenceStats>();
};

/// Codecs that send every value as a small floating-point number.
class EverySmallFloat : public EveryCodec {
 protected:
  const SmallFloat float_ = float_of(GetParam());

  /// What other ranks understand of `values`.
  template <class T>
  std::vector<T> sent(std::vector<T> values) const {
    const Buffer wire = encoded(block_of(std::span(values)));
    const Buffer zeros(wire.block().numel, DType::kUInt8);
    std::ranges::fill(values, T{});
    codec_.add_difference(block_of(std::span(values)), {wire.block(), 1.0}, zeros.block(), grid_,
                          best_simd_path());
    return values;
  }
};

std::vector<std::string> lossy_codecs(bool with_grids) {
  std::vector<std::string> names;
  for (const CodecEntry& entry : codec_table()) {
    if (entry.codec == nullptr || (!with_grids && entry.codec().needs_grid())) continue;
    if (!with_grids && entry.codec().mixing() == nullptr) continue;
    names.emplace_back(entry.name);
  }
  return names;
}
std::vector<std::string> mixing_codecs() {
  std::vector<std::string> names = lossy_codecs(true);
  std::erase_if(names, [](const auto& name) { return find_codec(name)->mixing() == nullptr; });
  return names;
}
/// The encoding for sums.
class EverySummand : public testing::TestWithParam<std::string> {
 protected:
  const Codec& codec_ = *find_codec(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Names, EverySummand, testing::ValuesIn(lossy_codecs(true)),
                         [](const auto& tested) { return tested.param; });
INSTANTIATE_TEST_SUITE_P(Names, EveryCodec, testing::ValuesIn(mixing_codecs()),
                         [](const auto& tested) { return tested.param; });
INSTANTIATE_TEST_SUITE_P(Names, EverySmallFloat, testing::ValuesIn(lossy_codecs(false)),
                         [](const auto& tested) { return tested.param; });

/// Numbers of all sizes, ties, and the ends of the range of binary16.
std::vector<float> many_numbers() {
  Random random(5, 0);
  std::vector<float> numbers = {0.0F,     -0.0F,         1.0F,          -1.0F,         65504.0F,
                                65519.0F, 65520.0F,      -70000.0F,     6.1035156e-5F, 6.0e-5F,
                                5.96e-8F, 2.9802322e-8F, 2.9802326e-8F, -3.0e-8F,      1e-20F};
  for (int exponent = -30; exponent < 20; ++exponent) {
    const float size = std::ldexp(1.0F, exponent);
    for (int i = 0; i < 40; ++i)
      numbers.push_back(size * static_cast<float>(random.uniform(-2, 2)));
    // Ties of 8 and of 11 significant bits.
    for (const int bits : {8, 11}) {
      for (const double step : {0.5, 1.5}) {
        numbers.push_back(static_cast<float>(size * (1.0 + step * std::ldexp(1.0, 1 - bits))));
      }
    }
  }
  return numbers;
}

TEST_P(EverySmallFloat, RoundsToTheNearestNumber) {
  const std::vector<float> numbers = many_numbers();
  const std::vector<float> found = sent(numbers);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(static_cast<double>(found[i]), float_.nearest(static_cast<double>(numbers[i])))
        << numbers[i];
  }
}

TEST_P(EverySmallFloat, KeepsItsOwnNumbers) {
  std::vector<float> numbers = sent(many_numbers());
  EXPECT_EQ(sent(numbers), numbers);
}

TEST_P(EverySmallFloat, RoundsDoublesAsFloats) {
  const std::vector<float> numbers = many_numbers();
  const std::vector<float> found = sent(numbers);
  EXPECT_EQ(sent(std::vector<double>(numbers.begin(), numbers.end())),
            std::vector<double>(found.begin(), found.end()));
}

TEST_P(EverySmallFloat, KeepsNaN) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> found = sent(std::vector<float>{1.0F, none, -none, 2.0F});
  EXPECT_EQ(found[0], 1.0F);
  EXPECT_TRUE(std::isnan(found[1]));
  EXPECT_TRUE(std::isnan(found[2]));
  EXPECT_EQ(found[3], 2.0F);
}

TEST_P(EveryCodec, GivesTheSameBitsOnEveryPathAndForEveryPart) {
  Random random(7, 0);
  for (const std::int64_t numel : {0, 1, 3, 16, 31, 64, 257}) {
    const auto count = static_cast<std::size_t>(numel);
    std::vector<float> x(count);
    std::vector<float> other(count);
    draw(random, std::span(x));
    draw(random, std::span(other));
    const Buffer wire = encoded(block_of(std::span(x)), SimdPath::kBaseline);
    const Buffer heard = encoded(block_of(std::span(other)), SimdPath::kBaseline);
    const auto bytes = wire.block().as<std::uint8_t>();
    std::vector<float> expected = x;
    codec_.add_difference(block_of(std::span(expected)), {heard.block(), 0.3}, wire.block(), grid_,
                          SimdPath::kBaseline);
    for (const SimdPath path : available_simd_paths()) {
      SCOPED_TRACE(concat(name_of(path), ", ", numel));
      const Buffer again = encoded(block_of(std::span(x)), path);
      EXPECT_TRUE(std::ranges::equal(again.block().as<std::uint8_t>(), bytes));
      // In two parts.
      std::vector<float> mixed = x;
      const std::int64_t cut = numel / 3 / MixingCodec::kGrain * MixingCodec::kGrain;
      for (const auto& [first, size] : {std::pair{std::int64_t{0}, cut}, {cut, numel - cut}}) {
        const Block part = part_of(block_of(std::span(mixed)), first, size);
        const Block own = encoded_part(codec_, again.block(), first, size);
        codec_.encode(own, part, grid_.from(first), path);
        codec_.add_difference(part, {encoded_part(codec_, heard.block(), first, size), 0.3}, own,
                              grid_.from(first), path);
      }
      EXPECT_TRUE(std::ranges::equal(again.block().as<std::uint8_t>(), bytes));
      EXPECT_EQ(mixed, expected);
    }
  }
}

TEST_P(EveryCodec, NeedsBlocksThatFit) {
  std::vector<float> x(8);
  std::vector<std::int64_t> integers(8);
  const Buffer wire(codec_.encoded_bytes(8), DType::kUInt8);
  const Buffer shorter(codec_.encoded_bytes(6), DType::kUInt8);
  const Block block = block_of(std::span(x));
  const SimdPath simd = best_simd_path();
  EXPECT_THROW(codec_.encode(shorter.block(), block, grid_, simd), std::logic_error);
  EXPECT_THROW(codec_.encode(block, block, grid_, simd), std::logic_error);
  EXPECT_THROW(codec_.encode(wire.block(), block_of(std::span(integers)), grid_, simd),
               std::logic_error);
  EXPECT_THROW(codec_.add_difference(block, {shorter.block(), 1.0}, wire.block(), grid_, simd),
               std::logic_error);
  EXPECT_THROW(codec_.add_difference(block, {wire.block(), 1.0}, shorter.block(), grid_, simd),
               std::logic_error);
  EXPECT_THROW(codec_.add_difference(block_of(std::span(integers)), {wire.block(), 1.0},
                                     wire.block(), grid_, simd),
               std::logic_error);
}

/// A block encoded for a sum, and what another rank adds.
template <class T>
struct Summand {
  Summand(const Codec& codec, std::vector<T> x, SimdPath simd = best_simd_path())
      : wire(codec.summand_bytes(std::ssize(x)), DType::kUInt8), values(x.size()) {
    codec.encode_summand(wire.block(), block_of(std::span(x)), simd);
    codec.add_summand(block_of(std::span(values)), wire.block(), simd);
  }
  Buffer wire;
  std::vector<T> values;
};

TEST_P(EverySummand, GivesTheSameSummandsOnEveryPathAndForEveryPart) {
  constexpr std::int64_t kPart = Codec::kSummandPart;
  for (const std::int64_t numel : {std::int64_t{0}, std::int64_t{1}, std::int64_t{77}, kPart,
                                   kPart + 1, 2 * kPart, 3 * kPart - 5}) {
    Random random(9, static_cast<std::uint64_t>(numel));
    std::vector<float> x(static_cast<std::size_t>(numel));
    draw(random, std::span(x));
    const Summand expected(codec_, x, SimdPath::kBaseline);
    for (const SimdPath path : available_simd_paths()) {
      SCOPED_TRACE(concat(name_of(path), ", ", numel));
      const Summand<float> found(codec_, x, path);
      EXPECT_TRUE(std::ranges::equal(found.wire.block().as<std::uint8_t>(),
                                     expected.wire.block().as<std::uint8_t>()));
      EXPECT_EQ(found.values, expected.values);
      const Buffer parts(codec_.summand_bytes(numel), DType::kUInt8);
      for (std::int64_t first = 0; first < numel; first += kPart) {
        const std::int64_t size = std::min(kPart, numel - first);
        codec_.encode_summand(
            part_of(parts.block(), codec_.summand_bytes(first), codec_.summand_bytes(size)),
            part_of(block_of(std::span(x)), first, size), path);
      }
      EXPECT_TRUE(std::ranges::equal(parts.block().as<std::uint8_t>(),
                                     expected.wire.block().as<std::uint8_t>()));
    }
    const std::vector<double> wide(x.begin(), x.end());
    EXPECT_TRUE(std::ranges::equal(Summand(codec_, wide).wire.block().as<std::uint8_t>(),
                                   expected.wire.block().as<std::uint8_t>()));
  }
}

TEST_P(EverySummand, AddsSummandsThatFit) {
  std::vector<float> x(8);
  std::vector<std::int64_t> integers(8);
  const Buffer wire(codec_.summand_bytes(8), DType::kUInt8);
  const Buffer shorter(codec_.summand_bytes(8) - 1, DType::kUInt8);
  const Block block = block_of(std::span(x));
  const Block strange = block_of(std::span(integers));
  const SimdPath simd = best_simd_path();
  EXPECT_THROW(codec_.encode_summand(shorter.block(), block, simd), std::logic_error);
  EXPECT_THROW(codec_.encode_summand(block, block, simd), std::logic_error);
  EXPECT_THROW(codec_.encode_summand(wire.block(), strange, simd), std::logic_error);
  EXPECT_THROW(codec_.add_summand(block, shorter.block(), simd), std::logic_error);
  EXPECT_THROW(codec_.add_summand(strange, wire.block(), simd), std::logic_error);
}

TEST_P(EverySmallFloat, RoundsSummandsToTheNearestNumberWithinItsRange) {
  std::vector<float> numbers = many_numbers();
  std::erase_if(numbers, [this](float x) {
    return std::abs(static_cast<double>(x)) >= 65520.0 && float_.largest == 65504.0;
  });
  const std::vector<float> found = Summand(codec_, numbers).values;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(static_cast<double>(found[i]), float_.nearest(static_cast<double>(numbers[i])))
        << numbers[i];
  }
  EXPECT_EQ(std::isnan(Summand(codec_, std::vector<float>{65520.0F}).values[0]),
            GetParam() == "fp16");
}

TEST(Codecs, AreFoundByName) {
  EXPECT_EQ(find_codec("fp32"), nullptr);
  EXPECT_EQ(find_codec("BF16")->name(), "bf16");
  EXPECT_THROW(find_codec("bf17"), ConfigError);
}

TEST(Codecs, OfTheLargestElementsOnlySum) {
  EXPECT_EQ(find_codec("topk")->mixing(), nullptr);
  EXPECT_FALSE(find_codec("topk")->needs_grid());
}

TEST(Codecs, GroupsAreEncodedWhereThatSendsLess) {
  for (const CodecEntry& entry : codec_table()) {
    const MixingCodec* const codec = entry.codec == nullptr ? nullptr : entry.codec().mixing();
    if (codec == nullptr) continue;
    const auto most = most_coded_members(*codec);
    const double ratio = static_cast<double>(codec->encoded_bytes(1024)) / 4096.0;
    for (std::int64_t n = 2; n < 20; ++n) {
      const double members = static_cast<double>(n);
      const bool is_less = ratio * (members - 1.0) < 2.0 * (members - 1.0) / members;
      EXPECT_EQ(is_less, n <= most) << entry.name << ", " << n;
    }
  }
}

/// A block of three parameters, with gaps between them, for two ways to make the same step.
struct CodedStep {
  static constexpr std::int64_t kNumel = 10'000;
  explicit CodedStep(std::uint64_t seed)
      : x(kNumel, DType::kFloat32), g(kNumel, DType::kFloat32), m(kNumel, DType::kFloat32) {
    Random random(seed, 1);
    for (const Buffer& buffer : {x, g, m}) draw(random, buffer.block().as<float>());
  }

  [[nodiscard]] BlockUpdate update() const {
    BlockUpdate update{.parameters = x.block(), .lr = 0.1};
    update.states[0] = m.block().data;
    update.segments = {
        {.offset = 0, .numel = 5, .gradient = part_of(g.block(), 0, 5), .step = 2},
        {.offset = 32, .numel = 4100, .step = 2},
        {.offset = 4160, .numel = 5800, .gradient = part_of(g.block(), 4160, 5800), .step = 2}};
    return update;
  }
  [[nodiscard]] bool equals(const CodedStep& other) const {
    return std::ranges::equal(x.block().as<float>(), other.x.block().as<float>()) &&
           std::ranges::equal(m.block().as<float>(), other.m.block().as<float>());
  }

  Buffer x;
  Buffer g;
  Buffer m;
};

TEST_P(EveryCodec, MixesUpdatesAndEncodesInOnePass) {
  const auto optimizer = make_optimizer("sgd", Options::parse("momentum: 0.9"));
  const std::vector<float> weights = {0.25F, 0.5F};
  WorkerPool pool(3);
  for (WorkerPool* threads : {static_cast<WorkerPool*>(nullptr), &pool}) {
    CodedStep coded(3);
    CodedStep plain(3);
    const Buffer own = encoded(coded.x.block());
    BlockUpdate update = coded.update();
    BlockUpdate reference = plain.update();
    const Buffer difference(CodedStep::kNumel, DType::kFloat32);
    std::vector<Buffer> heard;
    for (const float weight : weights) {
      CodedStep peer(4 + heard.size());
      heard.push_back(encoded(peer.x.block()));
      update.intake.inboxes.push_back({heard.back().block(), weight});
      codec_.add_difference(difference.block(), update.intake.inboxes.back(), own.block(), grid_,
                            best_simd_path());
    }
    reference.intake.inboxes = {{difference.block(), 1.0}};
    update.intake.exchange = exchange_of(own);
    update.pool = threads;
    InlineStream stream;
    double largest = 0.0;
    std::int64_t num_wide = 0;
    for (const Segment& segment : update.segments) {
      for (const Buffer& buffer : heard) {
        const auto part = [&](const Buffer& all) {
          return encoded_part(codec_, all.block(), segment.offset, segment.numel);
        };
        const DifferenceRange range = range_of(part(buffer), part(own), segment.numel);
        largest = std::max(largest, std::ldexp(range.largest_steps, grid_.exponent));
        num_wide += range.num_wide;
      }
    }
    enqueue_update(stream, *optimizer, update);
    enqueue_update(stream, *optimizer, reference);
    EXPECT_TRUE(coded.equals(plain));
    EXPECT_EQ(static_cast<double>(stats_->take_largest()), largest);
    EXPECT_EQ(stats_->take_num_wide(), num_wide);
    EXPECT_EQ(largest > 0.0, codec_.needs_grid());
    for (const Segment& segment : update.segments) {
      const Buffer expected(codec_.encoded_bytes(segment.numel), DType::kUInt8);
      codec_.encode(expected.block(), part_of(plain.x.block(), segment.offset, segment.numel),
                    update.intake.exchange.coding.next_grid.from(segment.offset), best_simd_path());
      const Block found = encoded_part(codec_, own.block(), segment.offset, segment.numel);
      EXPECT_TRUE(std::ranges::equal(found.as<std::uint8_t>(), expected.block().as<std::uint8_t>()))
          << segment.offset;
    }
    // Mixing alone gives the same.
    CodedStep mixed(3);
    const Buffer sent = encoded(mixed.x.block());
    enqueue_mix(stream, mixed.x.block(), 0.75, update.intake.inboxes, exchange_of(sent));
    CodedStep expected_mix(3);
    mix(expected_mix.x.block(), 0.75, reference.intake.inboxes);
    EXPECT_TRUE(mixed.equals(expected_mix));
  }
}

TEST(ExchangeWork, MeasuresPlainInboxes) {
  std::vector<double> x(5000, 1.0);
  std::vector<double> heard(5000, 1.25);
  heard[4321] = -2.0;
  const auto stats = std::make_shared<DifferenceStats>();
  const ExchangeWork exchange{.stats = stats};
  const std::vector<Inbox> inboxes = {{block_of(std::span(x)), 0.25},
                                      {block_of(std::span(heard)), 0.25}};
  InlineStream stream;
  std::vector<double> mixed = x;
  enqueue_mix(stream, block_of(std::span(mixed)), 0.5, inboxes, exchange);
  EXPECT_EQ(stats->take_largest(), 3.0F);
  EXPECT_EQ(stats->largest(), 0.0F);
  EXPECT_EQ(mixed[4321], 0.5 + 0.25 - 0.5);

  // Sizes that a float32 cannot hold, and differences that are not a number.
  for (const double strange : {std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    heard[1] = strange;
    std::vector<double> other = x;
    enqueue_mix(stream, block_of(std::span(other)), 0.5, inboxes, exchange);
    EXPECT_EQ(stats->take_largest(), std::numeric_limits<float>::infinity()) << strange;
  }
  heard[1] = 1.0;

  // The same in an update.
  mixed = x;
  const auto optimizer = make_optimizer("sgd", Options());
  enqueue_update(stream, *optimizer,
                 {.parameters = block_of(std::span(mixed)),
                  .segments = {{.offset = 0, .numel = 5000, .step = 1}},
                  .intake = {.keep = 0.5, .inboxes = inboxes, .exchange = exchange}});
  EXPECT_EQ(stats->take_largest(), 3.0F);
  EXPECT_EQ(mixed[4321], 0.5 + 0.25 - 0.5);
}

TEST(StreamCopy, CopiesBytesWhereverTheyLie) {
  for (const std::int64_t offset : {0, 1, 4, 16, 17}) {
    for (const std::int64_t numel : {0, 1, 3, 4, 100, 4097}) {
      std::vector<float> x(static_cast<std::size_t>(numel));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 0.25F;
      const std::int64_t size = numel * size_of(DType::kFloat32);
      const Buffer wire(size + 32, DType::kUInt8);
      const Block place = part_of(wire.block(), offset, size);
      stream_copy(place, {x.data(), size, DType::kUInt8});
      EXPECT_TRUE(numel == 0 || std::memcmp(place.data, x.data(), x.size() * 4) == 0) << numel;
      const auto bytes = wire.block().as<std::uint8_t>();
      EXPECT_EQ(bytes[static_cast<std::size_t>(offset + place.bytes())], 0) << "beyond the end";
    }
  }
  const Buffer four(4, DType::kFloat32);
  EXPECT_THROW(stream_copy(four.block(), part_of(four.block(), 0, 3)), std::logic_error);
  EXPECT_THROW(stream_copy(four.block(), Buffer(4, DType::kFloat64).block()), std::logic_error);
}

TEST(ExchangeWork, AddsUpInboxesBeforeItMixes) {
  // (1 + 1e8) - 1e8 is 0 in float32, while 1 + (1e8 - 1e8) is 1: the order of adding shows.
  InlineStream stream;
  const auto optimizer = make_optimizer("sgd", Options());
  for (const std::int64_t numel : {1, 4096, 10'000}) {
    const auto size = static_cast<std::size_t>(numel);
    std::vector<float> x(size, 2.0F);
    const std::vector<std::vector<float>> heard = {std::vector(size, 1.0F), std::vector(size, 1e8F),
                                                   std::vector(size, -1e8F)};
    std::vector<Inbox> inboxes;
    for (const auto& block : heard) {
      inboxes.push_back({ConstBlock(block.data(), numel, DType::kFloat32), 0.25});
    }
    enqueue_update(stream, *optimizer,
                   {.parameters = block_of(std::span(x)),
                    .segments = {{.offset = 0, .numel = numel, .step = 1}},
                    .intake = {.keep = 0.5, .inboxes = inboxes, .exchange = {.sums = true}}});
    EXPECT_EQ(x, std::vector<float>(size, 1.0F)) << numel;
  }
}

TEST(ExchangeWork, TakesTheEndOfTheRangeForAnUnknownDifference) {
  for (const auto& [name, heard] : {std::pair("int8", 126.0),
                                    {"int8", 127.0},
                                    {"int8", 128.0},
                                    {"int4", 6.0},
                                    {"int4", 7.0},
                                    {"int4", 8.0}}) {
    const MixingCodec& codec = *find_codec(name)->mixing();
    const double most = codec.most_steps();
    std::vector<double> x = {0.0, 0.0};
    std::vector<double> other = {0.0, heard};
    const Grid grid{.exponent = 0, .seed = 1};
    const Buffer own(codec.encoded_bytes(2), DType::kUInt8);
    const Buffer inbox(codec.encoded_bytes(2), DType::kUInt8);
    codec.encode(own.block(), block_of(std::span(x)), grid, best_simd_path());
    codec.encode(inbox.block(), block_of(std::span(other)), grid, best_simd_path());
    const auto stats = std::make_shared<DifferenceStats>();
    InlineStream stream;
    enqueue_mix(stream, block_of(std::span(x)), 1.0, {{inbox.block(), 0.5}},
                {.coding = {.codec = &codec, .own = own.block(), .decodes = true, .grid = grid},
                 .stats = stats});
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    EXPECT_EQ(static_cast<double>(stats->largest()), heard < most ? heard : kInfinity);
    EXPECT_EQ(x[1], heard <= most ? heard / 2.0 : 0.0);
  }
}

TEST_P(EveryCodec, KeepsTheMeanOfAPair) {
  std::vector<double> mine = {30.01, -29.97, 1e-3, 5.5};
  std::vector<double> theirs = {30.07, -30.11, 2e-3, 5.25};
  const Buffer own = encoded(block_of(std::span(mine)));
  const Buffer other = encoded(block_of(std::span(theirs)));
  std::vector<double> sums;
  for (std::size_t i = 0; i < mine.size(); ++i) sums.push_back(mine[i] + theirs[i]);
  InlineStream stream;
  enqueue_mix(stream, block_of(std::span(mine)), 1.0, {{other.block(), 0.5}}, exchange_of(own));
  enqueue_mix(stream, block_of(std::span(theirs)), 1.0, {{own.block(), 0.5}}, exchange_of(other));
  for (std::size_t i = 0; i < mine.size(); ++i) {
    EXPECT_NEAR(mine[i] + theirs[i], sums[i], 1e-14 * std::abs(sums[i])) << i;
  }
}

}  // namespace
}  // namespace gossamer
