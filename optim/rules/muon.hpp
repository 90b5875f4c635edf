#pragma once
// Muon (Jordan et al., 2024; as torch.optim.Muon defines it): a matrix moves along its momentum,
// after this has been made orthogonal:
//
//   m' = b m + (1 - b) g,   u = m', with Nesterov b m' + (1 - b) g
//   x' = (1 - lr decay) x - lr scale orthogonalized(u)
//
// A step is two sweeps with the products of matrices between them, so mixing, clipping, messages
// and GPUs work as for other rules. u lives in memory of its own until the stream has done the
// step. In float32, u takes 4 bytes an element, and the momentum 4 more.

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/options.hpp"
#include "base/stream.hpp"
#include "optim/block.hpp"
#include "optim/rule.hpp"

namespace gossamer {

/// Mixes the parameter, and moves the momentum.
struct MuonMomentumRule {
  static constexpr RuleTraits<2> kTraits = {.state_names = {"momentum", "direction"},
                                            .reads = [](Phase) { return 0b01U; }};
  template <class T>
  struct Coefficients {
    T fresh;  // 1 - beta
    T ahead;  // how far the direction goes from the momentum to the gradient
  };

  double momentum = 0.95;
  bool nesterov = true;

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate&) const {
    return {static_cast<T>(1.0 - momentum), static_cast<T>(nesterov ? 1.0 - momentum : 0.0)};
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T&, T g,
                                         std::array<T, 2>& state) {
    auto& [m, direction] = state;
    m += c.fresh * (g - m);
    direction = m + c.ahead * (g - m);
  }
};

/// Moves the parameter along a direction. The rule only asks whether there is a gradient.
struct MuonStepRule {
  static constexpr RuleTraits<1> kTraits = {.state_names = {"direction"},
                                            .writes = [](Phase) { return 0U; }};
  template <class T>
  struct Coefficients {
    T lr;
    T shrink;
  };

  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const ParameterUpdate& update) const {
    return {static_cast<T>(update.lr * update.step_scale),
            static_cast<T>(1.0 - update.lr * update.weight_decay)};
  }

  template <class T, Phase>
  GOSSAMER_HOST_DEVICE static void apply(const Coefficients<T>& c, T& p, T,
                                         std::array<T, 1>& state) {
    p = c.shrink * p - c.lr * state[0];
  }
};

/// How the step of a matrix depends on its shape.
enum class MuonScale : std::uint8_t {
  /// 0.2 sqrt(max(rows, cols)): the root mean square of a step equals AdamW's, so AdamW's rates and
  /// weight decay fit (Liu et al., "Muon is Scalable for LLM Training", 2025).
  kMatchRmsAdamW,
  /// sqrt(max(1, rows / cols)).
  kOriginal,
};

/// The scale of a matrix's step.
inline double scale_of(MuonScale scale, std::int64_t rows, std::int64_t cols) {
  const auto r = static_cast<double>(rows);
  const auto c = static_cast<double>(cols);
  return scale == MuonScale::kOriginal ? std::sqrt(std::max(1.0, r / c))
                                       : 0.2 * std::sqrt(std::max(r, c));
}

class Muon : public Optimizer {
 public:
  struct Config {
    double momentum = 0.95;
    bool nesterov = true;
    MuonScale scale = MuonScale::kMatchRmsAdamW;
    NewtonSchulz newton_schulz = {};
  };
  explicit Muon(const Config& config);

  [[nodiscard]] const Config& config() const { return config_; }
  [[nodiscard]] std::span<const std::string_view> state_names() const override;
  [[nodiscard]] std::int64_t cycle() const override { return 1; }
  /// The traffic of the two sweeps alone, without the products.
  [[nodiscard]] PassTraffic least_traffic(std::int64_t step, DType model) const override;
  [[nodiscard]] bool needs_matrices() const override { return true; }
  [[nodiscard]] GradientUse gradient_use() const override { return GradientUse::kNormalized; }
  void enqueue(Stream& stream, std::vector<BlockUpdate> updates) const override;

 private:
  void enqueue_one(Stream& stream, BlockUpdate update) const;
  [[nodiscard]] static const Muon& of(const Segment& segment, const Muon& other);
  void orthogonalize_all(Stream& stream, const BlockUpdate& update, const Block& directions) const;

  Config config_;
  std::unique_ptr<const Optimizer> momentum_;
  std::unique_ptr<const Optimizer> step_;
};

inline constexpr NumberOption kMuonMomentum{
    "momentum",
    "part of the old momentum that stays",
    {.fallback = 0.95, .min = 0.0, .max = 1.0, .below_max = true}};
inline constexpr FlagOption kMuonNesterov{
    "nesterov", "the step looks one gradient ahead", {.fallback = true}};
inline constexpr ChoiceOption kMuonScale{
    "adjust_lr",
    "the step of a matrix: as large as AdamW's, or sqrt(max(1, rows / columns))",
    {.words = {"match_rms_adamw", "original"}, .fallback = "match_rms_adamw"}};
inline constexpr IntegerOption kMuonSteps{
    "ns_steps", "Newton-Schulz steps", {.fallback = 5, .min = 1, .max = 99}};
inline constexpr NumberOption kMuonEps{"eps",
                                       "least norm that the momentum is divided by",
                                       {.fallback = 1e-7, .min = 0.0, .above_min = true}};
inline constexpr ChoiceOption kMuonPrecision{
    "precision",
    "of the products of matrices",
    {.words = {"float32", "bfloat16"}, .fallback = "float32"}};

struct MuonRow {
  static constexpr std::string_view kName = "muon";
  static constexpr std::string_view kSummary =
      "orthogonal steps of matrices, by Newton-Schulz (Muon); groups with another optimizer take "
      "the other parameters";
  static constexpr std::array kOptions =
      option_list(kMuonMomentum, kMuonNesterov, kMuonScale, kMuonSteps, kMuonEps, kMuonPrecision);
  using Rules = std::tuple<MuonMomentumRule, MuonStepRule>;

  /// Muon is no rule, so there is nothing to build one from.
  template <class Build>
  static std::unique_ptr<Optimizer> make(const Options& options, const Build& /*build*/) {
    return std::make_unique<Muon>(
        Muon::Config{.momentum = options.read(kMuonMomentum),
                     .nesterov = options.read(kMuonNesterov),
                     .scale = options.read(kMuonScale) == "original" ? MuonScale::kOriginal
                                                                     : MuonScale::kMatchRmsAdamW,
                     .newton_schulz = {.num_steps = static_cast<int>(options.read(kMuonSteps)),
                                       .eps = options.read(kMuonEps),
                                       .in_bfloat16 = options.read(kMuonPrecision) == "bfloat16"}});
  }
};

}  // namespace gossamer
