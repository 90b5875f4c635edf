#include "core/torch/step_graph.hpp"

#include <filesystem>
#include <string>
#include <system_error>

#include <dlfcn.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "core/torch/torch_stream.hpp"

namespace gossamer {
namespace {

constexpr const char* kModule = "libgossamer_torch_cuda.so";

/// Where the loader looks, then beside the program, where it was built and where it is installed.
void* load_module(std::string& reason) {
  std::error_code failure;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failure);
  for (const std::filesystem::path& path :
       {std::filesystem::path(kModule), program.parent_path() / kModule,
        std::filesystem::path(GOSSAMER_BUILD_FOLDER) / kModule,
        std::filesystem::path(GOSSAMER_INSTALL_FOLDER) / kModule}) {
    if (void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return module;
    const char* const error = dlerror();
    reason += concat(reason.empty() ? "" : "; ", error == nullptr ? path.string() : error);
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<StepGraph> make_step_graph(Device device) {
  if (device.type == DeviceType::kCpu) {
    throw ConfigError("device.graph: true, but processors have no graphs, allowed: false");
  }
  use_torch_device(device);
  std::string reason;
  // Never unloaded: what it makes may live as long as the program.
  void* const module = load_module(reason);
  if (module == nullptr) {
    throw ConfigError(concat("device.graph: ", kModule, " cannot be loaded (", reason,
                             "), allowed: false, or a build with CUDA that has it beside the "
                             "program"));
  }
  using Make = StepGraph* (*)(int);
  const auto make = reinterpret_cast<Make>(dlsym(module, "gossamer_make_cuda_graph"));
  if (make == nullptr) throw ConfigError(concat(kModule, " is not of this version of gossamer"));
  return std::unique_ptr<StepGraph>(make(device.index));
}

}  // namespace gossamer
