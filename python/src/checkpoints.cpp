#include "python/src/checkpoints.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/checkpoint/average.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/safetensors.hpp"
#include "core/checkpoint/sha256.hpp"
#include "core/checkpoint/whole_file.hpp"

namespace gossamer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// The bytes of a file, and its SHA-256.
using Digest = std::pair<std::int64_t, std::string>;

Digest given(const FileDigest& digest) { return {digest.num_bytes, digest.sha256}; }

void write_manifest_of(const std::string& folder, std::int64_t step, int world_size,
                       const std::vector<std::int64_t>& members,
                       const std::map<std::string, Digest>& files) {
  Manifest manifest{.step = step, .world_size = world_size, .members = members};
  for (const auto& [name, digest] : files) {
    manifest.files[name] = {.num_bytes = digest.first, .sha256 = digest.second};
  }
  write_manifest(folder, manifest);
}

}  // namespace

void add_checkpoints(nb::module_& module) {
  using Free = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<PySnapshot>(module, "Snapshot")
      .def(
          "write",
          [](const PySnapshot& snapshot, const std::string& path) {
            return given(snapshot.state().write(path));
          },
          "path"_a, Free(), "Write the file, and return its bytes and its SHA-256.");
  nb::class_<Manifest>(module, "Manifest")
      .def_ro("step", &Manifest::step)
      .def_ro("world_size", &Manifest::world_size)
      .def_prop_ro("files", [](const Manifest& manifest) {
        std::vector<std::string> names;
        for (const auto& [name, digest] : manifest.files) names.push_back(name);
        return names;
      });
  module.def("write_manifest", &write_manifest_of, "folder"_a, "step"_a, "world_size"_a,
             "members"_a, "files"_a, Free());
  module.def(
      "verify_checkpoint", &verify_checkpoint, "folder"_a, Free(),
      "Read all files of a checkpoint. Raise CheckpointError if one is not as it was written.");
  module.def("list_checkpoints", &list_checkpoints, "folder"_a, Free(),
             "Return the checkpoints of a folder, oldest first.");
  module.def("checkpoint_name", &checkpoint_name, "step"_a);
  module.def("rank_file_name", &rank_file_name, "rank"_a);
  module.def(
      "digest_of_file", [](const std::string& path) { return given(digest_of_file(path)); },
      "path"_a, Free());
  module.def(
      "read_bytes",
      [](const std::string& path, const std::string& name) -> std::optional<nb::bytes> {
        const SafetensorsFile file(path);
        const TensorEntry* tensor = file.find(name);
        if (tensor == nullptr) return std::nullopt;
        std::string bytes(static_cast<std::size_t>(tensor->num_bytes()), '\0');
        file.read(*tensor, bytes.data());
        return nb::bytes(bytes.data(), bytes.size());
      },
      "path"_a, "name"_a, "Return the bytes of a tensor in a safetensors file; None: not there.");
  module.def("sync_folder", &sync_folder, "folder"_a, Free());
  module.def("write_average", &write_average, "checkpoint"_a, "num_ranks"_a, "path"_a, Free(),
             "Write the mean of the ranks' states, in the form of a rank's file.");
}

}  // namespace gossamer::python
