#include "gossamer/core/base/registry.hpp"

#include <array>

#include "gossamer/apps/data/dataset.hpp"

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

std::vector<std::string> dataset_names() { return names_of(kTable); }

std::unique_ptr<const DatasetEntry::Loader> configure_dataset(const std::string& name,
                                                              const Options& data) {
  return row_of(kTable, "data set", name).configure(data);
}

}  // namespace gossamer::apps
