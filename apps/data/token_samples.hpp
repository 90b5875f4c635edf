#pragma once
// Samples that are windows of texts in mapped files.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "apps/data/dataset.hpp"
#include "apps/data/mapped_file.hpp"

namespace gossamer::apps {

/// A run of tokens in a file. Tokens are unsigned, little endian, of 1, 2 or 4 bytes.
struct TokenRun {
  std::shared_ptr<const MappedFile> file;
  /// The first byte of the first token.
  std::int64_t begin = 0;
  std::int64_t num_tokens = 0;
  int bytes_per_token = 1;
};

/// Window i of a run begins at token i * width, and has the token after it as well. No window goes
/// from one run to the next. Immutable; any thread may read.
class TokenSamples final : public Samples {
 public:
  /// `num_tokens` is the number of different tokens. Throws DataError if no run has a window.
  TokenSamples(std::int64_t width, std::int64_t num_tokens, std::vector<TokenRun> runs);

  /// Throws DataError with the place of a token that is not below the number of tokens.
  void copy_tokens(std::int64_t index, std::span<std::int64_t> out) const override;

 private:
  std::vector<TokenRun> runs_;
  /// The number of windows in each run and all runs before it.
  std::vector<std::int64_t> ends_;
};

}  // namespace gossamer::apps
