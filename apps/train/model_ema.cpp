#include "apps/train/model_ema.hpp"

#include <memory>

#include <torch/nn/module.h>

#include "base/text.hpp"

namespace gossamer::apps {

ModelEma::ModelEma(const torch::nn::Module& module, double decay)
    : decay_(decay), parameters_(collect_tensors(module).trainable) {
  for (const NamedTensor& parameter : parameters_) {
    averages_.push_back(parameter.tensor.detach().to(torch::kFloat32, /*non_blocking=*/false,
                                                     /*copy=*/true,
                                                     torch::MemoryFormat::Contiguous));
  }
}

void ModelEma::update(double weight) {
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < averages_.size(); ++p) {
    const torch::Tensor own = parameters_[p].tensor.detach().to(torch::kFloat32);
    averages_[p].lerp_(weight == 1.0 ? own : own * weight, 1.0 - decay_);
  }
}

torch::Tensor ModelEma::mean_of(std::size_t parameter, Communicator& communicator,
                                double weight) const {
  // The communicator of the host reaches host memory alone.
  torch::Tensor own = averages_[parameter].to(torch::kCPU);
  if (weight != 1.0) own = own * weight;
  const torch::Tensor sum = torch::empty_like(own);
  communicator
      .all_reduce_sum(block_of_tensor(own), block_of_tensor(sum),
                      {.label = {.what = "average"},
                       .owner = both(std::make_shared<torch::Tensor>(own),
                                     std::make_shared<torch::Tensor>(sum))})
      .wait();
  return sum / communicator.size();
}

void ModelEma::use(Communicator& communicator) const {
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < averages_.size(); ++p) {
    parameters_[p].tensor.detach().copy_(mean_of(p, communicator, 1.0));
  }
}

void ModelEma::share(Communicator& communicator, double weight) {
  const torch::NoGradGuard no_grad;
  for (std::size_t p = 0; p < averages_.size(); ++p) {
    averages_[p].copy_(mean_of(p, communicator, weight));
  }
}

void ModelEma::visit(StateVisitor& visitor) {
  for (std::size_t p = 0; p < averages_.size(); ++p) {
    torch::Tensor values = averages_[p].to(torch::kCPU);
    visitor.block(concat("ema/", parameters_[p].name), block_of_tensor(values));
    if (visitor.loads()) averages_[p].copy_(values);
  }
}

}  // namespace gossamer::apps
