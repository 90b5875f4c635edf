#include <array>
#include <stdexcept>

#include "apps/data/data_options.hpp"
#include "apps/data/dataset.hpp"

namespace gossamer::apps {

// Adding a data set: write its file, declare its function here, add a row.
std::unique_ptr<const DatasetEntry::Loader> configure_arrays(const Options& data);
std::unique_ptr<const DatasetEntry::Loader> configure_cifar10(const Options& data);
std::unique_ptr<const DatasetEntry::Loader> configure_glyphs(const Options& data);
std::unique_ptr<const DatasetEntry::Loader> configure_idx(const Options& data);
std::unique_ptr<const DatasetEntry::Loader> configure_text(const Options& data);
std::unique_ptr<const DatasetEntry::Loader> configure_tokens(const Options& data);

namespace {

constexpr std::array kTable = {
    DatasetEntry{.name = "glyphs",
                 .summary = "digits drawn by the program itself, 28 x 28; needs no files",
                 .options = glyphs::kOptions,
                 .configure = configure_glyphs},
    DatasetEntry{.name = "idx",
                 .summary = "files in the format of MNIST, Fashion-MNIST, EMNIST; plain or gzip",
                 .options = idx::kOptions,
                 .configure = configure_idx},
    DatasetEntry{.name = "text",
                 .summary = "any file, byte by byte; a model predicts the next byte",
                 .options = text::kOptions,
                 .configure = configure_text,
                 .gives = SampleKind::kTokens},
    DatasetEntry{.name = "cifar10",
                 .summary = "the binary files of CIFAR-10",
                 .options = cifar10::kOptions,
                 .configure = configure_cifar10},
    DatasetEntry{.name = "tokens",
                 .summary = "files of tokens as nanoGPT or llm.c write them; mapped, not loaded",
                 .options = tokens::kOptions,
                 .configure = configure_tokens,
                 .gives = SampleKind::kTokens},
    DatasetEntry{.name = "arrays",
                 .summary = "your own images or tables, from .npy files or a safetensors file",
                 .options = arrays::kOptions,
                 .configure = configure_arrays},
};

}  // namespace

void Samples::copy_array(std::int64_t /*index*/, std::span<float> /*out*/) const {
  throw std::logic_error("Samples::copy_array: these samples are no arrays");
}

void Samples::copy_numbers(std::int64_t /*index*/, std::span<float> /*out*/) const {
  throw std::logic_error("Samples::copy_numbers: these samples have no numbers as targets");
}

void Samples::copy_tokens(std::int64_t /*index*/, std::span<std::int64_t> /*out*/) const {
  throw std::logic_error("Samples::copy_tokens: these samples are no tokens");
}

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
