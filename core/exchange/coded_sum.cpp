#include "core/exchange/coded_sum.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "base/buffer.hpp"
#include "comm/collectives/add_block.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

constexpr std::int64_t kPart = Codec::kSummandPart;

void copy_bytes(const Block& to, const ConstBlock& from) {
  if (from.bytes() > 0) std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
}

/// Memory on the stack for the values of one part.
struct PartMemory {
  alignas(64) std::array<std::byte, kPart * sizeof(double)> memory;

  Block zeros(std::int64_t numel, DType dtype) {
    const Block block{memory.data(), numel, dtype, {}};
    std::memset(block.data, 0, static_cast<std::size_t>(block.bytes()));
    return block;
  }
};

/// Calls work(first, numel) for the parts of a shard that are encoded by themselves.
template <class Work>
void for_each_part(std::int64_t numel, const Work& work) {
  for (std::int64_t first = 0; first < numel; first += kPart) {
    work(first, std::min(kPart, numel - first));
  }
}

}  // namespace

CodedSum::CodedSum(const Codec& codec, const LaneSpec& spec, int num_ranks)
    : codec_(&codec),
      dtype_(spec.dtype),
      num_ranks_(num_ranks),
      coded_(cut_of(0, spec.num_coded, num_shards())),
      plain_(cut_of(spec.num_coded, spec.numel - spec.num_coded, num_shards())) {}

CodedSum::Cut CodedSum::cut_of(std::int64_t first, std::int64_t numel, int num_shards) {
  return {.first = first, .numel = numel, .shard_numel = (numel + num_shards - 1) / num_shards};
}

PartRange CodedSum::Cut::shard(std::int64_t index) const {
  const std::int64_t begin = std::min(index * shard_numel, numel);
  const std::int64_t end = std::min(begin + shard_numel, numel);
  return {first + begin, first + end};
}

std::int64_t CodedSum::Cut::num_filled() const {
  return shard_numel == 0 ? 0 : (numel + shard_numel - 1) / shard_numel;
}

std::int64_t CodedSum::num_filled() const {
  return std::max(coded_.num_filled(), plain_.num_filled());
}

std::int64_t CodedSum::message_bytes() const {
  return plain_bytes() + codec_->summand_bytes(coded_.shard_numel);
}

std::int64_t CodedSum::message_distance() const {
  return (message_bytes() / Buffer::kAlignment + 1) * Buffer::kAlignment;
}

template <class AnyBlock>
AnyBlock CodedSum::plain_part(const AnyBlock& message, std::int64_t shard) const {
  AnyBlock part = message;
  const PartRange range = plain_.shard(shard);
  part.numel = range.last - range.first;
  part.dtype = dtype_;
  return part;
}

template <class AnyBlock>
AnyBlock CodedSum::coded_part(const AnyBlock& message, std::int64_t first,
                              std::int64_t numel) const {
  return part_of(message, plain_bytes() + codec_->summand_bytes(first),
                 codec_->summand_bytes(numel));
}

void CodedSum::encode(std::int64_t shard, const ConstBlock& whole, const Block& message,
                      SimdPath simd) const {
  const PartRange plain = plain_.shard(shard);
  copy_bytes(plain_part(message, shard), part_of(whole, plain.first, plain.last - plain.first));
  const PartRange coded = coded_.shard(shard);
  const std::int64_t numel = coded.last - coded.first;
  codec_->encode_summand(coded_part(message, 0, numel), part_of(whole, coded.first, numel), simd);
}

void CodedSum::gather(std::span<const ConstBlock> messages, const Block& whole,
                      SimdPath simd) const {
  const Block plain = part_of(whole, plain_.first, plain_.numel);
  const Block coded = part_of(whole, coded_.first, coded_.numel);
  copy_bytes(plain, plain_part(messages.front(), 0));
  std::memset(coded.data, 0, static_cast<std::size_t>(coded.bytes()));
  for (const ConstBlock& message : messages.subspan(1)) add_block(plain, plain_part(message, 0));
  add_part(messages, 0, coded, simd);
}

void CodedSum::add(std::int64_t shard, std::span<const ConstBlock> messages, const Block& result,
                   SimdPath simd) const {
  const Block plain_sum = plain_part(result, shard);
  copy_bytes(plain_sum, plain_part(messages.front(), shard));
  for (const ConstBlock& message : messages.subspan(1)) {
    add_block(plain_sum, plain_part(message, shard));
  }
  PartMemory memory;
  const PartRange coded = coded_.shard(shard);
  for_each_part(coded.last - coded.first, [&](std::int64_t first, std::int64_t numel) {
    const Block sum = memory.zeros(numel, dtype_);
    add_part(messages, first, sum, simd);
    codec_->encode_summand(coded_part(result, first, numel), sum, simd);
  });
}

void CodedSum::add_part(std::span<const ConstBlock> messages, std::int64_t first, const Block& sum,
                        SimdPath simd) const {
  for (const ConstBlock& message : messages) {
    codec_->add_summand(sum, coded_part(message, first, sum.numel), simd);
  }
}

void CodedSum::add_error(const ConstBlock& exact, const ConstBlock& message, std::int64_t first,
                         const Block& to, SimdPath simd) const {
  PartMemory memory;
  const Block said = memory.zeros(to.numel, dtype_);
  codec_->add_summand(said, coded_part(message, first, to.numel), simd);
  mix(to, 1.0, std::array{Inbox{exact, 1.0}, Inbox{said, -1.0}}, simd);
}

void CodedSum::accumulate_residual(std::int64_t shard, const ConstBlock& whole,
                                   const ConstBlock& message, const Block& to,
                                   SimdPath simd) const {
  const PartRange coded = coded_.shard(shard);
  for_each_part(coded.last - coded.first, [&](std::int64_t first, std::int64_t numel) {
    add_error(part_of(whole, coded.first + first, numel), message, first,
              part_of(to, coded.first + first, numel), simd);
  });
}

void CodedSum::accumulate_residual_of_sum(std::int64_t shard, std::span<const ConstBlock> messages,
                                          const ConstBlock& result, const Block& to,
                                          SimdPath simd) const {
  const PartRange coded = coded_.shard(shard);
  PartMemory memory;
  for_each_part(coded.last - coded.first, [&](std::int64_t first, std::int64_t numel) {
    const Block sum = memory.zeros(numel, dtype_);
    add_part(messages, first, sum, simd);
    add_error(sum, result, first, part_of(to, coded.first + first, numel), simd);
  });
}

void CodedSum::decode(std::int64_t shard, const ConstBlock& result, const Block& whole,
                      SimdPath simd) const {
  const PartRange plain = plain_.shard(shard);
  copy_bytes(part_of(whole, plain.first, plain.last - plain.first), plain_part(result, shard));
  const PartRange coded = coded_.shard(shard);
  for_each_part(coded.last - coded.first, [&](std::int64_t first, std::int64_t numel) {
    const Block part = part_of(whole, coded.first + first, numel);
    std::memset(part.data, 0, static_cast<std::size_t>(part.bytes()));
    codec_->add_summand(part, coded_part(result, first, numel), simd);
  });
}

}  // namespace gossamer
