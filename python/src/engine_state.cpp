// The state of an engine: saved, and loaded.

#include "python/src/engine.hpp"
#include "python/src/pointer.hpp"
#include "python/src/types.hpp"

#include <array>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/bucket/bucket.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/state_file.hpp"

namespace gossamer::python {
namespace {

namespace nb = nanobind;

/// What the command line program has in its checkpoints beside the wrapper's state.
constexpr std::array<std::string_view, 5> kOfTheProgram = {"train/", "record/", "random/", "ema/",
                                                           "scaler/"};

/// As core/torch saves tensors that are not trained.
DType saved_type(const std::string& name) {
  for (const TypeName& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return name == "int64" ? DType::kInt64 : DType::kUInt8;
}

}  // namespace

void Engine::visit(StateVisitor& visitor, const std::vector<OtherTensor>& others) {
  std::map<std::string, MemoryLayout> layouts;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const ParameterInfo& info = model().parameters()[i];
    layouts[info.name] = {info.shape, places_[i].strides};
  }
  model().visit_row_major(visitor, std::move(layouts));
  // The program counts the steps until buffers are averaged.
  constexpr const char* kBufferSteps = "run/buffer_steps";
  std::int64_t buffer_steps = 0;
  if (!visitor.loads() || visitor.holds(kBufferSteps)) visitor.number(kBufferSteps, buffer_steps);
  for (const auto& [name, type, address, num_bytes] : others) {
    void* const data = pointer_to(address);
    const DType dtype = saved_type(type);
    visitor.block(name, {data, num_bytes / size_of(dtype), dtype, {}});
  }
}

template <class Visit>
void Engine::for_parameters(const Visit& visit) const {
  for (const Bucket& bucket : model().buckets()) {
    for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
      visit(bucket, entry, bucket.spec().entries[static_cast<std::size_t>(entry)].parameter);
    }
  }
}

std::vector<std::int64_t> Engine::updates() const {
  std::vector<std::int64_t> updates(places_.size());
  for_parameters([&](const Bucket& bucket, std::int64_t entry, std::int64_t parameter) {
    updates[static_cast<std::size_t>(parameter)] = bucket.num_updates(entry);
  });
  return updates;
}

void Engine::set_updates(const std::vector<std::int64_t>& updates) {
  for (std::size_t i = 0; i < updates.size(); ++i) {
    model().set_num_updates(static_cast<std::int64_t>(i), updates[i]);
  }
}

View Engine::optimizer_state(std::int64_t index, const std::string& name) const {
  std::optional<View> found;
  for_parameters([&](const Bucket& bucket, std::int64_t entry, std::int64_t parameter) {
    if (parameter != index) return;
    if (!bucket.holds_all()) {
      throw ConfigError(
          "the ranks share the optimizer's states (node_gossip with shard: optimizer), so that no "
          "rank's optimizer has them, allowed: shard: none, or save() and load() of the wrapper");
    }
    const Buffer state = bucket.state(name);
    if (state.block().data == nullptr && bucket.spec().numel > 0) return;
    found = view_of(index, bucket.part(state.block(), entry), state.owner());
  });
  if (!found) throw std::logic_error(concat("the engine has no state ", name));
  return *found;
}

PySnapshot Engine::snapshot(const std::vector<OtherTensor>& others) {
  StateSnapshot snapshot;
  visit(snapshot, others);
  return PySnapshot(std::move(snapshot));
}

std::vector<StateTensor> Engine::state(const std::vector<OtherTensor>& others) {
  StateSnapshot snapshot;
  visit(snapshot, others);
  const nb::gil_scoped_acquire gil;
  std::vector<StateTensor> state;
  for (const TensorView& tensor : snapshot.tensors()) {
    state.emplace_back(tensor.name, tensor.dtype, tensor.shape,
                       nb::bytearray(tensor.data, static_cast<std::size_t>(tensor.num_bytes)));
  }
  return state;
}

void Engine::load_state(const std::vector<GivenTensor>& state,
                        const std::vector<OtherTensor>& others) {
  std::vector<TensorView> tensors;
  for (const auto& [name, dtype, shape, address] : state) {
    std::int64_t num_bytes = bytes_of_element(dtype);
    for (const std::int64_t size : shape) num_bytes *= size;
    tensors.push_back({.name = name,
                       .dtype = dtype,
                       .shape = shape,
                       .data = pointer_to(address),
                       .num_bytes = num_bytes});
  }
  load_from(TensorsInMemory("the state", tensors), others);
}

void Engine::load(const std::string& path, const std::vector<OtherTensor>& others) {
  load_from(SafetensorsFile(path), others);
}

void Engine::load_from(const TensorSource& source, const std::vector<OtherTensor>& others) {
  StateLoader loader(source);
  const std::int64_t before = model().progress().num_steps;
  visit(loader, others);
  recording_.num_loaded += model().progress().num_steps - before;
  loader.check_all_loaded(kOfTheProgram);
}

}  // namespace gossamer::python
