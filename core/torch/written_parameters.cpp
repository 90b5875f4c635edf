// What others write to a wrapped model between its steps.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/types.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/data_parallel_state.hpp"
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

void DataParallelCore::State::note_homes() {
  homes.clear();
  // With version counters of their own: writing them is not writing the parameter.
  for (const NamedTensor& entry : tensors.trainable) homes.push_back(entry.tensor.variable_data());
}

bool DataParallelCore::State::is_home(std::size_t parameter) const {
  const NamedTensor& entry = tensors.trainable[parameter];
  const torch::Tensor& home = homes[parameter];
  if (!same_kind(entry.tensor, home)) {
    throw ConfigError(concat("parameter ", entry.name, " was ", text_of(home),
                             " when the model was wrapped and is ", text_of(entry.tensor),
                             " now; change types, shapes and devices before wrapping the model, ",
                             "or wrap it again"));
  }
  return same_memory(entry.tensor, home);
}

bool DataParallelCore::State::is_written(std::size_t parameter) const {
  return tensors.trainable[parameter].tensor._version() != versions[parameter];
}

void DataParallelCore::State::drain() {
  static_cast<void>(stream());
  if (!pipeline) return;
  const bool in_flight = !quiet && communicator.size() > 1;
  for (std::size_t i = 0; in_flight && i < homes.size(); ++i) {
    if (!is_home(i) || !is_written(i)) continue;
    throw std::logic_error(
        concat("rank ", own_world_rank(communicator), ": parameter ", infos[i].name,
               " was written while its exchange may have been in flight, so that a peer may have ",
               "got half of it; write parameters in the scope of write_parameters()"));
  }
  pipeline->drain();
  quiet = true;
}

void DataParallelCore::State::adopt_written() {
  std::vector<bool> written(homes.size());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < homes.size(); ++i) {
    written[i] = !is_home(i) || (pipeline && is_written(i));
    if (written[i]) names.push_back(infos[i].name);
  }
  const bool announced = std::exchange(was_open, false);
  if (names.empty() && !announced) return;
  // Draining again may be collective, and a write without a scope is this rank's own.
  if (!quiet) drain();
  if (pipeline) pipeline->forget_arrived();
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < homes.size(); ++i) {
    torch::Tensor parameter = tensors.trainable[i].tensor;
    if (!written[i] || is_home(i)) continue;
    // A copy, because the new memory may overlap the old one.
    homes[i].copy_(parameter.detach().clone());
    parameter.set_data(homes[i]);
  }
  if (!pipeline) return;
  write_masters(written, announced);
  if (announced || std::exchange(warned_of_writing, true)) return;
  options.logger.warning(
      concat("parameters were written outside of write_parameters(): ", list_of(std::move(names)),
             "; training goes on from what was written, and this rank's next step mixes nothing"));
}

/// `everywhere`: parameters that show no sign of writing are compared with their master copies.
void DataParallelCore::State::write_masters(const std::vector<bool>& written, bool everywhere) {
  for (const Bucket& bucket : pipeline->buckets()) {
    const Block rounded = bucket.model_memory().rounded.block();
    for (const BucketEntry& entry : bucket.spec().entries) {
      const auto place = static_cast<std::size_t>(entry.parameter);
      const std::int64_t numel = infos[place].numel();
      const Block part = part_of(bucket.parameters().block(), entry.offset, numel);
      if (bucket.spec().has_master() &&
          (written[place] || (everywhere && differ(part, homes[place])))) {
        enqueue_convert(stream(), part, part_of(rounded, entry.offset, numel));
      }
      note_version(place);
    }
  }
}

void DataParallelCore::State::check_no_scope(std::string_view call) const {
  if (averaging) {
    throw std::logic_error(
        concat(call, " inside the scope of global_average(), where the model is the mean of all ",
               "ranks; let the AverageScope end first, and evaluate under torch::NoGradGuard"));
  }
  if (writing) {
    throw std::logic_error(
        concat(call, " inside the scope of write_parameters(); let the WriteScope end first"));
  }
}

void DataParallelCore::State::warn_of_untrained() {
  const bool unfrozen = std::ranges::any_of(
      tensors.frozen, [](const NamedTensor& entry) { return entry.tensor.requires_grad(); });
  if (warned_of_untrained || (!unfrozen && offered == last_offered)) return;
  last_offered = offered;
  const auto is_known = [this](const NamedTensor& found) {
    return std::ranges::any_of(tensors.trainable, [&found](const NamedTensor& known) {
      return known.tensor.is_same(found.tensor);
    });
  };
  std::vector<std::string> names;
  for (const NamedTensor& entry : collect_tensors(*module).trainable) {
    if (!is_known(entry)) names.push_back(entry.name);
  }
  if (names.empty()) return;
  warned_of_untrained = true;
  options.logger.warning(
      concat("these parameters require gradients now, but did not require them or did not exist ",
             "when the model was wrapped: ", list_of(std::move(names)),
             "; they are neither updated nor mixed and keep their gradients; wrap the model again ",
             "to train them"));
}

WriteScope::WriteScope(std::shared_ptr<DataParallelCore> core) : core_(std::move(core)) {
  DataParallelCore::State& state = *core_->state_;
  state.adopt_written();
  state.drain();
  if (state.pipeline) state.pipeline->forget_arrived();
  state.writing = true;
}

WriteScope::WriteScope(WriteScope&& other) noexcept : core_(std::move(other.core_)) {}

WriteScope::~WriteScope() {
  if (!core_) return;
  core_->state_->writing = false;
  core_->state_->was_open = true;
}

}  // namespace gossamer
