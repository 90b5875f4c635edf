#pragma once
// Repeats the recorded steps of torch.optim.Muon with the library's.

#include "test/golden/muon_trace.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/host_stream.hpp"
#include "base/options.hpp"
#include "optim/block_update.hpp"
#include "optim/registry.hpp"

namespace gossamer {

inline bool has_bfloat16_products(const MuonTrace& trace) {
  return std::string_view(trace.options).find("bfloat16") != std::string_view::npos;
}

/// The matrix after the steps of a trace. `own`: as BlockUpdate::orthogonalize.
template <class T>
std::vector<double> muon_steps(const MuonTrace& trace, const Orthogonalize* own) {
  const auto numel = static_cast<std::size_t>(trace.rows * trace.cols);
  std::vector<T> x(numel), momentum(numel), gradient(numel);
  for (std::size_t i = 0; i < numel; ++i) x[i] = static_cast<T>(std::cos(0.3 * double(i)));
  const auto muon = make_optimizer("muon", Options::parse(trace.options));
  InlineStream stream;
  for (int step = 0; step < kMuonTraceSteps; ++step) {
    for (std::size_t i = 0; i < numel; ++i) {
      gradient[i] = static_cast<T>(std::sin(0.7 * double(i) * double(i) + 1.3 * step));
    }
    BlockUpdate update{.parameters = block_of(std::span(x)), .states = {momentum.data()}};
    update.lr = 0.05;
    update.orthogonalize = own;
    update.segments = {{.numel = static_cast<std::int64_t>(numel),
                        .gradient = block_of(std::span(gradient)),
                        .step = step + 1,
                        .weight_decay = 0.1,
                        .rows = trace.rows}};
    enqueue_update(stream, *muon, update);
  }
  return {x.begin(), x.end()};
}

inline void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                        double most) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], most) << "element " << i;
  }
}

}  // namespace gossamer
