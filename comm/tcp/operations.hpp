#pragma once
// The operations of the backend `tcp`. Each posts messages on the links of its rank and is over
// when they are.
//
// Thread safety: the progress worker's. Errors: CommError.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "comm/communicator.hpp"
#include "comm/tcp/transport.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer::tcp {

/// A communicator, as its operations see it.
struct Group {
  std::shared_ptr<Transport> transport;
  /// MessageKey::group. Two groups with a common pair of ranks have different numbers.
  std::uint32_t number = 0;
  int rank = 0;
  std::vector<int> world_ranks;
  /// The members in the order of the ring; see ring_order().
  std::vector<int> ring;

  [[nodiscard]] int size() const { return static_cast<int>(world_ranks.size()); }
  [[nodiscard]] int world_rank(int member) const {
    return world_ranks[static_cast<std::size_t>(member)];
  }
};
using GroupPtr = std::shared_ptr<const Group>;

/// A message to or from a member, before it is posted.
struct Post {
  int member = 0;
  MessageKey key = {};
  ConstBlock send = {};
  Block receive = {};
};

/// The operation of all messages in `sends` and `receives`.
std::unique_ptr<Operation> make_messages(GroupPtr group, std::vector<Post> sends,
                                         std::vector<Post> receives, bool is_tagged);

// The operations below have a `number`. It tells operations of one group apart that are under way
// at the same time; all members give the same number.

/// `texts` is filled when the operation is over.
std::unique_ptr<Operation> make_gather(GroupPtr group, std::uint64_t number, std::string text,
                                       std::shared_ptr<std::vector<std::string>> texts);
/// The sum in rank order, for small blocks: every member gets all blocks.
std::unique_ptr<Operation> make_small_sum(GroupPtr group, std::uint64_t number, ConstBlock send,
                                          Block receive);
/// The sum by halves, for blocks of middle size (shard_sum.cpp).
std::unique_ptr<Operation> make_shard_sum(GroupPtr group, std::uint64_t number, ConstBlock send,
                                          Block receive);
/// The sum in rank order, for large blocks of ranks on one host (host_sum.cpp).
std::unique_ptr<Operation> make_host_sum(GroupPtr group, std::uint64_t number, ConstBlock send,
                                         Block receive);
/// The sum round a ring (comm/collectives/ring_sum.hpp), for large blocks.
std::unique_ptr<Operation> make_ring_sum(GroupPtr group, std::uint64_t number, ConstBlock send,
                                         Block receive);
/// The root adds all blocks, piece by piece, in rank order.
std::unique_ptr<Operation> make_reduce(GroupPtr group, std::uint64_t number, Block block, int root);
/// A binary tree, piece by piece.
std::unique_ptr<Operation> make_broadcast(GroupPtr group, std::uint64_t number, Block block,
                                          int root);

}  // namespace gossamer::tcp
