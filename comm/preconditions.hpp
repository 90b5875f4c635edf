#pragma once
// The conditions that every backend sets on calls. A call that breaks one is a std::logic_error.

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "base/text.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

inline void require_alike(const char* operation, const ConstBlock& send, const Block& receive) {
  if (send.numel == receive.numel && send.dtype == receive.dtype) return;
  throw std::logic_error(concat(operation, ": the blocks differ in size or type"));
}

inline void require_summable(const char* operation, DType dtype) {
  if (dtype != DType::kUInt8 && dtype != DType::kBFloat16) return;
  throw std::logic_error(concat(operation, ": ", name_of(dtype),
                                " cannot be summed, allowed: float32, float64, int64"));
}

inline void require_sum(const ConstBlock& send, const Block& receive) {
  require_alike("all_reduce_sum", send, receive);
  require_summable("all_reduce_sum", send.dtype);
}

inline void require_rank(const char* operation, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  throw std::logic_error(concat(operation, ": there is no rank ", rank, " among ", size));
}

inline void require_peer(const char* operation, int peer, int rank, int size) {
  require_rank(operation, peer, size);
  if (peer != rank) return;
  throw std::logic_error(concat(operation, ": rank ", rank, " cannot be its own peer"));
}

/// Throws std::logic_error for a block that does not lie in host memory.
inline void require_on_host(const char* operation, const ConstBlock& block) {
  if (is_on_host(block)) return;
  throw std::logic_error(concat(operation, ": the block must lie in host memory"));
}

inline void require_tagged(const char* operation, int peer, int tag, int rank, int size) {
  require_peer(operation, peer, rank, size);
  if (tag >= 0 && tag < Communicator::kNumTags) return;
  throw std::logic_error(
      concat(operation, ": the tag is ", tag, ", allowed: 0 to ", Communicator::kNumTags - 1));
}

inline void require_neighbors(const ConstBlock& send, const std::vector<int>& peers,
                              const std::vector<Incoming>& incoming, int rank, int size) {
  constexpr const char* kOperation = "exchange_with_neighbors";
  std::vector<int> senders;
  for (const Incoming& from : incoming) {
    require_alike(kOperation, send, from.block);
    senders.push_back(from.peer);
  }
  for (std::vector<int> ranks : {peers, senders}) {
    for (const int peer : ranks) require_peer(kOperation, peer, rank, size);
    std::ranges::sort(ranks);
    if (std::ranges::adjacent_find(ranks) != ranks.end()) {
      throw std::logic_error(concat(kOperation, ": a rank is named twice"));
    }
  }
}

/// Replaces the members of counters by their world ranks, which an Operation names.
inline std::vector<Awaited> of_world(const Communicator& communicator,
                                     std::vector<Awaited> awaited) {
  for (Awaited& counter : awaited) {
    require_rank("await", counter.peer, communicator.size());
    counter.peer = communicator.world_ranks()[static_cast<std::size_t>(counter.peer)];
  }
  return awaited;
}

}  // namespace gossamer
