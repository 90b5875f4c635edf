#include "optim/summands.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "optim/block_update.hpp"
#include "optim/cuda/summands.hpp"

namespace gossamer {
namespace {

constexpr std::int64_t kPart = Codec::kSummandPart;

/// Memory on the stack for the values of one part.
struct PartMemory {
  alignas(64) std::array<std::byte, kPart * sizeof(double)> memory;

  Block zeros(std::int64_t numel, DType dtype) {
    const Block block{memory.data(), numel, dtype, {}};
    std::memset(block.data, 0, static_cast<std::size_t>(block.bytes()));
    return block;
  }
};

/// The encoded form of the elements [first, first + numel) of a message.
template <class AnyBlock>
AnyBlock summand_part(const Codec& codec, const AnyBlock& message, std::int64_t first,
                      std::int64_t numel) {
  return part_of(message, codec.summand_bytes(first), codec.summand_bytes(numel));
}

void add_messages(const SummandWork& work, std::int64_t first, const Block& sum, SimdPath simd) {
  for (std::int64_t i = 0; i < work.messages.count; ++i) {
    work.codec.add_summand(sum, summand_part(work.codec, work.messages.at(i), first, sum.numel),
                           simd);
  }
}

/// residual += values - decoded(said), from element `first` of the block on.
void add_residual(const SummandWork& work, std::int64_t first, const ConstBlock& values,
                  SimdPath simd) {
  PartMemory memory;
  const Block said = memory.zeros(values.numel, work.dtype);
  work.codec.add_summand(said, summand_part(work.codec, work.said, first, said.numel), simd);
  mix(part_of(work.residual, first, said.numel), 1.0,
      std::array{Inbox{values, 1.0}, Inbox{said, -1.0}}, {}, simd);
}

/// The values of a part. A sum of messages stands in the plain block if it goes there, else in
/// `memory`.
ConstBlock values_of_part(const SummandWork& work, std::int64_t first, std::int64_t numel,
                          PartMemory& memory, SimdPath simd) {
  if (work.values.data != nullptr) return part_of(work.values, first, numel);
  Block sum = memory.zeros(numel, work.dtype);
  if (work.plain.data != nullptr) {
    sum = part_of(work.plain, first, numel);
    std::memset(sum.data, 0, static_cast<std::size_t>(sum.bytes()));
  }
  add_messages(work, first, sum, simd);
  return sum;
}

void work_on_part(const SummandWork& work, std::int64_t first, std::int64_t numel, SimdPath simd) {
  PartMemory memory;
  const ConstBlock values = values_of_part(work, first, numel, memory, simd);
  if (work.plain.data != nullptr && work.values.data != nullptr) {
    std::memcpy(part_of(work.plain, first, numel).data, values.data,
                static_cast<std::size_t>(values.bytes()));
  }
  if (work.message.data != nullptr) {
    work.codec.encode_summand(summand_part(work.codec, work.message, first, numel), values, simd);
  }
  if (work.residual.data != nullptr) add_residual(work, first, values, simd);
}

void check(const SummandWork& work) {
  const auto fits = [&work](const ConstBlock& block) {
    return block.data == nullptr || (block.numel == work.numel && block.dtype == work.dtype);
  };
  const auto is_message = [&work](const ConstBlock& block) {
    if (block.data != nullptr) require_summand(work.codec, block, work.numel);
  };
  is_message(work.messages.first);
  is_message(work.message);
  is_message(work.said);
  const bool has_values = (work.values.data != nullptr) != (work.messages.count > 0);
  const int num_places = (work.message.data != nullptr ? 1 : 0) +
                         (work.plain.data != nullptr ? 1 : 0) +
                         (work.residual.data != nullptr ? 1 : 0);
  if (!fits(work.values) || !fits(work.plain) || !fits(work.residual) || !has_values ||
      num_places != 1 || (work.residual.data != nullptr) != (work.said.data != nullptr)) {
    throw std::logic_error("enqueue_summands: blocks that do not fit");
  }
}

}  // namespace

void enqueue_summands(Stream& stream, const SummandWork& work, SimdPath simd) {
  if (work.numel == 0) return;
  check(work);
  if (!stream.on_host()) return cuda_summands(stream, work);
  stream.run([work, simd] {
    for (std::int64_t first = 0; first < work.numel; first += kPart) {
      work_on_part(work, first, std::min(kPart, work.numel - first), simd);
    }
  });
}

}  // namespace gossamer
