// The kernels against what processors do.

#include "test/gpu/gpu_test.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/host_stream.hpp"
#include "base/make_stream.hpp"
#include "base/random.hpp"
#include "optim/block_update.hpp"
#include "optim/convert.hpp"
#include "optim/gradient_control.hpp"
#include "optim/registry.hpp"
#include "optim/swap_with_mean.hpp"

namespace gossamer {
namespace {

// Of magnitude 1.
constexpr double kTolerance = 1e-6;

/// The same numbers on a processor and on the GPU.
class Twin {
 public:
  Twin(Stream& gpu, std::int64_t numel, DType dtype, std::uint64_t number, double bound)
      : gpu_(&gpu), cpu_(numel, dtype), device_(gpu.allocate(numel, dtype)) {
    Random random(11, number);
    for (std::int64_t i = 0; i < numel; ++i) set(i, random.uniform(-bound, bound));
    upload();
  }

  [[nodiscard]] Block cpu() const { return cpu_.block(); }
  [[nodiscard]] Block gpu() const { return device_.block(); }

  void set(std::int64_t i, double value) {
    const auto place = static_cast<std::size_t>(i);
    switch (cpu_.block().dtype) {
      case DType::kFloat32:
        cpu_.block().as<float>()[place] = static_cast<float>(value);
        break;
      case DType::kBFloat16:
        cpu_.block().as<BFloat16>()[place] = rounded_to_bfloat16(static_cast<float>(value));
        break;
      default:
        cpu_.block().as<double>()[place] = value;
    }
  }
  void upload() {
    gpu_->copy(device_.block(), cpu_.block());
    gpu_->synchronize();
  }
  [[nodiscard]] double largest_difference() const {
    const Buffer back(cpu_.block().numel, cpu_.block().dtype);
    gpu_->copy(back.block(), device_.block());
    gpu_->synchronize();
    double largest = 0.0;
    for (std::int64_t i = 0; i < back.block().numel; ++i) {
      const double difference = std::abs(number(back.block(), i) - number(cpu_.block(), i));
      if (!(difference <= largest)) largest = difference;
    }
    return largest;
  }
  static double number(const Block& block, std::int64_t i) {
    const auto place = static_cast<std::size_t>(i);
    switch (block.dtype) {
      case DType::kFloat32:
        return static_cast<double>(block.as<float>()[place]);
      case DType::kBFloat16:
        return static_cast<double>(widened(block.as<BFloat16>()[place]));
      default:
        return block.as<double>()[place];
    }
  }

 private:
  Stream* gpu_;
  Buffer cpu_;
  Buffer device_;
};

class Kernels : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) gpu_ = make_stream({DeviceType::kCuda, 0});
  }
  std::unique_ptr<Stream> gpu_;
  InlineStream cpu_;
};

