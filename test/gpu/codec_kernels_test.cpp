// The kernels of codecs against what processors do, bit for bit.

#include "test/gpu/gpu_test.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/make_stream.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "optim/block_update.hpp"
#include "optim/registry.hpp"
#include "optim/summands.hpp"

namespace gossamer {
namespace {

/// Values that are not finite.
const std::vector<double> kNotFinite = {std::numeric_limits<double>::infinity(),
                                        std::numeric_limits<double>::quiet_NaN()};

double number(const Block& block, std::int64_t i) {
  const auto place = static_cast<std::size_t>(i);
  if (block.dtype == DType::kFloat64) return block.as<double>()[place];
  if (block.dtype == DType::kFloat32) return static_cast<double>(block.as<float>()[place]);
  if (block.dtype == DType::kBFloat16) {
    return static_cast<double>(widened(block.as<BFloat16>()[place]));
  }
  return block.as<std::uint8_t>()[place];
}

void set(const Block& block, std::int64_t i, double value) {
  const auto place = static_cast<std::size_t>(i);
  if (block.dtype == DType::kFloat64) block.as<double>()[place] = value;
  if (block.dtype == DType::kFloat32) block.as<float>()[place] = static_cast<float>(value);
  if (block.dtype == DType::kBFloat16) {
    block.as<BFloat16>()[place] = rounded_to_bfloat16(static_cast<float>(value));
  }
}

/// The same block on a processor and on the GPU.
class Pair {
 public:
  Pair(Stream& gpu, std::int64_t numel, DType dtype)
      : gpu_(&gpu), cpu_(numel, dtype), device_(gpu.allocate(numel, dtype)) {}
  /// Numbers between -bound and bound.
  Pair(Stream& gpu, std::int64_t numel, DType dtype, std::uint64_t seed, double bound)
      : Pair(gpu, numel, dtype) {
    Random random(7, seed);
    for (std::int64_t i = 0; i < numel; ++i) set(cpu_.block(), i, random.uniform(-bound, bound));
    upload();
  }

  [[nodiscard]] Block on(bool on_gpu) const { return on_gpu ? device_.block() : cpu_.block(); }
  void upload() const {
    gpu_->copy(device_.block(), cpu_.block());
    gpu_->synchronize();
  }
  /// The first element that differs; empty: none. Not a number equals not a number.
  [[nodiscard]] std::string difference() const {
    const Buffer back(cpu_.block().numel, cpu_.block().dtype);
    gpu_->copy(back.block(), device_.block());
    gpu_->synchronize();
    for (std::int64_t i = 0; i < back.block().numel; ++i) {
      const double gpu = number(back.block(), i);
      const double cpu = number(cpu_.block(), i);
      if (gpu == cpu || (std::isnan(gpu) && std::isnan(cpu))) continue;
      return concat("element ", i, ": ", cpu, " on a processor, ", gpu, " on the GPU");
    }
    return "";
  }

 private:
  Stream* gpu_;
  Buffer cpu_;
  Buffer device_;
};

class CodecKernelsTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) gpu_ = make_stream({DeviceType::kCuda, 0});
  }
  [[nodiscard]] Stream& stream(bool on_gpu) { return on_gpu ? *gpu_ : static_cast<Stream&>(cpu_); }
  std::unique_ptr<Stream> gpu_;
  InlineStream cpu_;
};

const std::vector<std::int64_t> kSegments = {0, 1, 2, 3, 5, 33, 1023, 1024, 4097};

/// Parameters of kSegments in a block, which begin at multiples of 128 bytes.
struct Layout {
  std::vector<std::int64_t> offsets;
  std::int64_t numel = 0;

  explicit Layout(DType dtype) {
    const std::int64_t grain = 128 / size_of(dtype);
    for (const std::int64_t size : kSegments) {
      offsets.push_back(numel);
      numel += (size + grain - 1) / grain * grain;
    }
  }
};

