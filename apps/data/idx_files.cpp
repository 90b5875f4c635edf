#include "apps/data/idx_files.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

namespace fs = std::filesystem;

/// The parts of a name: `train-images-idx3-ubyte.gz` has the stem `train-`, the separator `-`, and
/// is packed.
struct ImagesName {
  std::string stem;
  char separator = '-';
  bool packed = false;
};

std::optional<ImagesName> parse_images_name(std::string_view name) {
  ImagesName result;
  result.packed = name.ends_with(".gz");
  if (result.packed) name.remove_suffix(3);
  for (const char separator : {'-', '.'}) {
    const std::string ending = concat("images", separator, "idx3-ubyte");
    if (!name.ends_with(ending)) continue;
    result.separator = separator;
    result.stem = name.substr(0, name.size() - ending.size());
    return result;
  }
  return std::nullopt;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// The labels file next to an images file; the same spelling is preferred.
fs::path find_labels(const fs::path& images, const ImagesName& name) {
  const char other_separator = name.separator == '-' ? '.' : '-';
  std::vector<std::string> candidates;
  for (const char separator : {name.separator, other_separator}) {
    for (const bool packed : {name.packed, !name.packed}) {
      candidates.push_back(
          concat(name.stem, "labels", separator, "idx1-ubyte", packed ? ".gz" : ""));
      fs::path labels = images.parent_path() / candidates.back();
      if (is_file(labels)) return labels;
    }
  }
  const std::string folder = images.parent_path().string();
  throw DataError(concat(images.string(), ": its labels are missing; looked for ",
                         join(candidates, ", "), " in the folder ", folder.empty() ? "." : folder));
}

IdxPair pair_of(const fs::path& images) {
  const std::optional<ImagesName> name = parse_images_name(images.filename().string());
  if (!name) {
    throw DataError(concat(images.string(),
                           ": cannot tell the name of the labels file from this "
                           "name; an images file is called *images-idx3-ubyte, "
                           "plain or with .gz"));
  }
  return {.images = images, .labels = find_labels(images, *name)};
}

/// The images files of a folder by stem. If a file is there plain and packed, takes the plain one,
/// which is faster to read.
std::map<std::string, fs::path> list_images(const fs::path& folder) {
  using Candidate = std::tuple<bool, char, fs::path>;
  std::map<std::string, Candidate> best;
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const fs::path path = entries->path();
    const std::optional<ImagesName> name = parse_images_name(path.filename().string());
    if (!name || !is_file(path)) continue;
    const Candidate candidate{name->packed, name->separator, path};
    const auto place = best.try_emplace(name->stem, candidate).first;
    if (candidate < place->second) place->second = candidate;
  }
  if (error) throw DataError(concat(folder.string(), ": cannot be listed: ", error.message()));
  std::map<std::string, fs::path> images;
  for (auto& [stem, candidate] : best) images.emplace(stem, std::move(std::get<2>(candidate)));
  return images;
}

/// The stem of the validation files that belong to the training files with `stem`, or nullptr.
const std::string* validation_stem(const std::map<std::string, fs::path>& images,
                                   const std::string& stem) {
  constexpr std::string_view kTrain = "train";
  const std::size_t place = stem.rfind(kTrain);
  if (place == std::string::npos) return nullptr;
  for (const std::string_view part : {"t10k", "test"}) {
    std::string other = stem;
    other.replace(place, kTrain.size(), part);
    const auto found = images.find(other);
    if (found != images.end()) return &found->first;
  }
  return nullptr;
}

IdxFiles find_in_folder(const fs::path& folder) {
  const std::map<std::string, fs::path> images = list_images(folder);
  if (images.empty()) {
    throw DataError(concat(folder.string(),
                           ": the folder holds no images; looked for files called "
                           "train-images-idx3-ubyte, t10k-images-idx3-ubyte or "
                           "*images-idx3-ubyte, plain or with .gz"));
  }
  std::vector<IdxFiles> sets;
  std::vector<std::string> names;
  for (const auto& [stem, path] : images) {
    names.push_back(path.filename().string());
    const std::string* other = validation_stem(images, stem);
    if (other != nullptr) {
      sets.push_back({.train = {.images = path, .labels = {}},
                      .validation = IdxPair{.images = images.at(*other), .labels = {}}});
    }
  }
  if (sets.empty() && images.size() == 1) {
    return {.train = pair_of(images.begin()->second), .validation = std::nullopt};
  }
  if (sets.size() != 1) {
    throw DataError(concat(folder.string(),
                           ": the folder holds several sets of images: ", join(names, ", "),
                           "; give the path of one images file instead of the folder"));
  }
  return {.train = pair_of(sets[0].train.images),
          .validation = pair_of(sets[0].validation->images)};
}

}  // namespace

IdxFiles find_idx_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return find_in_folder(path);
  if (!fs::exists(status)) {
    throw DataError(concat(path.string(),
                           ": there is no such file or folder; looked for a folder with "
                           "*images-idx3-ubyte files, plain or with .gz, or one such file"));
  }
  return {.train = pair_of(path), .validation = std::nullopt};
}

}  // namespace gossamer::apps
