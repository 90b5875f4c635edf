#pragma once
// DecentralizedDataParallel trains any torch::nn::Module together with other ranks. Every rank
// builds the same module and trains it with an ordinary loop of forward() and backward():
//
//   gossamer::DecentralizedDataParallel model(net, communicator,
//                                            {.exchange = {.topology = ...}, ...});
//   auto loss = criterion(model.forward(x), y);
//   loss.backward();      // updates the parameters, bucket by bucket, and starts the exchanges
//
// Protocol: backward() makes the whole step, so the loop calls neither an optimizer nor
// zero_grad(). When backward() returns, the parameters are updated and the gradients are gone (a
// parameter's grad() is undefined). The exchange of a bucket then runs until the bucket's next
// update. Meanwhile the caller may read the parameters and must not write them. To write them, open
// the scope of write_parameters(). Call drain() before leaving.
//
// Collective calls, made by every rank at the same step: the constructor, backward(),
// finish_step(), drain(), global_average(), write_parameters(), visit(), replan(), switch_to().
// Under an asynchronous algorithm (AlgorithmEntry::asynchronous) the ranks may make different
// numbers of steps between two of these calls, and backward() and finish_step() are no longer
// collective. drain() and all calls that drain then change the model, because they mix in the
// messages under way.
//
// Memory: the first backward() traces the order in which gradients arrive, takes one order for all
// ranks (BucketPlanner), cuts buckets, and moves the parameters into contiguous blocks. A tensor
// that shared memory with a parameter before (such as a p.data() that the caller has kept) stays
// with the old memory. If a parameter is given other memory later (torch::load,
// vector_to_parameters, set_data), the next step moves it back into its block, with its new values.
//
// For a parameter in bfloat16 the block holds a float32 master copy. The pipeline mixes, updates
// and exchanges the master copy. After every update the parameter is the rounded master copy. If
// the caller writes such a parameter, the next step or average copies the new value into the master
// copy. A model may have parameters of several types.
//
// Errors: CommError from exchanges; NonFiniteError for gradients (see gradient_policy.hpp);
// ConfigError for a model that cannot be trained, and for parameters and gradients of a wrong kind;
// std::logic_error for a broken protocol. After a backward() that has failed half way, further
// steps throw std::logic_error.
//
// Thread safety: only the rank's own thread may call.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/torch/data_parallel_core.hpp"

namespace gossamer {

template <class ModuleType>
class DecentralizedDataParallel {
 public:
  /// Collective. Compares the models of all ranks, and copies rank 0's parameters and buffers to
  /// all. The communicator must outlive this object. Throws ConfigError in these cases:
  ///
  /// - The models differ, or have no trainable parameter.
  /// - The optimizer or the schedule is missing, or an option has an impossible value.
  /// - The algorithm cannot run on the topology.
  /// - The module is null, or a parameter belongs to another wrapper, or has a type or layout that
  ///   is not allowed.
  DecentralizedDataParallel(std::shared_ptr<ModuleType> module, Communicator& communicator,
                            DataParallelOptions options)
      : module_(std::move(module)),
        core_(DataParallelCore::create(module_, communicator, std::move(options))) {}

  template <class... Args>
  auto forward(Args&&... args) {
    return module_->forward(std::forward<Args>(args)...);
  }

  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }
  [[nodiscard]] std::vector<torch::Tensor> parameters() const { return module_->parameters(); }
  [[nodiscard]] ModuleType& module() { return *module_; }

  /// While on, backward() only adds to the gradients. After it is switched off, the next backward()
  /// makes the step with the sum of all gradients, or with their mean
  /// (DataParallelOptions::mean_over_micro_batches).
  void set_accumulate_grad(bool accumulate) { core_->set_accumulate_grad(accumulate); }
  /// Makes a step without a backward(). For a rank that has no batch left while others have one, or
  /// whose backward() reaches no parameter. The step uses the gradients accumulated before, and
  /// mixes all parameters. backward() ends its step by itself.
  void finish_step() { core_->finish_step(); }
  /// Waits for the exchanges in flight. Call it before leaving. The next step, if there is one,
  /// mixes in their results. To write parameters, use write_parameters().
  void drain() { core_->drain(); }
  /// Collective, between two steps or before the first one; see WriteScope. The next step notices a
  /// write outside of such a scope, unless the write went through data(). If the write came after
  /// drain(), or if the parameter was given other memory, the step logs a warning once. It
  /// continues as if this rank alone had opened a scope. Otherwise a peer may have received half of
  /// the write, and the step throws std::logic_error.
  [[nodiscard]] WriteScope write_parameters() { return core_->write_parameters(); }
  /// Collective, between two steps or before the first one; see AverageScope. With
  /// `average_buffers` the scope also has the mean of the floating-point buffers.
  [[nodiscard]] AverageScope global_average(bool average_buffers = true) {
    return core_->global_average(average_buffers);
  }

