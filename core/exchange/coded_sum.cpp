#include "core/exchange/coded_sum.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/buffer.hpp"
#include "optim/block_update.hpp"

namespace gossamer {

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
  part.numel = numel_of(plain_, shard);
  part.dtype = dtype_;
  return part;
}

template <class AnyBlock>
AnyBlock CodedSum::coded_part(const AnyBlock& message, std::int64_t shard) const {
  return part_of(message, plain_bytes(), codec_->summand_bytes(numel_of(coded_, shard)));
}

template <class AnyBlock>
AnyBlock CodedSum::shard_of(const Cut& cut, std::int64_t shard, const AnyBlock& whole) const {
  return part_of(whole, cut.shard(shard).first, numel_of(cut, shard));
}

SummandWork CodedSum::work_on(std::int64_t shard) const {
  return {.codec = *codec_, .dtype = dtype_, .numel = numel_of(coded_, shard)};
}

SummandRow CodedSum::coded_row(const SummandRow& messages, std::int64_t shard) const {
  return {coded_part(messages.first, shard), messages.distance, messages.count};
}

void CodedSum::encode(Stream& stream, std::int64_t shard, const ConstBlock& whole,
                      const Block& message, SimdPath simd) const {
  stream.copy(plain_part(message, shard), shard_of(plain_, shard, whole));
  SummandWork work = work_on(shard);
  work.values = shard_of(coded_, shard, whole);
  work.message = coded_part(message, shard);
  enqueue_summands(stream, work, simd);
}

void CodedSum::gather(Stream& stream, const SummandRow& messages, const Block& whole,
                      SimdPath simd) const {
  add_plain(stream, 0, messages, shard_of(plain_, 0, whole), simd);
  SummandWork work = work_on(0);
  work.messages = coded_row(messages, 0);
  work.plain = shard_of(coded_, 0, whole);
  enqueue_summands(stream, work, simd);
}

void CodedSum::add(Stream& stream, std::int64_t shard, const SummandRow& messages,
                   const Block& result, SimdPath simd) const {
  add_plain(stream, shard, messages, plain_part(result, shard), simd);
  SummandWork work = work_on(shard);
  work.messages = coded_row(messages, shard);
  work.message = coded_part(result, shard);
  enqueue_summands(stream, work, simd);
}

void CodedSum::add_plain(Stream& stream, std::int64_t shard, const SummandRow& messages,
                         const Block& to, SimdPath simd) const {
  if (to.numel == 0) return;
  stream.copy(to, plain_part(messages.first, shard));
  std::vector<Inbox> others;
  for (std::int64_t i = 1; i < messages.count; ++i) {
    others.push_back({plain_part(messages.at(i), shard), 1.0});
  }
  enqueue_mix(stream, to, 1.0, std::move(others), {}, simd);
}

void CodedSum::accumulate_residual(Stream& stream, std::int64_t shard, const ConstBlock& whole,
                                   const ConstBlock& message, const Block& to,
                                   SimdPath simd) const {
  SummandWork work = work_on(shard);
  work.values = shard_of(coded_, shard, whole);
  work.residual = shard_of(coded_, shard, to);
  work.said = coded_part(message, shard);
  enqueue_summands(stream, work, simd);
}

void CodedSum::accumulate_residual_of_sum(Stream& stream, std::int64_t shard,
                                          const SummandRow& messages, const ConstBlock& result,
                                          const Block& to, SimdPath simd) const {
  SummandWork work = work_on(shard);
  work.messages = coded_row(messages, shard);
  work.residual = shard_of(coded_, shard, to);
  work.said = coded_part(result, shard);
  enqueue_summands(stream, work, simd);
}

void CodedSum::decode(Stream& stream, std::int64_t shard, const ConstBlock& result,
                      const Block& whole, SimdPath simd) const {
  stream.copy(shard_of(plain_, shard, whole), plain_part(result, shard));
  SummandWork work = work_on(shard);
  work.messages = {coded_part(result, shard), 0, 1};
  work.plain = shard_of(coded_, shard, whole);
  enqueue_summands(stream, work, simd);
}

}  // namespace gossamer
