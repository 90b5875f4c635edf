// Every rank trains alone: the baseline that shows what communication costs.

#include "core/algorithm.hpp"

namespace gossamer {
namespace {

class Local : public Algorithm {
 public:
  explicit Local(AlgorithmContext& context) : context_(context) {}
  void on_ready(Bucket& bucket) override {
    if (!context_.policy.defers()) context_.update(bucket);
  }
  void on_step_end() override {
    if (!context_.policy.defers()) return;
    context_.update_deferred(nullptr, [this](Bucket& bucket) { context_.update(bucket); });
  }
  void drain() override {}
  void forget_arrived() override {}

 private:
  AlgorithmContext& context_;
};

}  // namespace

std::unique_ptr<Algorithm> make_local(AlgorithmContext& context) {
  return std::make_unique<Local>(context);
}

}  // namespace gossamer
