// Fuzzes the readers of checkpoints, of runs' folders and of timelines. Whatever bytes a file
// holds, reading a checkpoint ends with CheckpointError or with tensors that lie in the file, and
// reading a run or drawing a timeline ends with what could be read. scripts/fuzz.sh builds and runs
// it.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include "apps/records/run_record.hpp"
#include "apps/records/timeline_picture.hpp"
#include "base/error.hpp"
#include "base/text.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"

namespace {

/// All readers' files are one file of many names, which is written once for each input.
constexpr const char* kInput = "x.safetensors";

std::string write(const std::string& folder, const char* name, const void* bytes,
                  std::size_t count) {
  const std::string path = folder + "/" + name;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(bytes, 1, count, file) != count) std::abort();
  std::fclose(file);
  return path;
}

const std::string& folder() {
  static const std::string path = [] {
    std::string name = "/tmp/gossamer_fuzz_" + std::to_string(getpid());
    std::filesystem::remove_all(name);
    std::filesystem::create_directories(name);
    const std::string config = "log: {timeline: trace.json}\n";
    write(name, "config.yaml", config.data(), config.size());
    const std::string input = write(name, kInput, "", 0);
    for (const char* const other : {gossamer::kManifestName, "status.json", "environment.json",
                                    "metrics.jsonl", "trace.json"}) {
      std::filesystem::create_hard_link(input, name + "/" + other);
    }
    return name;
  }();
  return path;
}

/// Reads the input as every file of a run, and as a timeline.
void read_run() {
  const gossamer::apps::RunRecord run = gossamer::apps::read_run(folder());
  for (const char* const key : {"state", "step", "message", "faults"}) {
    for (const char c : gossamer::visible(gossamer::apps::text_in(run.status, key))) {
      if (c == '\x1b') std::abort();
    }
    static_cast<void>(gossamer::apps::number_in(run.status, key));
  }
  static_cast<void>(
      gossamer::apps::timeline_svg(gossamer::apps::read_trace(folder() + "/trace.json"), "t"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  try {
    const gossamer::SafetensorsFile file(write(folder(), kInput, bytes, count));
    for (const gossamer::TensorEntry& tensor : file.tensors()) {
      std::vector<char> values(static_cast<std::size_t>(tensor.num_bytes()));
      file.read(tensor, values.data());
    }
  } catch (const gossamer::CheckpointError&) {
  }
  try {
    const gossamer::Manifest manifest = gossamer::read_manifest(folder());
    if (manifest.step < 0 || manifest.world_size < 1) std::abort();
    for (const auto& [name, file] : manifest.files) {
      if (name.find('/') != std::string::npos) std::abort();
    }
  } catch (const gossamer::CheckpointError&) {
  }
  read_run();
  return 0;
}