struct CodedStep {
  std::string codec;
  std::string optimizer;
  DType model = DType::kFloat32;
  std::int64_t num_inboxes = 1;
  /// Elements from the places where vectors may begin.
  std::int64_t shift = 0;
};

/// All blocks of a step.
struct StepBlocks {
  Layout layout;
  Pair parameters;
  Pair rounded;
  Pair gradient;
  Pair own;
  std::vector<Pair> inboxes;
  std::vector<Pair> states;

  StepBlocks(Stream& gpu, const CodedStep& step, const MixingCodec& codec, int num_states)
      : layout(master_of(step.model)),
        parameters(gpu, layout.numel, master_of(step.model), 1, 1.0),
        rounded(gpu, step.model == master_of(step.model) ? 0 : layout.numel, step.model, 1, 1.0),
        gradient(gpu, layout.numel + 1, step.model, 2, 1.0),
        own(gpu, codec.encoded_bytes(layout.numel), DType::kUInt8) {
    for (std::int64_t k = 0; k < step.num_inboxes; ++k) {
      inboxes.emplace_back(gpu, codec.encoded_bytes(layout.numel), DType::kUInt8);
    }
    for (int k = 0; k < num_states; ++k) {
      states.emplace_back(gpu, layout.numel, master_of(step.model));
    }
  }

  [[nodiscard]] std::string difference() const {
    for (const auto& [name, pair] :
         {std::pair{"parameters", &parameters}, {"rounded", &rounded}, {"own", &own}}) {
      const std::string found = pair->difference();
      if (!found.empty()) return concat(name, ", ", found);
    }
    for (const Pair& state : states) {
      const std::string found = state.difference();
      if (!found.empty()) return concat("state, ", found);
    }
    return "";
  }
};

constexpr Grid kGrid{.exponent = -6, .seed = 5};
constexpr Grid kNextGrid{.exponent = -7, .seed = 6, .first = 40};

/// The block of a peer, which differs by up to 1.2 (or 0.08 under int4) from the parameters, so
/// that some differences lie beyond the range of int8.
void write_inbox(const StepBlocks& blocks, const MixingCodec& codec, std::int64_t k) {
  const Block x = blocks.parameters.on(false);
  const Buffer theirs(x.numel, x.dtype);
  Random random(9, static_cast<std::uint64_t>(k));
  const double bound = codec.most_steps() == 7 ? 0.08 : 1.2;
  for (std::int64_t i = 0; i < x.numel; ++i) {
    set(theirs.block(), i, number(x, i) + random.uniform(-bound, bound));
  }
  const Pair& inbox = blocks.inboxes[static_cast<std::size_t>(k)];
  codec.encode(inbox.on(false), theirs.block(), kGrid, best_simd_path());
  inbox.upload();
}

BlockUpdate update_of(const CodedStep& step, const StepBlocks& blocks, const MixingCodec& codec,
                      std::int64_t number, bool on_gpu) {
  BlockUpdate update{.parameters = blocks.parameters.on(on_gpu), .lr = 0.01};
  if (step.model != master_of(step.model)) update.rounded = blocks.rounded.on(on_gpu);
  for (std::size_t k = 0; k < blocks.states.size(); ++k) {
    update.states[k] = blocks.states[k].on(on_gpu).data;
  }
  for (std::size_t i = 0; i < kSegments.size(); ++i) {
    // The last parameter but one has no gradient.
    const ConstBlock gradient = part_of(ConstBlock(blocks.gradient.on(on_gpu)),
                                        blocks.layout.offsets[i] + step.shift, kSegments[i]);
    update.segments.push_back({.offset = blocks.layout.offsets[i],
                               .numel = kSegments[i],
                               .gradient = i + 2 == kSegments.size() ? ConstBlock() : gradient,
                               .step = number,
                               .weight_decay = 0.01});
  }
  update.intake.keep = 0.9;
  const double weight = 0.7 / static_cast<double>(step.num_inboxes);
  for (const Pair& inbox : blocks.inboxes) {
    update.intake.inboxes.push_back({inbox.on(on_gpu), weight});
  }
  update.intake.exchange.coding = {.codec = &codec,
                                   .own = blocks.own.on(on_gpu),
                                   .decodes = true,
                                   .encodes = true,
                                   .grid = kGrid,
                                   .next_grid = kNextGrid};
  return update;
}

