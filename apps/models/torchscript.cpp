// A model from a file that torch.jit.save() has written in Python: your own model. The file holds
// code as well as values, and LibTorch runs the code. docs/guide/own-models.md has an example.

#include "apps/models/torchscript.hpp"

#include <exception>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include "apps/models/model_options.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer::apps {

std::unique_ptr<const ModelFactory> configure_torchscript(const Options& model);

namespace {

/// The first line of LibTorch's message; the others tell where in LibTorch it was thrown.
std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

/// The last line of a message, where TorchScript says what went wrong.
std::string last_line(const std::exception& error) {
  std::string text = error.what();
  text.erase(text.find_last_not_of(" \n") + 1);
  return text.substr(text.find_last_of('\n') + 1);
}

using Known = std::map<const void*, torch::Tensor>;

/// Registers the parameters and buffers of a module under the names that they have in the file.
/// They stay the module's own tensors.
void mirror(torch::jit::Module module, torch::nn::Module& into, Known& known) {
  for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
    // A file keeps tied parameters as two tensors with one memory. Empty ones have none.
    const auto place = entry.value.numel() == 0 ? known.end() : known.find(entry.value.data_ptr());
    if (place == known.end()) {
      known.emplace(entry.value.data_ptr(), entry.value);
      into.register_parameter(entry.name, entry.value, entry.value.requires_grad());
    } else if (place->second.sizes() == entry.value.sizes() &&
               place->second.strides() == entry.value.strides()) {
      module.setattr(entry.name, place->second);
    } else {
      throw ConfigError(concat("model.path: parameter ", entry.name,
                               " shares its memory with one of another shape or order; copy it "
                               "before the export"));
    }
  }
  for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
    into.register_buffer(entry.name, entry.value);
  }
  for (const auto& entry : module.named_children()) {
    const auto child = std::make_shared<torch::nn::Module>();
    mirror(entry.value, *child, known);
    if (!child->parameters().empty() || !child->buffers().empty()) {
      into.register_module(entry.name, child);
    }
  }
}

class TorchScriptModel : public Model {
 public:
  TorchScriptModel(std::string path, const SampleShape& shape)
      : path_(std::move(path)), num_outputs_(shape.num_outputs) {
    try {
      module_ = torch::jit::load(path_, torch::kCPU);
    } catch (const std::exception& error) {
      throw DataError(concat(path_, ": cannot be loaded as a TorchScript module: ",
                             first_line(error.what()), "; write it with torch.jit.save()"));
    }
    Known known;
    mirror(module_, *this, known);
  }

  torch::Tensor forward(torch::Tensor inputs) override {
    const std::vector<std::int64_t> shape = inputs.sizes().vec();
    const std::int64_t num_answers = inputs.dim() == 2 ? inputs.numel() : inputs.size(0);
    const torch::jit::IValue result = run(std::move(inputs), shape);
    if (!result.isTensor()) {
      throw ConfigError(concat("model.path: ", path_,
                               ": forward() returns no tensor; it must "
                               "return the outputs alone"));
    }
    torch::Tensor outputs = result.toTensor();
    if (outputs.dim() > 2) outputs = outputs.flatten(0, -2);
    if (outputs.dim() == 1 && num_outputs_ == 1) outputs = outputs.unsqueeze(1);
    if (outputs.dim() != 2 || outputs.size(0) != num_answers || outputs.size(1) != num_outputs_) {
      throw ConfigError(concat("model.path: ", path_, ": for inputs of the shape [",
                               join(shape, ", "), "] forward() returns the shape [",
                               join(result.toTensor().sizes(), ", "), "], and the data need ",
                               num_answers, " answers with a last dimension of ", num_outputs_));
    }
    check_values(outputs);
    return outputs;
  }

  void backward(const torch::Tensor& loss) override {
    try {
      loss.backward();
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      // What LibTorch refuses comes of the file's code, as a change of values that it still needs.
      throw ConfigError(concat("model.path: ", path_, ": the backward pass failed: ",
                               first_line(error.what_without_backtrace())));
    }
  }

  /// The values in the file stay.
  void reset(Random& /*random*/) override {}

  [[nodiscard]] const torch::jit::Module& module() const { return module_; }

  void train(bool on) override {
    Model::train(on);
    module_.train(on);
  }

 private:
  void check_values(const torch::Tensor& outputs) const {
    if (!outputs.is_floating_point()) {
      throw ConfigError(concat("model.path: ", path_, ": forward() returns numbers of the type ",
                               c10::toString(outputs.scalar_type()),
                               "; a loss needs floating point"));
    }
    if (torch::GradMode::is_enabled() && is_training() && !outputs.requires_grad()) {
      throw ConfigError(concat("model.path: ", path_,
                               ": forward() returns outputs that do not depend on the parameters; "
                               "a step needs their gradient"));
    }
  }

  torch::jit::IValue run(torch::Tensor inputs, const std::vector<std::int64_t>& shape) {
    // The optimiser watches the first calls and then runs another graph, whose sums have another
    // order: a run that is continued would not repeat the one that was never stopped.
    const torch::jit::GraphOptimizerEnabledGuard plain(false);
    try {
      return module_.forward({std::move(inputs)});
    } catch (const c10::OutOfMemoryError&) {
      // It may hit this rank alone.
      throw;
    } catch (const std::exception& error) {
      throw ConfigError(concat("model.path: ", path_,
                               ": forward() failed for inputs of the shape [", join(shape, ", "),
                               "]: ", last_line(error)));
    }
  }

  std::string path_;
  std::int64_t num_outputs_;
  torch::jit::Module module_;
};

class TorchScriptFactory : public ModelFactory {
 public:
  explicit TorchScriptFactory(std::string path) : path_(std::move(path)) {}

  [[nodiscard]] std::shared_ptr<Model> make(const SampleShape& shape) const override {
    return load_torchscript(path_, shape);
  }

  [[nodiscard]] std::string warning() const override {
    return concat(path_,
                  " holds code, which this program runs; take such files only from people "
                  "whom you would let run programs here");
  }

 private:
  std::string path_;
};

}  // namespace

std::shared_ptr<Model> load_torchscript(const std::string& path, const SampleShape& shape) {
  return std::make_shared<TorchScriptModel>(path, shape);
}

void save_torchscript(const Model& model, const std::string& path) {
  const auto* script = dynamic_cast<const TorchScriptModel*>(&model);
  if (script == nullptr) throw std::logic_error("save_torchscript: this is no TorchScript model");
  std::ostringstream bytes;
  script->module().save(bytes);
  write_whole_file(path, bytes.str(), /*sync=*/true);
}

std::unique_ptr<const ModelFactory> configure_torchscript(const Options& model) {
  const std::string path = model.read(torchscript::kPath);
  if (path.empty()) model.fail("path", "is empty, allowed: the path of a TorchScript file");
  return std::make_unique<const TorchScriptFactory>(path);
}

}  // namespace gossamer::apps
