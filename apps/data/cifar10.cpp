// The data set `cifar10`: images of 3 x 32 x 32 pixels in the binary files of CIFAR-10
// (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009). A record is one byte
// with the class, then the red, the green and the blue pixels, row by row.

#include <array>
#include <filesystem>
#include <optional>

#include "apps/data/array_samples.hpp"
#include "apps/data/data_options.hpp"
#include "apps/data/dataset.hpp"
#include "apps/data/mapped_file.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

std::unique_ptr<const DatasetEntry::Loader> configure_cifar10(const Options& data);

namespace {

constexpr SampleShape kCifarShape = {.height = 32, .width = 32, .num_outputs = 10, .channels = 3};
constexpr std::array kTrainFiles = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                    "data_batch_4.bin", "data_batch_5.bin"};
constexpr std::array kTestFiles = {"test_batch.bin"};

void append_records(const std::string& path, ArraySamples::Content& content,
                    std::vector<std::uint8_t>& pixels) {
  const MappedFile file(path);
  const std::int64_t record = 1 + kCifarShape.numel();
  const auto size = std::ssize(file.bytes());
  if (size == 0 || size % record != 0) {
    throw DataError(concat(path, ": byte ", size - size % record, ": the file has ", size,
                           " bytes, and must have a multiple of ", record,
                           " (a class and an image each); it was cut off, or is another file"));
  }
  for (std::int64_t begin = 0; begin < size; begin += record) {
    const auto bytes =
        file.bytes().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(record));
    if (bytes[0] >= kCifarShape.num_outputs) {
      throw DataError(concat(path, ": byte ", begin, ": class ", int{bytes[0]},
                             ", allowed: 0 to 9; the file is damaged, or is not of CIFAR-10"));
    }
    content.labels.push_back(bytes[0]);
    pixels.insert(pixels.end(), bytes.begin() + 1, bytes.end());
  }
}

std::shared_ptr<const Samples> read_all(const std::string& folder,
                                        std::span<const char* const> names) {
  ArraySamples::Content content;
  std::vector<std::uint8_t> pixels;
  for (const char* name : names) {
    append_records((std::filesystem::path(folder) / name).string(), content, pixels);
  }
  const auto size = std::ssize(content.labels);
  content.values = std::move(pixels);
  return std::make_shared<const ArraySamples>(kCifarShape, size, std::move(content));
}

class Cifar10 : public DatasetEntry::Loader {
 public:
  explicit Cifar10(const Options& data) : path_(data.read(cifar10::kPath)) {
    if (path_.empty()) data.fail("path", "is empty, allowed: the folder of the binary files");
  }

  [[nodiscard]] Dataset load(std::uint64_t /*seed*/) const override {
    return {.train = read_all(path_, kTrainFiles), .validation = read_all(path_, kTestFiles)};
  }

 private:
  std::string path_;
};

}  // namespace

std::unique_ptr<const DatasetEntry::Loader> configure_cifar10(const Options& data) {
  return std::make_unique<const Cifar10>(data);
}

}  // namespace gossamer::apps
