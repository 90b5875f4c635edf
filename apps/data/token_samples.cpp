#include "apps/data/token_samples.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

static_assert(std::endian::native == std::endian::little, "files of tokens are little endian");

std::vector<std::int64_t> ends_of(std::int64_t width, const std::vector<TokenRun>& runs) {
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (const TokenRun& run : runs) {
    end += std::max<std::int64_t>(run.num_tokens - 1, 0) / width;
    ends.push_back(end);
  }
  return ends;
}

std::int64_t last_of(const std::vector<std::int64_t>& ends) {
  return ends.empty() ? 0 : ends.back();
}

std::string needs(std::int64_t width) {
  return concat("a window needs ", width + 1, " (data.context and the token that follows)");
}

}  // namespace

TokenSamples::TokenSamples(std::int64_t width, std::int64_t num_tokens, std::vector<TokenRun> runs)
    : Samples(SampleKind::kTokens, TargetKind::kClasses,
              {.height = 1, .width = width, .num_outputs = num_tokens},
              last_of(ends_of(width, runs))),
      runs_(std::move(runs)),
      ends_(ends_of(width, runs_)) {
  if (size() > 0) return;
  if (runs_.empty()) throw DataError("there are no tokens");
  const TokenRun& run = runs_.front();
  throw DataError(concat(run.file->path(), ": byte ", run.begin, ": ", run.num_tokens,
                         " tokens, but ", needs(width)));
}

void TokenSamples::copy_tokens(std::int64_t index, std::span<std::int64_t> out) const {
  const auto place = std::ranges::upper_bound(ends_, index) - ends_.begin();
  const TokenRun& run = runs_[static_cast<std::size_t>(place)];
  const std::int64_t window = index - (place == 0 ? 0 : ends_[static_cast<std::size_t>(place - 1)]);
  const std::int64_t begin = run.begin + window * shape().width * run.bytes_per_token;
  const std::uint8_t* from = run.file->bytes().data() + begin;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint32_t token = 0;
    std::memcpy(&token, from, static_cast<std::size_t>(run.bytes_per_token));
    from += run.bytes_per_token;
    if (token >= shape().num_outputs) {
      throw DataError(concat(
          run.file->path(), ": byte ", begin + static_cast<std::int64_t>(i) * run.bytes_per_token,
          ": token ", token, " is not below data.vocab_size, which is ", shape().num_outputs));
    }
    out[i] = token;
  }
}

}  // namespace gossamer::apps
