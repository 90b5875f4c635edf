#include "comm/collectives/staged_communicator.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "comm/forwarding_communicator.hpp"
#include "comm/preconditions.hpp"

namespace gossamer {
namespace {

/// Host buffers that come back when their last owner goes, on whatever thread that is: also the
/// stream's own, so that the pool must not own the stream.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  Buffer take(Stream& stream, std::int64_t numel, DType dtype) {
    const std::int64_t bytes = numel * size_of(dtype);
    Buffer memory;
    {
      const std::lock_guard lock(mutex_);
      auto& free = free_[bytes];
      if (!free.empty()) {
        memory = std::move(free.back());
        free.pop_back();
      }
    }
    if (!memory.owner()) memory = allocate(stream, bytes);
    void* const data = memory.block().data;
    std::shared_ptr<void> owner(data, [pool = shared_from_this(), memory](void*) {
      const std::lock_guard lock(pool->mutex_);
      pool->free_[memory.block().bytes()].push_back(memory);
    });
    return {std::move(owner), {data, numel, dtype, {}}};
  }

  /// Sees to it that so many buffers may be taken at the same time, beside those that are reserved
  /// already, until release().
  void reserve(Stream& stream, std::int64_t bytes, std::int64_t count) {
    std::int64_t missing = 0;
    {
      const std::lock_guard lock(mutex_);
      Count& of_size = counts_[bytes];
      of_size.reserved += count;
      missing = of_size.reserved - of_size.allocated;
    }
    for (; missing > 0; --missing) {
      Buffer memory = allocate(stream, bytes);
      const std::lock_guard lock(mutex_);
      free_[bytes].push_back(std::move(memory));
    }
  }
  void release(std::int64_t bytes, std::int64_t count) {
    const std::lock_guard lock(mutex_);
    counts_[bytes].reserved -= count;
  }

 private:
  struct Count {
    std::int64_t allocated = 0;
    std::int64_t reserved = 0;
  };

  Buffer allocate(Stream& stream, std::int64_t bytes) {
    Buffer memory = stream.allocate_host(bytes, DType::kUInt8);
    const std::lock_guard lock(mutex_);
    ++counts_[bytes].allocated;
    return memory;
  }

  std::mutex mutex_;
  // Both by size in bytes; guarded by mutex_.
  std::map<std::int64_t, std::vector<Buffer>> free_;
  std::map<std::int64_t, Count> counts_;
};