/// For plain blocks any codec: it encodes blocks that nothing reads.
const MixingCodec& mixing_codec(const std::string& name) {
  return *find_codec(name == "fp32" ? "bf16" : name)->mixing();
}

/// Statistics of the passes on a processor and on the GPU.
using StatsPair = std::array<std::shared_ptr<DifferenceStats>, 2>;

void expect_equal(Stream& gpu, const StatsPair& stats, const std::string& what) {
  collect(gpu, stats[1]);
  gpu.synchronize();
  EXPECT_EQ(stats[0]->take_largest(), stats[1]->take_largest()) << what;
  EXPECT_EQ(stats[0]->take_num_wide(), stats[1]->take_num_wide()) << what;
}

TEST_F(CodecKernelsTest, UpdateEncodedBlocksLikeProcessors) {
  std::vector<CodedStep> steps;
  for (const char* const codec : {"bf16", "fp16", "int8", "int4"}) {
    for (const char* const optimizer : {"sgd", "accum_adamw"}) {
      for (const DType model : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
        for (const std::int64_t num_inboxes : {1, 2, 19}) {
          steps.push_back({codec, optimizer, model, num_inboxes, num_inboxes % 2});
        }
      }
    }
    steps.push_back({codec, "extra", DType::kFloat32, 17});
  }
  for (const CodedStep& step : steps) {
    const std::string what = concat(step.codec, ", ", step.optimizer, ", ", name_of(step.model),
                                    ", ", step.num_inboxes, " inboxes");
    const MixingCodec& codec = *find_codec(step.codec)->mixing();
    const auto optimizer = make_optimizer(step.optimizer);
    const StepBlocks blocks(*gpu_, step, codec, optimizer->num_states());
    const StatsPair stats{std::make_shared<DifferenceStats>(),
                          std::make_shared<DifferenceStats>(*gpu_)};
    for (std::int64_t number = 1; number <= 3; ++number) {
      codec.encode(blocks.own.on(false), blocks.parameters.on(false), kGrid, best_simd_path());
      blocks.own.upload();
      for (std::int64_t k = 0; k < step.num_inboxes; ++k) write_inbox(blocks, codec, k);
      for (const bool on_gpu : {false, true}) {
        BlockUpdate update = update_of(step, blocks, codec, number, on_gpu);
        update.intake.exchange.stats = stats[on_gpu ? 1 : 0];
        enqueue_update(stream(on_gpu), *optimizer, update);
      }
      EXPECT_EQ(blocks.difference(), "") << what << ", step " << number;
      expect_equal(*gpu_, stats, what);
    }
  }
}

