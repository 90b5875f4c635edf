#pragma once
// Finds the files of a data set in IDX format by their names. Images are in `*images-idx3-ubyte`,
// labels in `*labels-idx1-ubyte`; each may end with `.gz`, and the spelling `images.idx3-ubyte`
// also counts. The search looks at names only and opens no file. Safe from any thread.

#include <filesystem>
#include <optional>

namespace gossamer::apps {

struct IdxPair {
  std::filesystem::path images;
  std::filesystem::path labels;
};

struct IdxFiles {
  IdxPair train;
  /// The second pair; nothing when one pair of files serves both training and validation.
  std::optional<IdxPair> validation;
};

/// `path` is an images file or a folder. In a folder, `train-*` and `t10k-*` belong together, and
/// so do names that differ only in `train` and `test` (EMNIST). A single pair may have any name.
/// Throws DataError when files are missing (the message lists the names it looked for), and when
/// the folder holds several data sets.
IdxFiles find_idx_files(const std::filesystem::path& path);

}  // namespace gossamer::apps
