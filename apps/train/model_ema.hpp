#pragma once
// The exponential moving average of the mean model: a_t = d a_(t-1) + (1 - d) mean(x_t).
//
// Each rank averages its own model, without communication: its weight in the mean model times its
// parameters. The mean over ranks of these averages is the average of the mean model, because both
// are linear. use() makes this mean.
//
// Not thread safe. Errors: CommError.

#include <vector>

#include "base/state_visitor.hpp"
#include "comm/communicator.hpp"
#include "core/torch/parameters.hpp"

namespace gossamer::apps {

class ModelEma {
 public:
  /// The average begins with the module's values. It covers the parameters that are trained.
  /// `decay` is d.
  ModelEma(const torch::nn::Module& module, double decay);

  /// Call it after every step. `weight`: this rank's weight in the mean of all ranks' models. The
  /// weights sum to the number of ranks.
  void update(double weight);
  /// Collective. Writes the average of the mean model into the module's parameters.
  void use(Communicator& communicator) const;
  /// Collective. The average becomes the mean over ranks. `weight` is this rank's part in the mean,
  /// as in ModelAverage.
  void share(Communicator& communicator, double weight);
  void visit(StateVisitor& visitor);

 private:
  /// Collective. The mean over ranks of the average of each parameter, on the host.
  [[nodiscard]] std::vector<torch::Tensor> means(Communicator& communicator, double weight) const;

  double decay_;
  std::vector<NamedTensor> parameters_;
  /// float32, on the parameters' device.
  std::vector<torch::Tensor> averages_;
};

}  // namespace gossamer::apps