TEST_F(CodecKernelsTest, UpdateSeveralBlocksAtOnceLikeSingleOnes) {
  // Neighbours of one kind share launches: codecs with and without a grid, plain blocks, models of
  // all types, no inboxes, few, and more than one launch takes.
  std::vector<CodedStep> steps;
  for (const DType model : {DType::kFloat32, DType::kBFloat16, DType::kFloat64}) {
    for (const char* const codec : {"int8", "bf16", "int4", "fp32", "fp32", "int8"}) {
      for (const std::int64_t num_inboxes : {1, 0, 3}) {
        steps.push_back({codec, "accum_adamw", model, num_inboxes, num_inboxes % 2});
      }
    }
    steps.push_back({"int8", "accum_adamw", model, 17});
  }
  const auto optimizer = make_optimizer("accum_adamw");
  const GradientDecision doubled{.factor = 2.0};
  const Buffer on_device = gpu_->allocate(sizeof(doubled), DType::kUInt8);
  gpu_->copy(on_device.block(), {&doubled, sizeof(doubled), DType::kUInt8});
  std::vector<std::unique_ptr<StepBlocks>> all;
  std::vector<Pair> plain;
  std::vector<StatsPair> stats;
  for (const CodedStep& step : steps) {
    all.push_back(std::make_unique<StepBlocks>(*gpu_, step, mixing_codec(step.codec),
                                               optimizer->num_states()));
    plain.emplace_back(*gpu_, all.back()->layout.numel, master_of(step.model), 5, 1.0);
    stats.push_back(
        {std::make_shared<DifferenceStats>(), std::make_shared<DifferenceStats>(*gpu_)});
  }
  for (std::int64_t number = 1; number <= 3; ++number) {
    std::vector<BlockUpdate> updates;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const MixingCodec& codec = mixing_codec(steps[i].codec);
      const bool is_plain = steps[i].codec == "fp32";
      codec.encode(all[i]->own.on(false), all[i]->parameters.on(false), kGrid, best_simd_path());
      all[i]->own.upload();
      for (std::int64_t k = 0; k < steps[i].num_inboxes; ++k) write_inbox(*all[i], codec, k);
      for (const bool on_gpu : {false, true}) {
        BlockUpdate update = update_of(steps[i], *all[i], codec, number, on_gpu);
        update.intake.exchange.stats = stats[i][on_gpu ? 1 : 0];
        if (i % 3 == 1) {
          update.decision =
              on_gpu ? static_cast<const GradientDecision*>(on_device.block().data) : &doubled;
        }
        if (steps[i].num_inboxes == 0) {
          update.intake.keep = 1.0;
          update.intake.exchange.coding.decodes = false;
        }
        if (is_plain) {
          update.intake.exchange = {};
          for (Inbox& inbox : update.intake.inboxes) inbox.block = plain[i].on(on_gpu);
        }
        if (on_gpu) {
          updates.push_back(std::move(update));
        } else {
          enqueue_update(cpu_, *optimizer, std::move(update));
        }
      }
    }
    enqueue_updates(*gpu_, *optimizer, std::move(updates));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::string what = concat("block ", i, ", step ", number);
      EXPECT_EQ(all[i]->difference(), "") << what;
      expect_equal(*gpu_, stats[i], what);
    }
  }
}

TEST_F(CodecKernelsTest, MeasurePlainInboxesLikeProcessors) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const std::int64_t num_inboxes : {1, 3, 40}) {
      for (const double extreme : {0.5, 7.0, kNotFinite[0], kNotFinite[1]}) {
        const Pair x(*gpu_, 5000, dtype, 1, 1.0);
        std::vector<Pair> inboxes;
        for (std::int64_t k = 0; k < num_inboxes; ++k) {
          inboxes.emplace_back(*gpu_, 5000, dtype, 2 + static_cast<std::uint64_t>(k), 1.0);
        }
        set(inboxes.back().on(false), 4097, extreme);
        inboxes.back().upload();
        const StatsPair stats{std::make_shared<DifferenceStats>(),
                              std::make_shared<DifferenceStats>(*gpu_)};
        for (const bool on_gpu : {false, true}) {
          BlockUpdate update{.parameters = x.on(on_gpu), .segments = {{.numel = 5000}}};
          update.intake.exchange.stats = stats[on_gpu ? 1 : 0];
          for (const Pair& inbox : inboxes)
            update.intake.inboxes.push_back({inbox.on(on_gpu), 0.1});
          enqueue_update(stream(on_gpu), *make_optimizer("sgd"), update);
        }
        const std::string what = concat(num_inboxes, " inboxes, ", extreme);
        EXPECT_EQ(x.difference(), "") << what;
        expect_equal(*gpu_, stats, what);
      }
    }
  }
}

