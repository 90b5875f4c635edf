#pragma once
// An algorithm, a topology, an optimizer's rule and a codec of your own.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "gossamer/core/algorithms/algorithm.hpp"
#include "gossamer/optim/codecs/small_float.hpp"
#include "gossamer/optim/sweep.hpp"
#include "gossamer/topology/registry.hpp"

/// In momentum_tracking.cpp.
extern const gossamer::AlgorithmEntry kMomentumTracking;

/// A round-robin tournament: every rank meets every other rank once in a period. `size` is odd.
inline std::unique_ptr<gossamer::Topology> make_tournament(int size) {
  std::vector<gossamer::Round> rounds;
  for (int k = 0; k < size; ++k) {
    std::vector<gossamer::Edge> edges;
    for (int i = 0; i < size; ++i) {
      const int j = (k - i + size) % size;
      if (i < j) edges.push_back(gossamer::averaging_edge({i, j}));
    }
    rounds.push_back(gossamer::complete_round(std::move(edges), size));
  }
  return gossamer::make_periodic("tournament", std::move(rounds));
}

/// Descent with steps of g / (1 + |g|), which no gradient makes larger than the learning rate.
struct BoundedRule {
  static constexpr gossamer::RuleTraits<> kTraits = {};
  template <class T>
  struct Coefficients {
    T lr;
  };
  template <class T>
  [[nodiscard]] Coefficients<T> coefficients(const gossamer::ParameterUpdate& update) const {
    return {static_cast<T>(update.lr)};
  }
  template <class T, gossamer::Phase>
  static void apply(const Coefficients<T>& c, T& p, T g, std::array<T, 0>&) {
    p -= c.lr * g / (T(1) + std::abs(g));
  }
};

/// The upper half of a float, cut off: bf16 without rounding.
struct CutFormat {
  static constexpr std::string_view kName = "cut16";
  static std::uint16_t encode(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16U);
  }
  static std::uint16_t encode_summand(float value) { return encode(value); }
  static float decode(std::uint16_t half) {
    const std::uint32_t bits = std::uint32_t{half} << 16U;
    float value = 0.0F;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};
inline const gossamer::internal::SmallFloatCodec<CutFormat> kCut16;
