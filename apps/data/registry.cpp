#include <array>

#include "gossamer/apps/data/dataset.hpp"
#include "gossamer/core/base/error.hpp"
#include "gossamer/core/base/text.hpp"

namespace gossamer::apps {

// Adding a data set: write its file, declare its function here, add a row.
std::unique_ptr<const DatasetEntry::Loader> configure_glyphs(const Options& data);
std::unique_ptr<const DatasetEntry::Loader> configure_idx(const Options& data);

namespace {

constexpr std::array kTable = {
    DatasetEntry{.name = "glyphs",
                 .summary = "digits drawn by the program itself, 28 x 28; needs no files",
                 .configure = configure_glyphs},
    DatasetEntry{.name = "idx",
                 .summary = "files in the format of MNIST, Fashion-MNIST, EMNIST; plain or gzip",
                 .configure = configure_idx},
};

}  // namespace

std::span<const DatasetEntry> dataset_table() { return kTable; }

std::vector<std::string> dataset_names() {
  std::vector<std::string> names;
  names.reserve(kTable.size());
  for (const DatasetEntry& entry : kTable) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<const DatasetEntry::Loader> configure_dataset(const std::string& name,
                                                              const Options& data) {
  for (const DatasetEntry& entry : kTable) {
    if (canonical_name(name) == canonical_name(entry.name)) return entry.configure(data);
  }
  const std::vector<std::string> names = dataset_names();
  throw ConfigError(concat("there is no data set ", name, did_you_mean(canonical_name(name), names),
                           ", allowed: ", join(names, ", ")));
}

}  // namespace gossamer::apps