TEST_F(Kernels, UpdateLikeProcessors) {
  // LibTorch's products stand outside of these tests.
  const Orthogonalize through_host = [this](const MatrixBlock& matrix, const NewtonSchulz& how) {
    const Buffer host(matrix.block.numel, matrix.block.dtype);
    gpu_->copy(host.block(), matrix.block);
    gpu_->synchronize();
    orthogonalize({host.block(), matrix.rows, matrix.cols}, how);
    gpu_->copy(matrix.block, host.block());
    gpu_->synchronize();
  };
  const std::vector<std::int64_t> sizes = {0, 1, 3, 4, 33, 1000, 4096, 4097, 10'007};
  for (const std::string& name : optimizer_names()) {
    const auto optimizer = make_optimizer(name);
    for (const DType model : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      const DType dtype = master_of(model);
      for (const std::size_t num_inboxes : {0U, 1U, 2U, 16U, 19U}) {
        std::int64_t numel = 0;
        std::vector<std::int64_t> offsets;
        for (const std::int64_t size : sizes) {
          offsets.push_back(numel);
          numel += (size + 31) / 32 * 32;
        }
        const Twin parameters(*gpu_, numel, dtype, 0, 1.0);
        const Twin rounded(*gpu_, model == dtype ? 0 : numel, model, 0, 1.0);
        std::vector<Twin> states;
        for (int k = 0; k < optimizer->num_states(); ++k) {
          states.emplace_back(*gpu_, numel, dtype, 1, 0.0);
        }
        std::vector<Twin> inboxes;
        for (std::size_t k = 0; k < num_inboxes; ++k) {
          inboxes.emplace_back(*gpu_, numel, dtype, 10 + k, 1.0);
        }
        // One element to the side: without vectors.
        const Twin gradient(*gpu_, numel + 1, model, 2, 1.0);
        for (std::int64_t step = 1; step <= 2 * optimizer->cycle() + 1; ++step) {
          for (const bool on_gpu : {false, true}) {
            const auto block = [on_gpu](const Twin& twin) {
              return on_gpu ? twin.gpu() : twin.cpu();
            };
            BlockUpdate update{
                .parameters = block(parameters), .lr = 0.01, .intake = {.keep = 0.3}};
            if (on_gpu) update.orthogonalize = &through_host;
            if (model != dtype) update.rounded = block(rounded);
            for (std::size_t k = 0; k < states.size(); ++k) {
              update.states[k] = block(states[k]).data;
            }
            const double weight = 0.7 / static_cast<double>(num_inboxes);
            for (const Twin& inbox : inboxes)
              update.intake.inboxes.push_back({block(inbox), weight});
            for (std::size_t i = 0; i < sizes.size(); ++i) {
              const std::int64_t shift = i % 3 == 2 ? 1 : 0;
              const bool missing = i == 5 && step == 2;
              update.segments.push_back(
                  {.offset = offsets[i],
                   .numel = sizes[i],
                   .gradient =
                       missing ? ConstBlock()
                               : ConstBlock(part_of(block(gradient), offsets[i] + shift, sizes[i])),
                   .step = step,
                   .weight_decay = 0.01 * static_cast<double>(i % 2),
                   .rows = 1});
            }
            Stream& stream = on_gpu ? *gpu_ : static_cast<Stream&>(cpu_);
            enqueue_update(stream, *optimizer, update);
          }
        }
        EXPECT_LE(parameters.largest_difference(), kTolerance) << name << ", " << num_inboxes;
        // One unit in the last place of bfloat16, where the parameters lie on both sides of a tie.
        EXPECT_LE(rounded.largest_difference(), 0.008) << name << ", " << num_inboxes;
        for (const Twin& state : states) EXPECT_LE(state.largest_difference(), kTolerance) << name;
      }
    }
  }
}

TEST_F(Kernels, ConvertLikeProcessors) {
  for (const std::int64_t numel : {0, 1, 3, 4, 1000, 100'003}) {
    const Twin wide(*gpu_, numel, DType::kFloat32, 1, 3.0);
    const Twin narrow(*gpu_, numel, DType::kBFloat16, 2, 3.0);
    // At the beginning, and where no vectors begin.
    for (const std::int64_t skipped : {std::int64_t{0}, std::min<std::int64_t>(numel, 1)}) {
      const auto rest = [&](const Block& block) {
        return part_of(block, skipped, numel - skipped);
      };
      enqueue_convert(cpu_, rest(narrow.cpu()), rest(wide.cpu()));
      enqueue_convert(*gpu_, rest(narrow.gpu()), rest(wide.gpu()));
      EXPECT_EQ(narrow.largest_difference(), 0.0);
      enqueue_convert(cpu_, rest(wide.cpu()), rest(narrow.cpu()));
      enqueue_convert(*gpu_, rest(wide.gpu()), rest(narrow.gpu()));
      EXPECT_EQ(wide.largest_difference(), 0.0);
    }
  }
}

TEST_F(Kernels, SumSquaresAndDecideLikeProcessors) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<std::int64_t> sizes = {1, 0, 7, 65'535, 65'536, 65'537, 1'000'003};
  const auto count = static_cast<std::int64_t>(sizes.size());
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    for (const double poison : {0.0, kNan, kInf}) {
      std::vector<Twin> gradients;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        gradients.emplace_back(*gpu_, sizes[i], dtype, i, 1.0);
      }
      gradients[4].set(65'530, poison);
      gradients[4].upload();
      const Twin squares(*gpu_, count, DType::kFloat64, 0, 0.0);
      const Buffer scratch = gpu_->allocate(squares_scratch_numel(sizes), DType::kFloat64);
      for (const bool on_gpu : {false, true}) {
        SquaresInput input{.squares = on_gpu ? squares.gpu() : squares.cpu(),
                           .scratch = scratch.block()};
        for (const Twin& gradient : gradients) {
          input.gradients.emplace_back(on_gpu ? gradient.gpu() : gradient.cpu());
        }
        input.gradients[2] = {};
        Stream& stream = on_gpu ? *gpu_ : static_cast<Stream&>(cpu_);
        enqueue_squares(stream, std::move(input));
      }
      if (poison == 0.0) {
        EXPECT_LE(squares.largest_difference(), 1e-6);
      }

      const Buffer flag = gpu_->allocate(1, DType::kFloat64);
      const Buffer norm = gpu_->allocate(1, DType::kFloat64);
      const Buffer decision = gpu_->allocate(sizeof(GradientDecision), DType::kUInt8);
      auto* const flag_at = static_cast<double*>(flag.block().data);
      auto* const norm_at = static_cast<double*>(norm.block().data);
      enqueue_flag(*gpu_, squares.gpu(), flag_at);
      enqueue_norm(*gpu_, squares.gpu(), 0.5, flag_at, norm_at);
      const DecisionRule rule{.clip_mode = ClipMode::kGlobal, .clip_norm = 2.0, .unit = 0.5};
      enqueue_decisions(*gpu_,
                        {.squares = {squares.gpu()},
                         .rule = rule,
                         .last_norm = norm_at,
                         .decisions = static_cast<GradientDecision*>(decision.block().data)});
      std::array<double, 2> numbers{};
      GradientDecision decided;
      gpu_->copy({&numbers[0], 1, DType::kFloat64}, flag.block());
      gpu_->copy({&numbers[1], 1, DType::kFloat64}, norm.block());
      gpu_->copy({&decided, sizeof(decided), DType::kUInt8}, decision.block());
      gpu_->synchronize();
      double sum = 0.0;
      for (const double value : squares.cpu().as<double>()) sum += value;
      EXPECT_EQ(numbers[0], poison == 0.0 ? 0.0 : 1.0);
      EXPECT_EQ(decided.apply, poison == 0.0 ? 1 : 0);
      if (poison == 0.0) {
        EXPECT_NEAR(numbers[1], 0.5 * std::sqrt(sum), 1e-9 * std::sqrt(sum));
        EXPECT_NEAR(decided.factor, factor_of(rule, sum, -1.0), 1e-12);
      }
    }
  }
}

TEST_F(Kernels, SwapWithTheMeanLikeProcessors) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const std::int64_t numel : {0, 1, 65'536, 200'001}) {
      const Twin x(*gpu_, numel, dtype, 1, 1.0);
      const Twin sum(*gpu_, numel, dtype, 2, 3.0);
      const Twin squares(*gpu_, 1, DType::kFloat64, 3, 0.0);
      const Buffer scratch = gpu_->allocate(swap_scratch_numel(numel), DType::kFloat64);
      enqueue_swap_with_mean(cpu_, {.x = x.cpu(),
                                    .sum = sum.cpu(),
                                    .size = 3,
                                    .squares = static_cast<double*>(squares.cpu().data)});
      enqueue_swap_with_mean(*gpu_, {.x = x.gpu(),
                                     .sum = sum.gpu(),
                                     .size = 3,
                                     .scratch = scratch.block(),
                                     .squares = static_cast<double*>(squares.gpu().data)});
      EXPECT_EQ(x.largest_difference(), 0.0);
      EXPECT_EQ(sum.largest_difference(), 0.0);
      EXPECT_LE(squares.largest_difference(), 1e-6);
    }
  }
}

}  // namespace
}  // namespace gossamer
