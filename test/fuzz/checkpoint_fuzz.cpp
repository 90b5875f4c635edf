// Fuzzes the readers of checkpoints: whatever bytes a file holds, reading it ends with
// CheckpointError or with tensors that lie in the file. scripts/fuzz.sh builds and runs it.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/error.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace {

const std::string& folder() {
  static const std::string path = [] {
    std::string name = "/tmp/gossamer_fuzz_" + std::to_string(getpid());
    std::filesystem::create_directories(name);
    return name;
  }();
  return path;
}

std::string write(const char* name, const std::uint8_t* bytes, std::size_t count) {
  const std::string path = folder() + "/" + name;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes, 1, count, file) != count) std::abort();
  std::fclose(file);
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  try {
    const gossamer::SafetensorsFile file(write("x.safetensors", bytes, count));
    for (const gossamer::TensorEntry& tensor : file.tensors()) {
      std::vector<char> values(static_cast<std::size_t>(tensor.num_bytes()));
      file.read(tensor, values.data());
    }
  } catch (const gossamer::CheckpointError&) {
  }
  try {
    write(gossamer::kManifestName, bytes, count);
    for (const auto& [name, file] : gossamer::read_manifest(folder()).files) {
      if (name.find('/') != std::string::npos) std::abort();
    }
  } catch (const gossamer::CheckpointError&) {
  }
  return 0;
}