/// Values that are not finite, denormal, or at the ends of a codec's range.
void add_extremes(const Block& block) {
  std::vector<double> extremes = {0.0, -0.0, 1e-39, -1e-39, 1e-45, 6e-8, 65504., 65520., 3e38};
  for (const double value : kNotFinite) extremes.insert(extremes.end(), {value, -value});
  for (std::size_t i = 0; i < extremes.size(); ++i) {
    set(block, static_cast<std::int64_t>(3 * i + 1), extremes[i]);
  }
}

TEST_F(CodecKernelsTest, EncodeAndMixLikeProcessors) {
  for (const char* const name : {"bf16", "fp16", "int8", "int4"}) {
    const MixingCodec& codec = *find_codec(name)->mixing();
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const std::int64_t numel : {1, 7, 64, 1025, 4097}) {
        const Pair x(*gpu_, numel, dtype, 1, 2.0);
        // Processors turn denormal numbers into 0 where they convert them from float64.
        if (numel >= 64 && dtype == DType::kFloat32) add_extremes(x.on(false));
        x.upload();
        const Pair heard(*gpu_, numel, dtype, 2, 2.0);
        const Pair own(*gpu_, codec.encoded_bytes(numel), DType::kUInt8);
        const Pair inbox(*gpu_, codec.encoded_bytes(numel), DType::kUInt8);
        for (const bool on_gpu : {false, true}) {
          Stream& s = stream(on_gpu);
          enqueue_encode(s, {.codec = &codec, .own = own.on(on_gpu), .next_grid = kGrid},
                         x.on(on_gpu));
          enqueue_encode(s, {.codec = &codec, .own = inbox.on(on_gpu), .next_grid = kGrid},
                         heard.on(on_gpu));
          ExchangeWork work;
          work.coding = {.codec = &codec, .own = own.on(on_gpu), .decodes = true, .grid = kGrid};
          enqueue_mix(s, heard.on(on_gpu), 0.75, {{inbox.on(on_gpu), 0.3}}, work);
        }
        const std::string what = concat(name, ", ", name_of(dtype), ", ", numel);
        EXPECT_EQ(own.difference(), "") << what;
        EXPECT_EQ(inbox.difference(), "") << what;
        EXPECT_EQ(heard.difference(), "") << what;
        EXPECT_EQ(x.difference(), "") << what;
      }
    }
  }
}

TEST_F(CodecKernelsTest, UpdateOfAStepThatIsLeftOutEncodes) {
  const CodedStep step{.codec = "int8", .optimizer = "adamw"};
  const MixingCodec& codec = *find_codec("int8")->mixing();
  const auto optimizer = make_optimizer("adamw");
  const StepBlocks blocks(*gpu_, step, codec, optimizer->num_states());
  const GradientDecision decision{.factor = 0.0, .apply = 0};
  const Buffer on_device = gpu_->allocate(sizeof(decision), DType::kUInt8);
  gpu_->copy(on_device.block(), {&decision, sizeof(decision), DType::kUInt8});
  for (const bool on_gpu : {false, true}) {
    BlockUpdate update = update_of(step, blocks, codec, 1, on_gpu);
    update.intake.inboxes.clear();
    update.intake.keep = 1.0;
    update.intake.exchange.coding.decodes = false;
    update.decision =
        on_gpu ? static_cast<const GradientDecision*>(on_device.block().data) : &decision;
    enqueue_update(stream(on_gpu), *optimizer, update);
  }
  EXPECT_EQ(blocks.difference(), "");
  EXPECT_NE(number(blocks.own.on(false), 1500), 0.0);
}

/// The values of summands: random ones, equal ones, and parts with extremes.
void fill(const Block& block, std::uint64_t seed, const std::string& kind) {
  Random random(3, seed);
  for (std::int64_t i = 0; i < block.numel; ++i) {
    const double value = random.uniform(-1.0, 1.0);
    set(block, i, kind == "equal" ? (i % 3 == 0 ? -0.5 : 0.5) : kind == "zero" ? 0.0 : value);
    if (kind == "tiny") set(block, i, value * 1e-38);
    if (kind == "few" && i % 100 != 0) set(block, i, 0.0);
  }
  if (kind == "extremes" && block.numel > 1200) add_extremes(part_of(block, 1100, 100));
}

