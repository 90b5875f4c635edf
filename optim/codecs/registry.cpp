// The table of codecs: one row for each file of this folder, and one for sending blocks as they
// are.

#include "base/registry.hpp"

#include <array>
#include <stdexcept>

#include "base/error.hpp"
#include "base/text.hpp"
#include "optim/codec.hpp"

namespace gossamer {

const Codec& bf16_codec();
const Codec& fp16_codec();
const Codec& int8_codec();
const Codec& int4_codec();
const Codec& topk_codec();

namespace {

constexpr std::array kCodecs = {
    CodecEntry{.name = "fp32", .summary = "blocks as they are"},
    CodecEntry{.name = "bf16",
               .summary = "half the bytes: 8 significant bits, the range of float32",
               .codec = bf16_codec},
    CodecEntry{.name = "fp16",
               .summary = "half the bytes: 11 significant bits, values up to 65504",
               .codec = fp16_codec},
    CodecEntry{.name = "int8",
               .summary = "a quarter of the bytes: differences in 8 bits, on a grid that all ranks "
                          "agree on; gradients in 8 bits, with a scale for every 1024",
               .codec = int8_codec},
    CodecEntry{.name = "int4",
               .summary = "an eighth of the bytes: as int8, in 4 bits",
               .codec = int4_codec},
    CodecEntry{.name = "topk",
               .summary =
                   "146 times fewer bytes: the 16 largest of every 1024 elements, in 12 bits "
                   "each; for outer steps of all ranks",
               .codec = topk_codec},
};

void require_bytes(const Codec& codec, const ConstBlock& encoded, std::int64_t numel,
                   std::int64_t bytes) {
  require_dtype(encoded.dtype, DType::kUInt8);
  if (encoded.numel == bytes) return;
  throw std::logic_error(
      concat("codec ", codec.name(), ": ", encoded.numel, " bytes for ", numel, " elements"));
}

}  // namespace

std::span<const CodecEntry> codec_table() { return kCodecs; }
std::vector<std::string> codec_names(std::span<const CodecEntry> own) {
  return names_of(with_own(codec_table(), own));
}

const Codec* find_codec(std::string_view name, std::span<const CodecEntry> own) {
  const CodecEntry& entry = row_of(with_own(codec_table(), own), "codec", name);
  return entry.codec == nullptr ? nullptr : &entry.codec();
}

void require_encoded(const MixingCodec& codec, const ConstBlock& encoded, std::int64_t numel) {
  require_bytes(codec, encoded, numel, codec.encoded_bytes(numel));
}

void require_summand(const Codec& codec, const ConstBlock& encoded, std::int64_t numel) {
  require_bytes(codec, encoded, numel, codec.summand_bytes(numel));
}

void require_dtype(DType found, DType wanted) {
  if (found == wanted) return;
  throw std::logic_error(
      concat("codec: a block of ", name_of(found), " instead of ", name_of(wanted)));
}

CodecKernels kernels_of(const Codec& codec) {
  const std::string reason = why_not_on_gpu(codec);
  if (!reason.empty()) throw ConfigError(reason);
  return codec.kernels();
}

std::string why_not_on_gpu(const Codec& codec) {
  if (codec.kernels() != CodecKernels::kNone) return "";
  return concat("the codec ", codec.name(),
                " has no kernels for GPUs, allowed: ", join(codec_names(), ", "),
                "; or train on processors");
}

void require_grain(std::int64_t first) {
  if (first % MixingCodec::kGrain == 0) return;
  throw std::logic_error(concat("codec: a part of an encoded block begins at element ", first));
}

std::int64_t most_coded_members(const MixingCodec& codec) {
  // (n - 1) * encoded < 2 (n - 1) / n * plain
  constexpr std::int64_t kPart = Codec::kSummandPart;
  return (2 * kPart * size_of(DType::kFloat32) - 1) / codec.encoded_bytes(kPart);
}

}  // namespace gossamer
