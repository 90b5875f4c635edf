#include "base/registry.hpp"

#include <array>

#include "apps/data/dataset.hpp"

namespace gossamer::apps {

// Adding a data set: write its file, declare its function here, add a row.
std::unique_ptr<const DatasetEntry::Loader> configure_glyphs(const Options& data);
std::unique_ptr<const DatasetEntry::Loader> configure_idx(const Options& data);
std::unique_ptr<const DatasetEntry::Loader> configure_text(const Options& data);

namespace {

constexpr std::array kTable = {
    DatasetEntry{.name = "glyphs",
                 .summary = "digits drawn by the program itself, 28 x 28; needs no files",
                 .configure = configure_glyphs},
    DatasetEntry{.name = "idx",
                 .summary = "files in the format of MNIST, Fashion-MNIST, EMNIST; plain or gzip",
                 .configure = configure_idx},
    DatasetEntry{.name = "text",
                 .summary = "any file, byte by byte; tells the next byte",
                 .configure = configure_text,
                 .gives = SampleKind::kTokens},
};

}  // namespace

std::span<const DatasetEntry> dataset_table() { return kTable; }

std::vector<std::string> dataset_names() { return names_of(kTable); }

const DatasetEntry& find_dataset(const std::string& name) {
  return row_of(kTable, "data set", name);
}

std::unique_ptr<const DatasetEntry::Loader> configure_dataset(const std::string& name,
                                                              const Options& data) {
  return find_dataset(name).configure(data);
}

}  // namespace gossamer::apps
