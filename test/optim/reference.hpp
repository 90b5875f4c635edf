#pragma once
// The optimizers implemented a second time: in double, one element after the other, straight from
// their definitions. Shares no code with the library; slow and plain on purpose.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace gossamer::reference {

struct Rule {
  /// The registry name.
  std::string type = "sgd";
  double momentum = 0.0;
  bool nesterov = false;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  std::int64_t accum_iter = 1;
  /// Of `qadam`.
  std::int64_t warmup = 100;
  /// Of `adam` and `adamw`.
  double mixing_momentum = 0.0;
  /// Of `muon`: the rows of the matrix.
  std::int64_t rows = 0;
  /// Of `extra`: the type of the rule inside, which has the other options.
  std::string inner = {};

  [[nodiscard]] bool accumulates() const { return type.starts_with("accum_"); }
  [[nodiscard]] bool decoupled() const { return type.ends_with("adamw"); }

  [[nodiscard]] Rule inner_rule() const {
    Rule rule = *this;
    rule.type = inner;
    return rule;
  }

  /// The options with which the library's optimizer does the same.
  [[nodiscard]] std::string yaml() const {
    std::ostringstream text;
    text.precision(17);
    if (type == "extra") {
      text << "rule: {name: " << inner << ", " << inner_rule().yaml() << "}";
      return text.str();
    }
    if (type == "qg_sgd") {
      text << "beta: " << momentum;
      return text.str();
    }
    if (type == "sgd" || type == "muon") {
      text << "momentum: " << momentum << ", nesterov: " << (nesterov ? "true" : "false");
      return text.str();
    }
    text << "betas: [" << beta1 << ", " << beta2 << "]";
    if (type == "lion") return text.str();
    if (mixing_momentum > 0.0) text << ", mixing_momentum: " << mixing_momentum;
    text << ", eps: " << eps;
    if (type == "qadam") text << ", warmup: " << warmup;
    if (accumulates()) text << ", accum_iter: " << accum_iter;
    return text.str();
  }
};

/// One parameter with its state.
class Optimizer {
 public:
  Optimizer(Rule rule, std::size_t numel)
      : rule_(std::move(rule)), m(numel), v(numel), sum(numel), buffer(numel), unshared(numel) {
    if (rule_.type == "extra") inner_ = std::make_shared<Optimizer>(rule_.inner_rule(), numel);
  }

