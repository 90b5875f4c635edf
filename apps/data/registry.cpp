#include <array>
#include <stdexcept>

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

constexpr std::array kGlyphs = {
    OptionEntry{"train_size", "training images; an integer from 1 to 10000000, default 8192"},
    OptionEntry{"val_size", "validation images; an integer from 1 to 10000000, default 2048"},
    OptionEntry{"noise",
                "standard deviation of the noise on every pixel; a number >= 0 and <= 1, default "
                "0.25"},
};
constexpr std::array kIdx = {
    OptionEntry{"path",
                "a folder with images and labels files, or an images file; text, must be given"},
    OptionEntry{"train_range",
                "images that train; [first, last) with 0 <= first < last, default null: the "
                "training file, or the first 5/6 of the only one"},
    OptionEntry{"val_range",
                "images that validate; [first, last) with 0 <= first < last, default null: the "
                "t10k file, or the last 1/6 of the only one"},
};
constexpr std::array kText = {
    OptionEntry{"path", "the file; text, must be given"},
    OptionEntry{"context", "bytes in a window; an integer from 1 to 65536, default 128"},
    OptionEntry{"train_range",
                "bytes that train; [first, last) with 0 <= first < last, default null: the first "
                "9/10"},
    OptionEntry{"val_range",
                "bytes that validate; [first, last) with 0 <= first < last, default null: the last "
                "1/10"},
};
constexpr std::array kCifar10 = {
    OptionEntry{"path",
                "the folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin; text, must "
                "be given"},
};
constexpr std::array kTokens = {
    OptionEntry{
        "path",
        "a folder with .bin files whose names contain train or val, or one file, whose last "
        "tenth validates; text, must be given"},
    OptionEntry{"context", "tokens in a window; an integer from 1 to 65536, default 128"},
    OptionEntry{"vocab_size",
                "number of different tokens; an integer from 1 to 10000000, default 50257"},
};
constexpr std::array kArrays = {
    OptionEntry{"path",
                "a folder with train_inputs.npy, train_targets.npy, val_inputs.npy and "
                "val_targets.npy, or a safetensors file with tensors of these names; without the "
                "last two the last tenth validates; text, must be given"},
    OptionEntry{"num_classes",
                "number of classes; an integer from 1 to 10000000, default null: the largest "
                "class of the targets and one more"},
};

constexpr std::array kTable = {
    DatasetEntry{.name = "glyphs",
                 .summary = "digits drawn by the program itself, 28 x 28; needs no files",
                 .options = kGlyphs,
                 .configure = configure_glyphs},
    DatasetEntry{.name = "idx",
                 .summary = "files in the format of MNIST, Fashion-MNIST, EMNIST; plain or gzip",
                 .options = kIdx,
                 .configure = configure_idx},
    DatasetEntry{.name = "text",
                 .summary = "any file, byte by byte; a model predicts the next byte",
                 .options = kText,
                 .configure = configure_text,
                 .gives = SampleKind::kTokens},
    DatasetEntry{.name = "cifar10",
                 .summary = "the binary files of CIFAR-10",
                 .options = kCifar10,
                 .configure = configure_cifar10},
    DatasetEntry{.name = "tokens",
                 .summary = "files of tokens as nanoGPT or llm.c write them; mapped, not loaded",
                 .options = kTokens,
                 .configure = configure_tokens,
                 .gives = SampleKind::kTokens},
    DatasetEntry{.name = "arrays",
                 .summary = "your own images or tables, from .npy files or a safetensors file",
                 .options = kArrays,
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
