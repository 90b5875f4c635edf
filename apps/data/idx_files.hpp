#pragma once
// Which files a data set in IDX format consists of, told by their names: images in
// `*images-idx3-ubyte`, labels in `*labels-idx1-ubyte`, each plain or with `.gz`, and also in the
// spelling `images.idx3-ubyte`. Only looks at names; opens nothing. Safe from any thread.

#include <filesystem>
#include <optional>

namespace gossamer::apps {

struct IdxPair {
  std::filesystem::path images;
  std::filesystem::path labels;
};

struct IdxFiles {
  IdxPair train;
  /// Nothing when one pair of files serves both, training and validation.
  std::optional<IdxPair> validation;
};

/// `path` is an images file or a folder. In a folder `train-*` and `t10k-*` belong together, as do
/// names that differ in `train` and `test` (EMNIST); a single pair is taken whatever its name.
/// Throws DataError when files are missing, with the names looked for, and when the folder holds
/// several data sets.
IdxFiles find_idx_files(const std::filesystem::path& path);

}  // namespace gossamer::apps
