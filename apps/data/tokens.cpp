// The data set `tokens`: files of numbers that a tokenizer has written. Without a header, as
// nanoGPT's prepare.py writes them (uint16), or with the header of llm.c: 256 integers of 4 bytes,
// which begin with a magic number, a version and the number of tokens (uint16 for GPT-2's
// tokenizer, uint32 for that of Llama 3).
// Sources: https://github.com/karpathy/nanoGPT, https://github.com/karpathy/llm.c (dev/data).

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "apps/data/data_options.hpp"
#include "apps/data/dataset.hpp"
#include "apps/data/token_samples.hpp"
#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {

std::unique_ptr<const DatasetEntry::Loader> configure_tokens(const Options& data);

namespace {

namespace fs = std::filesystem;

struct Header {
  std::int32_t magic;
  std::int32_t version;
  int bytes_per_token;
};
constexpr std::array kHeaders = {
    Header{.magic = 20240520, .version = 1, .bytes_per_token = 2},
    Header{.magic = 20240801, .version = 7, .bytes_per_token = 4},
};
constexpr std::int64_t kHeaderBytes = 256 * 4;
constexpr std::string_view kTrain = "train";
constexpr std::string_view kValidation = "val";

std::int32_t integer_at(const MappedFile& file, std::size_t place) {
  std::int32_t value = 0;
  std::memcpy(&value, file.bytes().data() + 4 * place, sizeof(value));
  return value;
}

/// The tokens after a header of llm.c.
TokenRun run_after(const Header& header, std::shared_ptr<const MappedFile> file) {
  const std::int64_t num_tokens = integer_at(*file, 2);
  const std::int64_t follow = std::ssize(file->bytes()) - kHeaderBytes;
  if (integer_at(*file, 1) != header.version) {
    throw DataError(concat(file->path(), ": byte 4: version ", integer_at(*file, 1),
                           ", allowed: ", header.version));
  }
  if (num_tokens < 0 || num_tokens * header.bytes_per_token != follow) {
    throw DataError(concat(file->path(), ": byte 8: ", num_tokens, " tokens of ",
                           header.bytes_per_token, " bytes, but ", follow,
                           " bytes follow the header; the file was cut off or damaged"));
  }
  return {.file = std::move(file),
          .begin = kHeaderBytes,
          .num_tokens = num_tokens,
          .bytes_per_token = header.bytes_per_token};
}

TokenRun open_run(const fs::path& path) {
  auto file = std::make_shared<const MappedFile>(path.string());
  const auto size = std::ssize(file->bytes());
  if (size >= kHeaderBytes) {
    for (const Header& header : kHeaders) {
      if (integer_at(*file, 0) == header.magic) return run_after(header, std::move(file));
    }
  }
  if (size % 2 != 0) {
    throw DataError(concat(path.string(), ": byte ", size - 1, ": the file has ", size,
                           " bytes, and tokens of 2 bytes need an even number"));
  }
  return {.file = std::move(file), .num_tokens = size / 2, .bytes_per_token = 2};
}

/// The files of a folder whose names contain `word` and end in .bin, by name.
std::vector<TokenRun> open_runs(const std::string& folder, std::string_view word) {
  std::vector<fs::path> paths;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".bin") || name.find(word) == name.npos) continue;
    if (name.find(kTrain) != name.npos && name.find(kValidation) != name.npos) {
      throw DataError(concat(entry.path().string(), ": the name contains `", kTrain, "` and `",
                             kValidation, "`, so it is unclear what the file is for; rename it"));
    }
    paths.push_back(entry.path());
  }
  if (failure) throw DataError(concat(folder, ": ", failure.message()));
  if (paths.empty()) {
    throw DataError(concat(folder, ": has no file whose name contains `", word,
                           "` and ends in .bin, as ", word, ".bin"));
  }
  std::ranges::sort(paths);
  std::vector<TokenRun> runs;
  runs.reserve(paths.size());
  for (const fs::path& path : paths) runs.push_back(open_run(path));
  return runs;
}

/// Cuts the last tenth off.
std::pair<TokenRun, TokenRun> split(const TokenRun& run) {
  TokenRun train = run;
  TokenRun validation = run;
  train.num_tokens = run.num_tokens * 9 / 10;
  validation.num_tokens -= train.num_tokens;
  validation.begin += train.num_tokens * run.bytes_per_token;
  return {train, validation};
}

class Tokens : public DatasetEntry::Loader {
 public:
  explicit Tokens(const Options& data)
      : path_(data.read(tokens::kPath)),
        context_(data.read(tokens::kContext)),
        vocab_size_(data.read(tokens::kVocabSize)) {
    if (path_.empty()) data.fail("path", "is empty, allowed: a folder, or a file of tokens");
  }

  [[nodiscard]] Dataset load(std::uint64_t /*seed*/) const override {
    if (fs::is_directory(path_)) {
      return {.train = windows(open_runs(path_, kTrain)),
              .validation = windows(open_runs(path_, kValidation))};
    }
    const auto [train, validation] = split(open_run(path_));
    return {.train = windows({train}), .validation = windows({validation})};
  }

 private:
  [[nodiscard]] std::shared_ptr<const Samples> windows(std::vector<TokenRun> runs) const {
    return std::make_shared<const TokenSamples>(context_, vocab_size_, std::move(runs));
  }

  std::string path_;
  std::int64_t context_;
  std::int64_t vocab_size_;
};

}  // namespace

std::unique_ptr<const DatasetEntry::Loader> configure_tokens(const Options& data) {
  return std::make_unique<const Tokens>(data);
}

}  // namespace gossamer::apps
