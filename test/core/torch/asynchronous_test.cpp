// DecentralizedDataParallel with ranks that make different numbers of steps.

#include "test/core/torch/scenario.hpp"

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "core/bucket/model_average.hpp"
#include "core/state/state_copy.hpp"
#include "core/torch/data_parallel.hpp"

namespace gossamer {
namespace {

using AsyncModel = DecentralizedDataParallel<Bag>;

const Scenario kAsync{.num_ranks = 3,
                      .algorithm = "async_gossip",
                      .algorithm_options = "max_staleness: 2",
                      .topology = "static-exp"};

std::unique_ptr<AsyncModel> make_async_model(Communicator& communicator) {
  return std::make_unique<AsyncModel>(kAsync.make_model(communicator.rank()), communicator,
                                      kAsync.options());
}

/// Rank r makes 4 + 3 r steps, numbered from `first` on.
void make_steps(AsyncModel& model, int rank, int first = 0) {
  for (int step = 0; step < 4 + 3 * rank; ++step) make_step(model, kAsync, rank, first + step);
}

torch::Tensor w1_of(AsyncModel& model) { return model.module()["w1"].detach().clone(); }

/// Finds one number in the state.
class NumberFinder : public StateVisitor {
 public:
  explicit NumberFinder(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] bool loads() const override { return false; }
  [[nodiscard]] bool holds(const std::string& /*name*/) const override { return false; }
  void block(const std::string& /*name*/, const Block& /*block*/) override {}
  void number(const std::string& name, double& value) override {
    if (name == name_) found = value;
  }
  void number(const std::string& /*name*/, std::int64_t& /*value*/) override {}

  double found = 0.0;

 private:
  std::string name_;
};

TEST(AsynchronousModel, AveragesByTheMassesAndGivesTheLocalModelBack) {
  on_ranks(3, [&](Communicator& communicator) {
    const auto model = make_async_model(communicator);
    make_steps(*model, communicator.rank());
    NumberFinder mass("run/mass");
    model->visit(mass);
    const std::vector<double> masses = gather_numbers(communicator, mass.found);
    EXPECT_NEAR(std::accumulate(masses.begin(), masses.end(), 0.0), 3.0, 1e-12);
    const torch::Tensor own = w1_of(*model);
    const torch::Tensor share = (own * mass.found / 3).contiguous();
    const double* data = share.data_ptr<double>();
    const std::vector<double> sums = sum_over_ranks(communicator, {data, data + share.numel()});
    const torch::Tensor mean = torch::tensor(sums, torch::kFloat64).reshape(own.sizes());
    {
      const AverageScope scope = model->global_average();
      EXPECT_LE((w1_of(*model) - mean).abs().max().item<double>(), 1e-13);
    }
    EXPECT_TRUE(w1_of(*model).equal(own));
    // The ranks go on, again each at its own pace.
    make_steps(*model, communicator.rank(), 20);
    EXPECT_EQ(model->engine().progress().num_steps, 2 * (4 + 3 * communicator.rank()));
    model->drain();
  });
}

TEST(AsynchronousModel, RefusesWhatNeedsCommonSteps) {
  const auto refusal = [](void (*change)(DataParallelOptions&)) {
    Scenario scenario = kAsync;
    scenario.num_ranks = 2;
    DataParallelOptions options = scenario.options();
    change(options);
    const std::string text = config_errors(2, [&](Communicator& communicator) {
      const AsyncModel model(make_mlp(0), communicator, options);
    })[0];
    // The same for a switch, before the first step and later.
    const AlgorithmSwitch to{.algorithm = options.exchange.algorithm,
                             .topology = options.exchange.topology};
    options.exchange.algorithm = "gossip";
    for (const int num_steps : {0, 1}) {
      const auto texts = config_errors(2, [&](Communicator& communicator) {
        AsyncModel model(make_mlp(0), communicator, options);
        const auto make_steps = [&](int first, int last) {
          for (int step = first; step < last; ++step) {
            make_step(model, Scenario(), communicator.rank(), step);
          }
          model.drain();
        };
        make_steps(0, num_steps);
        try {
          model.switch_to(to);
        } catch (const ConfigError&) {
          // Training may go on as before.
          make_steps(num_steps, num_steps + 2);
          throw;
        }
      });
      EXPECT_EQ(texts[0], text) << "after step " << num_steps;
    }
    return text;
  };
  EXPECT_NE(refusal([](DataParallelOptions& o) { o.bucket_bytes = 0; }).find("give the size"),
            std::string::npos);
  EXPECT_NE(refusal([](DataParallelOptions& o) {
              o.average_buffers_every = 5;
            }).find("average_buffers_every is 5"),
            std::string::npos);
}

}  // namespace
}  // namespace gossamer
