#pragma once
// A parameter with gradient, inbox and state for the tests of optimizers. Its memory is fenced, so
// that a test notices a loop that runs past an end even without a sanitizer.

#include "test/optim/reference.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.hpp"
#include "optim/optimizer.hpp"
#include "optim/registry.hpp"

namespace gossamer {

/// The number of type E that is next to x.
template <class E>
E element(double x) {
  if constexpr (std::is_same_v<E, BFloat16>) {
    return rounded_to_bfloat16(static_cast<float>(x));
  } else {
    return static_cast<E>(x);
  }
}

/// Elements with a fence before and behind them.
template <class T>
class Fenced {
 public:
  explicit Fenced(std::size_t numel) : all_(numel + 2 * kFence, kMark) {
    std::ranges::fill(values(), T{});
  }
  [[nodiscard]] std::span<T> values() {
    return std::span(all_).subspan(kFence, all_.size() - 2 * kFence);
  }
  [[nodiscard]] Block block() { return block_of(values()); }
  [[nodiscard]] bool intact() const {
    const auto is_mark = [](T x) { return x == kMark; };
    return std::all_of(all_.begin(), all_.begin() + kFence, is_mark) &&
           std::all_of(all_.end() - kFence, all_.end(), is_mark);
  }

 private:
  static constexpr int kFence = 16;
  inline static const T kMark = element<T>(-12345);
  std::vector<T> all_;
};

/// Draws numbers that are exact in T, so that the reference starts from the same ones.
template <class T>
void draw(Random& random, std::span<T> values, double size = 1.0) {
  for (T& x : values) x = element<T>(random.uniform(-size, size));
}

template <class T>
std::vector<double> as_doubles(std::span<T> values) {
  std::vector<double> doubles;
  for (const T value : values) doubles.push_back(static_cast<double>(widened(value)));
  return doubles;
}

/// The library's side of one parameter: memory, state and step count, as a bucket keeps them. G is
/// the type of the gradients, with which the model computes.
template <class T, class G = T>
struct TestParameter {
  TestParameter(std::size_t numel, int num_states)
      : p(numel),
        g(numel),
        rounded(numel),
        inbox(numel),
        states(static_cast<std::size_t>(num_states), Fenced<T>(numel)) {}

  Fenced<T> p;
  Fenced<G> g;
  /// Used where G is not T.
  Fenced<G> rounded;
  Fenced<T> inbox;
  std::vector<Fenced<T>> states;
  std::int64_t num_updates = 0;

  /// The next update, with gradient and without mixing; the test changes it as needed.
  ParameterUpdate next_update() {
    ParameterUpdate update{.parameter = p.block(), .gradient = g.block(), .step = num_updates + 1};
    if (!std::is_same_v<T, G>) update.rounded = rounded.block();
    for (std::size_t k = 0; k < states.size(); ++k) update.states[k] = states[k].block().data;
    return update;
  }
  [[nodiscard]] bool intact() const {
    return p.intact() && g.intact() && rounded.intact() && inbox.intact() &&
           std::ranges::all_of(states, [](const Fenced<T>& state) { return state.intact(); });
  }
};

/// Mixes and updates one parameter.
inline void update_one(const Optimizer& optimizer, const ParameterUpdate& update) {
  dynamic_cast<const OnePassOptimizer&>(optimizer).update(update);
}

/// Every optimizer of the table with several sets of options.
inline std::vector<reference::Rule> rules_under_test() {
  std::vector<reference::Rule> rules = {
      {.type = "sgd"},
      {.type = "sgd", .momentum = 0.9},
      {.type = "sgd", .momentum = 0.5},
      {.type = "sgd", .momentum = 0.9, .nesterov = true},
  };
  for (const char* type : {"adam", "adamw"}) {
    rules.push_back({.type = type});
    rules.push_back({.type = type, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3});
    rules.push_back({.type = type, .beta1 = 0.0, .beta2 = 0.99});
    rules.push_back({.type = type, .eps = 1e-3, .mixing_momentum = 0.25});
  }
  for (const char* type : {"accum_adam", "accum_adamw"}) {
    for (const std::int64_t accum_iter : {1, 2, 4, 7}) {
      rules.push_back({.type = type, .accum_iter = accum_iter});
    }
    rules.push_back({.type = type, .beta1 = 0.7, .beta2 = 0.9, .eps = 1e-4, .accum_iter = 3});
  }
  // With a smaller eps float32 is too coarse: two gradients near 0 may give a tiny second moment.
  for (const std::int64_t warmup : {2, 5, 100}) {
    rules.push_back({.type = "qadam", .beta2 = 0.95, .eps = 1e-2, .warmup = warmup});
  }
  rules.push_back({.type = "lion", .beta2 = 0.99});
  rules.push_back({.type = "lion", .beta1 = 0.5, .beta2 = 0.8});
  rules.push_back({.type = "qg_sgd", .momentum = 0.9});
  rules.push_back({.type = "qg_sgd", .momentum = 0.5});
  for (const char* inner : {"sgd", "adam", "adamw", "accum_adam", "accum_adamw"}) {
    rules.push_back(
        {.type = "extra", .momentum = 0.9, .eps = 1e-3, .accum_iter = 3, .inner = inner});
  }
  return rules;
}

/// `17_accum_adamw_iter4`: only letters, digits and underscores are allowed.
inline std::string rule_name(const testing::TestParamInfo<reference::Rule>& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.type;
  if (info.param.type == "sgd") {
    name += info.param.nesterov ? "_nesterov" : info.param.momentum > 0.0 ? "_momentum" : "_plain";
  }
  if (info.param.mixing_momentum > 0.0) name += "_mixing";
  if (info.param.accumulates()) name += "_iter" + std::to_string(info.param.accum_iter);
  return name;
}

namespace reference {
inline void PrintTo(const Rule& rule, std::ostream* out) {
  *out << rule.type << " " << rule.yaml();
}
}  // namespace reference

}  // namespace gossamer