class StagedCommunicator : public ForwardingCommunicator {
 public:
  StagedCommunicator(Communicator& host, std::shared_ptr<Stream> stream,
                     const StagingOptions& options)
      : ForwardingCommunicator(host), host_(host), stream_(std::move(stream)), options_(options) {}
  StagedCommunicator(std::unique_ptr<Communicator> host, const StagedCommunicator& parent)
      : ForwardingCommunicator(*host),
        owned_(std::move(host)),
        host_(*owned_),
        stream_(parent.stream_),
        options_(parent.options_),
        pool_(parent.pool_) {}

  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return stream_; }
  [[nodiscard]] bool takes_device_memory() const override { return false; }
  /// A device's communicator shares no memory of the host, and ends with its world.
  SharedMemory* shared_memory() override { return nullptr; }
  Elastic* elastic() override { return nullptr; }
  void connect() override {}
  void close() override {}

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    if (is_on_host(send)) return host_.exchange(peer, send, receive, std::move(context));
    require_alike("exchange", send, receive);
    if (options_.direct_messages) {
      return host_.exchange(peer, send, receive, entered(std::move(context)));
    }
    return in_pieces(send.numel, send.dtype, context, [&](const Piece& piece) {
      Staged staged = stage(context, part_of(send, piece.first, piece.numel),
                            {part_of(receive, piece.first, piece.numel)});
      return host_.exchange(peer, staged.sent, staged.received[0], std::move(staged.context));
    });
  }

  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    if (is_on_host(send)) {
      return host_.exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                           std::move(context));
    }
    require_neighbors(send, peers, incoming, rank(), size());
    if (options_.direct_messages) {
      return host_.exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                           entered(std::move(context)));
    }
    return in_pieces(send.numel, send.dtype, context, [&](const Piece& piece) {
      std::vector<Block> targets;
      for (const Incoming& from : incoming) {
        targets.push_back(part_of(from.block, piece.first, piece.numel));
      }
      Staged staged = stage(context, part_of(send, piece.first, piece.numel), std::move(targets));
      std::vector<Incoming> arriving = incoming;
      for (std::size_t i = 0; i < arriving.size(); ++i) arriving[i].block = staged.received[i];
      return host_.exchange_with_neighbors(staged.sent, peers, std::move(arriving),
                                           std::move(staged.context));
    });
  }

  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    if (is_on_host(send)) return host_.all_reduce_sum(send, receive, std::move(context));
    require_sum(send, receive);
    if (size() == 1) return copied(send, receive, std::move(context));
    return in_pieces(send.numel, send.dtype, context, [&](const Piece& piece) {
      Staged staged = stage(context, part_of(send, piece.first, piece.numel),
                            {part_of(receive, piece.first, piece.numel)});
      return host_.all_reduce_sum(staged.sent, staged.received[0], std::move(staged.context));
    });
  }

  Request reduce_sum(Block block, int root, OpContext context) override {
    require_on_host("reduce_sum", block);
    return host_.reduce_sum(block, root, std::move(context));
  }

  Request broadcast(Block block, int root, OpContext context) override {
    if (is_on_host(block)) return host_.broadcast(block, root, std::move(context));
    require_rank("broadcast", root, size());
    if (size() == 1) return copied(block, block, std::move(context));
    const bool sends = rank() == root;
    return in_pieces(block.numel, block.dtype, context, [&](const Piece& piece) {
      const Block part = part_of(block, piece.first, piece.numel);
      Staged staged = sends ? stage(context, part, {}) : stage(context, std::nullopt, {part});
      const Block staging = sends ? staged.sent : staged.received[0];
      return host_.broadcast(staging, root, std::move(staged.context));
    });
  }

  Request send(int peer, int tag, ConstBlock message, OpContext context) override {
    require_on_host("send", message);
    return host_.send(peer, tag, message, std::move(context));
  }
  Request receive(int peer, int tag, Block message, OpContext context) override {
    require_on_host("receive", message);
    return host_.receive(peer, tag, message, std::move(context));
  }

  std::shared_ptr<void> reserve(std::int64_t numel, DType dtype, std::int64_t num_blocks) override {
    // The host waits for a round before it starts the next, and the memory of one that is over
    // comes back a little later.
    const std::int64_t count = 2 * num_blocks;
    std::map<std::int64_t, std::int64_t> num_pieces;
    for_each_piece(numel, dtype,
                   [&](const Piece& piece) { ++num_pieces[piece.numel * size_of(dtype)]; });
    for (const auto& [bytes, pieces] : num_pieces) pool_->reserve(*stream_, bytes, pieces * count);
    return {this, [pool = pool_, num_pieces, count](void*) {
              for (const auto& [bytes, pieces] : num_pieces) pool->release(bytes, pieces * count);
            }};
  }
  std::unique_ptr<Communicator> split(int color) override {
    std::unique_ptr<Communicator> part = host_.split(color);
    if (part == nullptr) return nullptr;
    return std::make_unique<StagedCommunicator>(std::move(part), *this);
  }

 private:
  /// MPI works on the device of the thread that calls it, the progress worker's.
  OpContext entered(OpContext context) {
    context.prepare = [stream = stream_, prepare = std::move(context.prepare)]() -> EventPtr {
      stream->enter();
      return prepare ? prepare() : nullptr;
    };
    return context;
  }

  /// What prepare() does first, then a copy, unless both are the same memory.
  std::function<EventPtr()> then_copied(std::function<EventPtr()> first, const ConstBlock& from,
                                        const Block& to, std::shared_ptr<void> owner) {
    return [stream = stream_, first = std::move(first), from, to,
            kept = std::move(owner)]() -> EventPtr {
      stream->enter();
      if (first) first();
      if (to.data != from.data) stream->copy(to, from);
      // Should the operation fail, the copy may still be under way when its owner goes.
      stream->keep(kept);
      return stream->record();
    };
  }

  /// What a rank alone does: nothing but a copy on the device, in its place among the operations.
  Request copied(const ConstBlock& from, const Block& to, OpContext context) {
    context.prepare = then_copied(std::move(context.prepare), from, to, context.owner);
    const Block none{nullptr, 0, DType::kFloat32, {}};
    return host_.all_reduce_sum(none, none, std::move(context));
  }

  struct Piece {
    std::int64_t first = 0;
    std::int64_t numel = 0;
  };
  /// One piece's blocks on the host, and the context that moves them there and back.
  struct Staged {
    Block sent = {};
    std::vector<Block> received = {};
    OpContext context = {};
  };

  /// Empty blocks are a piece too: the peers have to learn of it.
  template <class Function>
  void for_each_piece(std::int64_t numel, DType dtype, const Function& function) const {
    const std::int64_t largest = std::max<std::int64_t>(1, options_.piece_bytes / size_of(dtype));
    std::int64_t first = 0;
    do {
      function(Piece{first, std::min(largest, numel - first)});
      first += largest;
    } while (first < numel);
  }

  template <class Submit>
  Request in_pieces(std::int64_t numel, DType dtype, OpContext& context, const Submit& submit) {
    std::vector<Request> requests;
    for_each_piece(numel, dtype, [&](const Piece& piece) {
      context.trace.set_bytes(piece.numel * size_of(dtype));
      requests.push_back(submit(piece));
      // Once, before the first piece: the others of this channel start behind it.
      context.prepare = nullptr;
    });
    return all_of(std::move(requests));
  }

  Staged stage(const OpContext& context, const std::optional<ConstBlock>& send,
               std::vector<Block> receive) {
    Staged staged{.context = context};
    std::shared_ptr<void>& owner = staged.context.owner;
    if (send) {
      const Buffer buffer = pool_->take(*stream_, send->numel, send->dtype);
      staged.sent = buffer.block();
      owner = both(std::move(owner), buffer.owner());
      staged.context.prepare = then_copied(context.prepare, *send, buffer.block(), owner);
    }
    for (const Block& target : receive) {
      const Buffer buffer = pool_->take(*stream_, target.numel, target.dtype);
      staged.received.push_back(buffer.block());
      owner = both(std::move(owner), buffer.owner());
    }
    if (!receive.empty()) {
      staged.context.finish = [stream = stream_, to = std::move(receive), from = staged.received,
                               kept = owner]() -> EventPtr {
        stream->enter();
        for (std::size_t i = 0; i < to.size(); ++i) stream->copy(to[i], from[i]);
        stream->keep(kept);
        return stream->record();
      };
    }
    return staged;
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  std::shared_ptr<Stream> stream_;
  StagingOptions options_;
  std::shared_ptr<StagingPool> pool_ = std::make_shared<StagingPool>();
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(Communicator& host,
                                                       std::shared_ptr<Stream> stream,
                                                       const StagingOptions& options) {
  if (options.piece_bytes < 1) throw std::logic_error("a piece must hold at least one byte");
  return std::make_unique<StagedCommunicator>(host, std::move(stream), options);
}

}  // namespace gossamer
