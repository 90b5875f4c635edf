#include "core/torch/backward_end.hpp"

#include <exception>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

namespace gossamer {
namespace {

/// One callback of one backward pass. Autograd gives every pass its own callbacks and runs them
/// when that pass ends; it offers no access to those of the pass around it. But autograd releases
/// the callbacks of an inner pass when control is back in the outer one: the destructor queues the
/// action again, there.
class Callback {
 public:
  explicit Callback(std::shared_ptr<std::function<void()>> action) : action_(std::move(action)) {}
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() {
    if (!inside_another_) return;
    try {
      at_end_of_backward(std::move(action_));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the action is released
    }
  }

  void run() {
    // At the end of an inner pass, this thread is still at a node of the outer one.
    inside_another_ = torch::autograd::get_current_node() != nullptr;
    if (!inside_another_) (*action_)();
  }

 private:
  std::shared_ptr<std::function<void()>> action_;
  bool inside_another_ = false;
};

}  // namespace

void at_end_of_backward(std::shared_ptr<std::function<void()>> action) {
  const auto callback = std::make_shared<Callback>(std::move(action));
  torch::autograd::Engine::get_default_engine().queue_callback([callback] { callback->run(); });
}

}  // namespace gossamer
