#pragma once
// A checkpoint is a folder with one file of state per rank, the mean model, and manifest.json. The
// manifest is written last and holds size and SHA-256 of every file, so a checkpoint without a
// manifest is not a checkpoint.
//
// Errors: CheckpointError with the path.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/sha256.hpp"

namespace gossamer {

struct Manifest {
  /// Steps that are done.
  std::int64_t step = 0;
  int world_size = 0;
  /// The members by their ranks, in a run that goes on when ranks die; else empty.
  std::vector<std::int64_t> members = {};
  /// The values that a resumed run must share with the saved run, by key of the configuration.
  std::map<std::string, std::string> run = {};
  /// The files by their names in the folder.
  std::map<std::string, FileDigest> files = {};
};

/// `rank-00003.safetensors`.
std::string rank_file_name(int rank);
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kMeanModelName = "model.safetensors";
/// The best model so far; not every checkpoint has one.
inline constexpr const char* kBestModelName = "model_best.safetensors";

/// Writes the manifest of a folder (WholeFile).
void write_manifest(const std::string& folder, const Manifest& manifest);
/// Reads the manifest of a folder, and checks its form: names of files in this folder alone, and a
/// file for every rank.
Manifest read_manifest(const std::string& folder);
/// Compares size and SHA-256 of every file with the manifest. Opens every safetensors file, too.
Manifest verify_checkpoint(const std::string& folder);

/// `step-000000200`.
std::string checkpoint_name(std::int64_t step);
/// The folders of checkpoints in a folder of runs, oldest first. Does not verify them. Throws if
/// the folder is there and cannot be read.
std::vector<std::string> list_checkpoints(const std::string& folder);

}  // namespace gossamer
