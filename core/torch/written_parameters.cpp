// What others write to a wrapped model between its steps.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/data_parallel_core.hpp"
#include "optim/convert.hpp"

namespace gossamer {
namespace {

std::string text_of(const torch::Tensor& tensor) {
  return concat(torch::toString(tensor.scalar_type()), " [", join(tensor.sizes(), ", "), "] on ",
                tensor.device().str(), tensor.layout() == torch::kStrided ? "" : ", sparse");
}

bool same_kind(const torch::Tensor& a, const torch::Tensor& b) {
  return a.layout() == b.layout() && a.scalar_type() == b.scalar_type() &&
         a.device() == b.device() && a.sizes() == b.sizes();
}

bool same_memory(const torch::Tensor& a, const torch::Tensor& b) {
  return a.data_ptr() == b.data_ptr() && a.strides() == b.strides();
}

/// Whether a master copy rounds to something else than the parameter.
bool differ(ConstBlock master, const torch::Tensor& parameter) {
  const auto type = parameter.options().requires_grad(false);
  const auto view = [](const void* data, std::int64_t numel, const torch::TensorOptions& options) {
    return torch::from_blob(const_cast<void*>(data), {numel}, options);
  };
  const torch::Tensor wide = view(master.data, master.numel, type.dtype(torch::kFloat32));
  const torch::Tensor narrow = view(parameter.data_ptr(), master.numel, type);
  return !torch::equal(wide.to(narrow.scalar_type()), narrow);
}

}  // namespace

void DataParallelCore::note_homes() {
  places_.resize(tensors_.trainable.size());
  // The homes have version counters of their own: writing them is not writing the parameter.
  for (std::size_t i = 0; i < places_.size(); ++i) {
    places_[i].home = tensors_.trainable[i].tensor.variable_data();
  }
}

bool DataParallelCore::is_home(std::size_t parameter) const {
  const NamedTensor& entry = tensors_.trainable[parameter];
  const torch::Tensor& home = places_[parameter].home;
  if (!same_kind(entry.tensor, home)) {
    throw ConfigError(concat("parameter ", entry.name, " was ", text_of(home),
                             " when the model was wrapped and is ", text_of(entry.tensor),
                             " now; change types, shapes and devices before wrapping the model, ",
                             "or wrap it again"));
  }
  return same_memory(entry.tensor, home);
}

bool DataParallelCore::is_written(std::size_t parameter) const {
  return tensors_.trainable[parameter].tensor._version() != places_[parameter].version;
}

void DataParallelCore::drain() {
  static_cast<void>(stream());
  if (!pipeline_->has_started()) return;
  const bool in_flight = !quiet_ && communicator_.size() > 1;
  for (std::size_t i = 0; in_flight && i < places_.size(); ++i) {
    if (!is_home(i) || !is_written(i)) continue;
    throw std::logic_error(concat(
        "rank ", own_world_rank(communicator_), ": parameter ", pipeline_->parameters()[i].name,
        " was written while its exchange may have been in flight, so that a peer may have ",
        "got half of it; write parameters in the scope of write_parameters()"));
  }
  pipeline_->drain();
  quiet_ = true;
}

void DataParallelCore::adopt() {
  std::vector<bool> written(places_.size());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    written[i] = !is_home(i) || (pipeline_->has_started() && is_written(i));
    if (written[i]) names.push_back(pipeline_->parameters()[i].name);
  }
  const bool announced = std::exchange(was_open_, false);
  if (names.empty() && !announced) return;
  // Draining again may be collective, and a write without a scope is this rank's own.
  if (!quiet_) drain();
  pipeline_->forget_arrived();
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    torch::Tensor parameter = tensors_.trainable[i].tensor;
    if (!written[i] || is_home(i)) continue;
    // A copy, because the new memory may overlap the old one.
    places_[i].home.copy_(parameter.detach().clone());
    parameter.set_data(places_[i].home);
  }
  if (!pipeline_->has_started()) return;
  write_masters(written, announced);
  if (announced || std::exchange(warnings_.of_writing, true)) return;
  options_.logger.warning(
      concat("parameters were written outside of write_parameters(): ", list_of(std::move(names)),
             "; training goes on from what was written, and this rank's next step mixes nothing"));
}

/// `everywhere`: parameters that show no sign of writing are compared with their master copies.
void DataParallelCore::write_masters(const std::vector<bool>& written, bool everywhere) {
  for (const Bucket& bucket : pipeline_->buckets()) {
    const Block rounded = bucket.model_memory().rounded.block();
    for (const BucketEntry& entry : bucket.spec().entries) {
      const auto place = static_cast<std::size_t>(entry.parameter);
      const std::int64_t numel = pipeline_->parameters()[place].numel();
      const Block part = part_of(bucket.parameters().block(), entry.offset, numel);
      if (bucket.spec().has_master() &&
          (written[place] || (everywhere && differ(part, places_[place].home)))) {
        enqueue_convert(stream(), part, part_of(rounded, entry.offset, numel));
      }
      note_version(place);
    }
  }
}

void DataParallelCore::check_no_scope(std::string_view call) const {
  if (scope_ == Scope::kAverage) {
    throw std::logic_error(
        concat(call, " inside the scope of global_average(), where the model is the mean of all ",
               "ranks; let the AverageScope end first, and evaluate under torch::NoGradGuard"));
  }
  if (scope_ == Scope::kWrite) {
    throw std::logic_error(
        concat(call, " inside the scope of write_parameters(); let the WriteScope end first"));
  }
}

void DataParallelCore::warn_of_untrained() {
  const bool unfrozen = std::ranges::any_of(
      tensors_.frozen, [](const NamedTensor& entry) { return entry.tensor.requires_grad(); });
  if (warnings_.of_untrained) return;
  std::vector<bool> offered = pipeline_->offered();
  if (!unfrozen && offered == warnings_.last_offered) return;
  warnings_.last_offered = std::move(offered);
  const auto is_known = [this](const NamedTensor& found) {
    return std::ranges::any_of(tensors_.trainable, [&found](const NamedTensor& known) {
      return known.tensor.is_same(found.tensor);
    });
  };
  std::vector<std::string> names;
  for (const NamedTensor& entry : collect_tensors(*module_).trainable) {
    if (!is_known(entry)) names.push_back(entry.name);
  }
  if (names.empty()) return;
  warnings_.of_untrained = true;
  options_.logger.warning(
      concat("these parameters require gradients now, but did not require them or did not exist ",
             "when the model was wrapped: ", list_of(std::move(names)),
             "; they are neither updated nor mixed and keep their gradients; wrap the model again ",
             "to train them"));
}

WriteScope::WriteScope(std::shared_ptr<DataParallelCore> core) : core_(std::move(core)) {
  core_->adopt();
  core_->drain();
  core_->pipeline_->forget_arrived();
  core_->scope_ = DataParallelCore::Scope::kWrite;
}

WriteScope::WriteScope(WriteScope&& other) noexcept : core_(std::move(other.core_)) {}

WriteScope::~WriteScope() {
  if (!core_) return;
  core_->scope_ = DataParallelCore::Scope::kNone;
  core_->was_open_ = true;
}

}  // namespace gossamer