  /// Collective, between two steps: shows the visitor all state of training, parameters, frozen
  /// parameters and buffers included. Waits for the exchanges in flight; the next step still mixes
  /// in their results. StateSnapshot and StateLoader (core/checkpoint/state_file.hpp) save to a
  /// file and load from a file.
  ///
  /// Loading repeats the exchanges that were in flight at saving, and training then continues bit
  /// for bit. The wrapper may be new or trained. Its ranks, model, algorithm and optimizer must be
  /// the saved model's; its buckets may differ. Throws std::logic_error when saving before the
  /// first step, and CheckpointError when the state does not fit.
  void visit(StateVisitor& visitor) { core_->visit(visitor); }

  /// Collective, between two steps: moves parameters and state into buckets that close at
  /// `bucket_bytes`. Training continues as if it had been saved, and loaded with such buckets;
  /// gradients that micro-batches have accumulated stay.
  /// Tensors that share memory with a parameter stay with the old memory. Ends the trials of
  /// DataParallelOptions::bucket_bytes = 0. Throws std::logic_error before the first step, and for
  /// a wrapper that a GraphedStep has recorded.
  void replan(std::int64_t bucket_bytes) { core_->replan(bucket_bytes); }
  /// Collective, between two steps or before the first one: goes on with another algorithm or
  /// topology. algorithm_switch.hpp says what stays. If the models become their mean, so do their
  /// floating-point buffers. Parameters stay where they are, also for a GraphedStep. Trials of
  /// DataParallelOptions::bucket_bytes = 0 begin again. Throws ConfigError on all ranks if they ask
  /// for different things or at different steps, or if the algorithm cannot run so; training may
  /// then go on as before. Throws std::logic_error inside a step, also while micro-batches
  /// accumulate.
  void switch_to(const AlgorithmSwitch& to) { core_->switch_to(to); }
  /// Between two steps, where ranks are lost (Communicator::is_elastic()): as Pipeline::detach().
  void detach() { core_->detach(); }
  /// Makes up for a step that this rank lacks; see Pipeline::catch_up().
  void catch_up(std::int64_t num_steps) { core_->catch_up(num_steps); }
  /// Collective, as Pipeline::resume(): after detach(), Elastic::reconfigure(), catch_up() and the
  /// steps that this rank lacked; or on a new wrapper that joins (DataParallelOptions::joins).
  /// Buffers follow as in switch_to(), and who joins gets all tensors of the model.
  void resume(const Pipeline::Resume& wanted) { core_->resume(wanted); }
  /// The engine, for its read-only calls: metrics(), progress(), lr(), last_lr(), model_weight(),
  /// plan(), parameters(), has_uncommitted_step(), tries_buckets(), host_sharing(). Steps, moves
  /// and switches go through this wrapper. set_gradient_scale() may be called: it sets the factor
  /// that gradients are multiplied by before clipping and update, 1/S for a loss that was
  /// multiplied by S. With GradientOptions::nonfinite = kSkip a gradient scaler needs nothing else:
  /// if progress().num_skipped has grown, all ranks have skipped the last step, and S must shrink.
  [[nodiscard]] Pipeline& engine() const { return core_->engine(); }

  /// The core, which GraphedStep uses.
  [[nodiscard]] const std::shared_ptr<DataParallelCore>& core() const { return core_; }

 private:
  std::shared_ptr<ModuleType> module_;
  std::shared_ptr<DataParallelCore> core_;
};

}  // namespace gossamer