TEST_F(CodecKernelsTest, SumLikeProcessors) {
  constexpr std::int64_t kRanks = 3;
  for (const std::string& name : codec_names()) {
    if (name == "fp32") continue;
    const Codec& codec = *find_codec(name);
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      for (const char* const kind : {"random", "equal", "zero", "tiny", "few", "extremes"}) {
        for (const std::int64_t numel : {1, 2, 63, 65, 1023, 1024, 1025, 2500, 4097}) {
          const std::int64_t bytes = codec.summand_bytes(numel);
          const std::int64_t distance = (bytes + 127) / 64 * 64;
          const Pair messages(*gpu_, kRanks * distance, DType::kUInt8);
          const Pair result(*gpu_, bytes, DType::kUInt8);
          const Pair plain(*gpu_, numel, dtype);
          const Pair copy(*gpu_, numel, dtype);
          const Pair residual(*gpu_, numel, dtype, 8, 1.0);
          std::vector<Pair> values;
          for (std::int64_t rank = 0; rank < kRanks; ++rank) {
            values.emplace_back(*gpu_, numel, dtype);
            fill(values.back().on(false), static_cast<std::uint64_t>(rank), kind);
            values.back().upload();
          }
          for (const bool on_gpu : {false, true}) {
            Stream& s = stream(on_gpu);
            const auto message = [&](std::int64_t rank) {
              return part_of(messages.on(on_gpu), rank * distance, bytes);
            };
            const SummandRow all{.first = message(0), .distance = distance, .count = kRanks};
            const auto work = [&](SummandWork what) {
              what.dtype = dtype;
              what.numel = numel;
              enqueue_summands(s, what);
            };
            for (std::int64_t rank = 0; rank < kRanks; ++rank) {
              work({.codec = codec,
                    .values = values[static_cast<std::size_t>(rank)].on(on_gpu),
                    .message = message(rank)});
            }
            work({.codec = codec, .messages = all, .message = result.on(on_gpu)});
            work({.codec = codec, .messages = all, .plain = plain.on(on_gpu)});
            work({.codec = codec, .values = values[1].on(on_gpu), .plain = copy.on(on_gpu)});
            work({.codec = codec,
                  .values = values[0].on(on_gpu),
                  .residual = residual.on(on_gpu),
                  .said = message(0)});
            work({.codec = codec,
                  .messages = all,
                  .residual = residual.on(on_gpu),
                  .said = result.on(on_gpu)});
          }
          const std::string what =
              concat(name, ", ", name_of(dtype), ", ", kind, ", ", numel, " elements");
          EXPECT_EQ(messages.difference(), "") << what;
          EXPECT_EQ(result.difference(), "") << what;
          EXPECT_EQ(plain.difference(), "") << what;
          EXPECT_EQ(copy.difference(), "") << what;
          EXPECT_EQ(residual.difference(), "") << what;
        }
      }
    }
  }
}

/// A codec from another program.
class OwnCodec : public Codec {
 public:
  [[nodiscard]] std::string_view name() const override { return "own"; }
  [[nodiscard]] std::int64_t summand_bytes(std::int64_t numel) const override { return numel; }
  void encode_summand(const Block&, const ConstBlock&, SimdPath) const override {}
  void add_summand(const Block&, const ConstBlock&, SimdPath) const override {}
};

TEST_F(CodecKernelsTest, RefuseACodecWithoutKernels) {
  const OwnCodec codec;
  const Buffer x = gpu_->allocate(8, DType::kFloat32);
  const Buffer message = gpu_->allocate(8, DType::kUInt8);
  EXPECT_THROW(
      enqueue_summands(
          *gpu_, {.codec = codec, .values = x.block(), .message = message.block(), .numel = 8}),
      ConfigError);
}

}  // namespace
}  // namespace gossamer