  /// `p` is mixed already; `before` is the parameter before mixing.
  void step(std::vector<double>& p, const std::vector<double>& g, double lr, double decay,
            const std::vector<double>& before) {
    if (rule_.type == "extra") return extra(p, g, lr, decay, before);
    ++s_;
    if (rule_.type == "muon") return muon(p, g, lr, decay);
    if (rule_.type == "qg_sgd") {
      for (std::size_t i = 0; i < p.size(); ++i) {
        p[i] -= lr * (rule_.momentum * buffer[i] + g[i] + decay * p[i]);
        buffer[i] = rule_.momentum * buffer[i] + (1.0 - rule_.momentum) * (before[i] - p[i]) / lr;
      }
      return;
    }
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (rule_.type == "sgd") {
        sgd(i, p[i], g[i], lr, decay);
      } else if (rule_.type == "lion") {
        lion(i, p[i], g[i], lr, decay);
      } else if (rule_.type == "qadam") {
        qadam(i, p[i], g[i], lr, decay);
      } else if (rule_.accumulates()) {
        accum_adam(i, p[i], g[i], lr, decay);
      } else {
        const double moved = before[i] - p[i];
        adam(i, p[i], g[i], lr, decay);
        const double unbiased = v[i] / (1.0 - std::pow(rule_.beta2, static_cast<double>(s_)));
        m[i] += rule_.mixing_momentum * moved / lr * (std::sqrt(unbiased) + rule_.eps);
      }
    }
  }

  /// Without mixing.
  void step(std::vector<double>& p, const std::vector<double>& g, double lr, double decay) {
    step(p, g, lr, decay, std::vector<double>(p));
  }

  [[nodiscard]] bool has_second_moments() const {
    return rule_.type.find("adam") != std::string::npos;
  }
  /// Of the Adam family.
  std::vector<double>& second_moments() { return inner_ ? inner_->second_moments() : v; }

  /// Of descent with momentum, quasi-global momentum, and the Adam family.
  std::vector<double>& momentum() {
    if (inner_) return inner_->momentum();
    const bool descends = rule_.type == "sgd" || rule_.type == "qg_sgd" || rule_.type == "muon";
    return descends ? buffer : m;
  }

  /// A step without a gradient.
  void rest(std::vector<double>& p, const std::vector<double>& before) {
    if (rule_.type != "extra" || s_ == 0) return;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double half = 0.5 * (before[i] + p[i]);
      p[i] = 2.0 * half - buffer[i];
      buffer[i] += p[i] - half;
    }
  }

 private:
  /// x' = rule((x + Wx) - y), y' = y + x' - (x + Wx) / 2; in the first step y = x.
  void extra(std::vector<double>& p, const std::vector<double>& g, double lr, double decay,
             const std::vector<double>& before) {
    if (++s_ == 1) buffer = before;
    std::vector<double> half(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      half[i] = 0.5 * (before[i] + p[i]);
      p[i] = 2.0 * half[i] - buffer[i];
    }
    inner_->step(p, g, lr, decay);
    for (std::size_t i = 0; i < p.size(); ++i) buffer[i] += p[i] - half[i];
  }

  void sgd(std::size_t i, double& p, double g, double lr, double decay) {
    g += decay * p;
    buffer[i] = s_ == 1 ? g : rule_.momentum * buffer[i] + g;
    p -= lr * (rule_.nesterov ? g + rule_.momentum * buffer[i] : buffer[i]);
  }

  /// A matrix is `rows` vectors; without rows a single one.
  void muon(std::vector<double>& p, const std::vector<double>& g, double lr, double decay) {
    const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(rule_.rows, 1));
    const std::size_t cols = p.size() / rows;
    std::vector<double> u(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      buffer[i] = rule_.momentum * buffer[i] + (1.0 - rule_.momentum) * g[i];
      u[i] =
          rule_.nesterov ? rule_.momentum * buffer[i] + (1.0 - rule_.momentum) * g[i] : buffer[i];
    }
    newton_schulz(u, rows, cols);
    const double size = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
    for (std::size_t i = 0; i < p.size(); ++i) p[i] -= lr * (decay * p[i] + size * u[i]);
  }

  /// u <- a u + (b G + c G G) u five times, with G = u u^T: the same numbers for tall matrices, up
  /// to rounding, as with the smaller u^T u.
  static void newton_schulz(std::vector<double>& u, std::size_t rows, std::size_t cols) {
    double norm = 0.0;
    for (const double value : u) norm += value * value;
    for (double& value : u) value /= std::max(std::sqrt(norm), 1e-7);
    const auto times = [](const std::vector<double>& a, const std::vector<double>& b, std::size_t n,
                          std::size_t depth) {
      const std::size_t m = b.size() / depth;
      std::vector<double> product(n * m);
      for (std::size_t i = 0; i < n * m * depth; ++i) {
        const std::size_t row = i / (m * depth), col = i / depth % m, k = i % depth;
        product[row * m + col] += a[row * depth + k] * b[k * m + col];
      }
      return product;
    };
    for (int step = 0; step < 5; ++step) {
      std::vector<double> across(u.size());
      for (std::size_t i = 0; i < u.size(); ++i) across[i % cols * rows + i / cols] = u[i];
      const std::vector<double> gram = times(u, across, rows, cols);
      std::vector<double> factor = times(gram, gram, rows, rows);
      for (std::size_t i = 0; i < gram.size(); ++i) {
        factor[i] = 2.0315 * factor[i] - 4.775 * gram[i];
      }
      const std::vector<double> moved = times(factor, u, rows, rows);
      for (std::size_t i = 0; i < u.size(); ++i) u[i] = 3.4445 * u[i] + moved[i];
    }
  }

  void lion(std::size_t i, double& p, double g, double lr, double decay) {
    const double u = rule_.beta1 * m[i] + (1.0 - rule_.beta1) * g;
    p *= 1.0 - lr * decay;
    if (u != 0.0) p -= lr * u / std::abs(u);
    m[i] = rule_.beta2 * m[i] + (1.0 - rule_.beta2) * g;
  }

  void adam(std::size_t i, double& p, double g, double lr, double decay) {
    apply_decay(p, g, lr, decay);
    m[i] = rule_.beta1 * m[i] + (1.0 - rule_.beta1) * g;
    v[i] = rule_.beta2 * v[i] + (1.0 - rule_.beta2) * g * g;
    apply_moments(p, m[i], v[i], lr, s_);
  }

  /// Adam, until the second moment and its correction stand still.
  void qadam(std::size_t i, double& p, double g, double lr, double decay) {
    if (s_ <= rule_.warmup) return adam(i, p, g, lr, decay);
    m[i] = rule_.beta1 * m[i] + (1.0 - rule_.beta1) * (g + decay * p);
    const double unbiased_m = m[i] / (1.0 - std::pow(rule_.beta1, static_cast<double>(s_)));
    const double unbiased_v =
        v[i] / (1.0 - std::pow(rule_.beta2, static_cast<double>(rule_.warmup)));
    p -= lr * unbiased_m / (std::sqrt(unbiased_v) + rule_.eps);
  }

  void accum_adam(std::size_t i, double& p, double g, double lr, double decay) {
    const std::int64_t cycle = rule_.accum_iter;
    apply_decay(p, g, lr, decay);
    sum[i] += g / static_cast<double>(cycle);
    const double m_now = m[i] + (1.0 - rule_.beta1) * g;
    const double v_now = v[i] + (1.0 - rule_.beta2) * g * g;
    apply_moments(p, m_now, v_now, lr, (s_ + cycle - 1) / cycle);
    if (s_ % cycle != 0) return;
    m[i] = (m[i] + (1.0 - rule_.beta1) * sum[i]) * rule_.beta1;
    v[i] = (v[i] + (1.0 - rule_.beta2) * sum[i] * sum[i]) * rule_.beta2;
    sum[i] = 0.0;
  }

  void apply_decay(double& p, double& g, double lr, double decay) const {
    if (rule_.decoupled()) {
      p *= 1.0 - lr * decay;
    } else {
      g += decay * p;
    }
  }

  void apply_moments(double& p, double m_now, double v_now, double lr, std::int64_t t) const {
    const double correction1 = 1.0 - std::pow(rule_.beta1, static_cast<double>(t));
    const double correction2 = 1.0 - std::pow(rule_.beta2, static_cast<double>(t));
    p -= lr / correction1 * m_now / (std::sqrt(v_now) / std::sqrt(correction2) + rule_.eps);
  }

  Rule rule_;
  std::int64_t s_ = 0;
  std::shared_ptr<Optimizer> inner_;

 public:
  /// The Adam family: moments, and the mean gradient of the cycle so far.
  std::vector<double> m, v, sum;
  /// Gradient descent, and what EXTRA keeps.
  std::vector<double> buffer;
  /// Zeros, in place of a state that ranks do not share.
  std::vector<double> unshared;
};

}  // namespace gossamer::reference
