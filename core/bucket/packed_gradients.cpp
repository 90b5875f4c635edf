#include "core/bucket/packed_gradients.hpp"

#include "base/text.hpp"
#include "core/bucket/gradient_policy.hpp"
#include "core/bucket/host_values.hpp"
#include "optim/convert.hpp"

namespace gossamer {
namespace {

template <class AnyBlock>
AnyBlock flags_behind(const Bucket& bucket, const AnyBlock& block) {
  return part_of(block, bucket.spec().numel, bucket.num_entries());
}

}  // namespace

PackedGradients::PackedGradients(const Bucket& bucket, Stream& stream)
    : stream_(&stream),
      block_(stream.allocate(bucket.spec().numel + num_flags(bucket), bucket.spec().dtype)),
      own_flags_(stream.allocate_host(num_flags(bucket), bucket.spec().dtype)),
      sum_flags_(stream.allocate_host(num_flags(bucket), bucket.spec().dtype)) {}

void PackedGradients::pack(const Bucket& bucket) {
  for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
    const ConstBlock gradient = bucket.gradient(entry);
    const Block target = bucket.part(block_.block(), entry);
    set_host_value(own_flags_.block(), entry, gradient.data != nullptr ? 1.0 : 0.0);
    if (gradient.data == nullptr) {
      stream_->zero(target);
    } else {
      enqueue_convert(*stream_, target, gradient);
    }
  }
  stream_->copy(flags_behind(bucket, block_.block()), own_flags_.block());
}

Buffer PackedGradients::gradients(const Bucket& bucket) const {
  return {block_.owner(), part_of(block_.block(), 0, bucket.spec().numel)};
}

Buffer PackedGradients::flags(const Bucket& bucket) const {
  return {block_.owner(), flags_behind(bucket, block_.block())};
}

void PackedGradients::unpack(Bucket& bucket, ConstBlock sum) {
  if (sum.data == nullptr) return unpack(bucket, sum, sum);
  unpack(bucket, part_of(sum, 0, bucket.spec().numel), flags_behind(bucket, sum));
}

void PackedGradients::unpack(Bucket& bucket, const ConstBlock& gradients, const ConstBlock& flags) {
  bucket.set_own_gradients(block_.block());
  const Block seen = sum_flags_.block();
  if (flags.data != nullptr) {
    stream_->copy(seen, flags);
    stream_->synchronize();
  }
  for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
    const bool used = flags.data != nullptr && host_value(seen, entry) > 0.0;
    bucket.replace_gradient(entry, used ? bucket.part_in_shard(gradients, entry) : ConstBlock());
  }
}

void PackedGradients::visit(StateVisitor& visitor, const Bucket& bucket) {
  const Block flags = flags_behind(bucket, block_.block());
  for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
    const std::string name = concat(bucket.name(entry), "/sent_gradient");
    visit_block(visitor, *stream_, name, bucket.part(block_.block(), entry));
    visit_block(visitor, *stream_, concat(name, "_flag"), part_of(flags, entry, 1));
  }
}

}  // namespace gossamer
