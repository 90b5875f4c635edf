// Descent with relayed sums on a tree (RelaySGD: Vogels et al., "RelaySum for Decentralized Deep
// Learning on Heterogeneous Data", NeurIPS 2021). Every rank sends each peer the sum of its own
// half step and of what all other peers have sent. So a rank hears every other rank's half step
// once, late by their distance in the tree, and all with the same weight:
//
//   x~_i = x_i - u_i
//   x_i' = (x~_i + sum over the peers j of m_ji) / c_i,   c_i = 1 + sum of c_ji
//   m_ij' = x~_i + sum over the peers l != j of m_li,     c_ij' = 1 + sum over l != j of c_li
//
// m_ji and c_ji are the messages of the step before. c_i counts the ranks in the sum. It reaches n
// when the first messages have crossed the tree. Until then x_i' is the mean of the ranks that have
// been heard, as in the paper.
//
// The sweep computes x_i' with u_i / c_i, and the messages follow from it without x~_i:
// m_ij' = c_i x_i' - m_ji. A message carries its count behind its values. So a rank that drops what
// has arrived starts its sums anew, and the others count right.

#include <utility>
#include <vector>

#include "core/algorithms/bucket_lanes.hpp"
#include "core/bucket/host_values.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

class Relay : public Algorithm {
 public:
  explicit Relay(const AlgorithmSetup& setup)
      : setup_(setup), num_peers_(setup.lanes.num_tree_peers()) {
    for (const Bucket& bucket : setup.buckets) {
      const DType dtype = bucket.spec().dtype;
      slots_.add({.messages = setup.stream.allocate(num_peers_ * message_numel(bucket), dtype),
                  .counts_sent = setup.stream.allocate_host(num_peers_, dtype),
                  .counts_heard = setup.stream.allocate_host(num_peers_, dtype)});
    }
    lanes_ = BucketLanes(setup, [](const Bucket& bucket) {
      return LaneSpec{.members = LaneMembers::kTree,
                      .result = LaneResult::kApart,
                      .bucket = bucket.index(),
                      .numel = message_numel(bucket),
                      .dtype = bucket.spec().dtype,
                      .content = "relayed sums"};
    });
  }

  Intake before_update(Bucket& bucket) override {
    if (num_peers_ == 0) return {};
    Slot& slot = slots_[bucket];
    lanes_[bucket].wait();
    const Intake arrived = lanes_[bucket].take();
    slot.is_updated = true;
    slot.count = 1.0;
    slot.heard.clear();
    for (const Inbox& inbox : arrived.inboxes) {
      const auto j = static_cast<std::int64_t>(slot.heard.size());
      setup_.stream.copy(part_of(slot.counts_heard.block(), j, 1), count_of(bucket, inbox.block));
      slot.heard.push_back({values_of(bucket, inbox.block), 1.0});
    }
    // Also for counts_sent, which after_update() writes.
    setup_.stream.synchronize();
    for (std::int64_t j = 0; j < std::ssize(slot.heard); ++j) {
      slot.count += host_value(slot.counts_heard.block(), j);
    }
    for (Inbox& inbox : slot.heard) inbox.weight = 1.0 / slot.count;
    return {.keep = 1.0 / slot.count, .inboxes = slot.heard, .update_scale = 1.0 / slot.count};
  }

  void after_update(Bucket& bucket) override {
    if (num_peers_ == 0) return;
    Slot& slot = slots_[bucket];
    if (std::exchange(slot.is_updated, false)) write_messages(bucket);
    lanes_[bucket].start(setup_.progress.round(), slot.messages);
  }

  void visit(StateVisitor& visitor) override {
    for (const Bucket& bucket : setup_.buckets) {
      for (std::int64_t j = 0; j < num_peers_; ++j) {
        const Block message = message_to(bucket, j);
        for (std::int64_t entry = 0; entry < bucket.num_entries(); ++entry) {
          const std::string name = concat(bucket.name(entry), "/peer_", j, "_sum");
          if (visitor.loads() && !visitor.holds(name)) {
            // The state is a mean over ranks, and the sums begin anew.
            begin_anew(bucket);
            continue;
          }
          visit_block(visitor, setup_.stream, name, bucket.part(values_of(bucket, message), entry));
          visit_block(visitor, setup_.stream, concat(bucket.name(entry), "/peer_", j, "_count"),
                      count_of(bucket, message));
        }
      }
    }
  }

 private:
  struct Slot {
    /// One for each peer, in the order of their ranks; message_numel() elements each.
    Buffer messages;
    /// Host memory: the counts of the messages that are sent, and of those that have arrived.
    Buffer counts_sent;
    Buffer counts_heard;
    /// What the update has mixed in; empty: nothing.
    std::vector<Inbox> heard = {};
    double count = 1.0;
    /// False: the messages are those of a loaded state.
    bool is_updated = false;
  };

  /// The values, their count, and elements that fill the last unit of memory.
  static std::int64_t message_numel(const Bucket& bucket) {
    const std::int64_t unit = Buffer::kAlignment / size_of(bucket.spec().dtype);
    return (bucket.spec().numel / unit + 1) * unit;
  }
  template <class AnyBlock>
  static AnyBlock values_of(const Bucket& bucket, const AnyBlock& message) {
    return part_of(message, 0, bucket.spec().numel);
  }
  template <class AnyBlock>
  static AnyBlock count_of(const Bucket& bucket, const AnyBlock& message) {
    return part_of(message, bucket.spec().numel, 1);
  }
  Block message_to(const Bucket& bucket, std::int64_t j) {
    const std::int64_t numel = message_numel(bucket);
    return part_of(slots_[bucket].messages.block(), j * numel, numel);
  }

  /// The next messages hold this rank's parameters alone.
  void begin_anew(const Bucket& bucket) {
    Slot& slot = slots_[bucket];
    slot.is_updated = true;
    slot.heard.clear();
    slot.count = 1.0;
  }

  void write_messages(const Bucket& bucket) {
    Slot& slot = slots_[bucket];
    const Block x = bucket.parameters().block();
    for (std::int64_t j = 0; j < num_peers_; ++j) {
      const Block message = message_to(bucket, j);
      double count = slot.count;
      if (slot.heard.empty()) {
        setup_.stream.copy(values_of(bucket, message), x);
      } else {
        const ConstBlock heard = slot.heard[static_cast<std::size_t>(j)].block;
        enqueue_mix(setup_.stream, values_of(bucket, message), 0.0,
                    {{x, slot.count}, {heard, -1.0}}, {}, setup_.simd);
        count -= host_value(slot.counts_heard.block(), j);
      }
      set_host_value(slot.counts_sent.block(), j, count);
      setup_.stream.copy(count_of(bucket, message), part_of(slot.counts_sent.block(), j, 1));
    }
  }

  AlgorithmSetup setup_;
  std::int64_t num_peers_;
  PerBucket<Slot> slots_;
  BucketLanes lanes_;
};

}  // namespace

AlgorithmFactory read_relay(const Options& /*options*/) {
  return [](const AlgorithmSetup& setup) { return std::make_unique<Relay>(setup); };
}

}  // namespace gossamer
