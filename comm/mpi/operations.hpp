#pragma once
// The operations of the MPI backend: nonblocking calls that the progress worker starts and tests.
// Blocks of more than 2^30 elements go in several calls. Exchanges, tagged messages and broadcasts
// go in pieces of 32 MiB: MPI tells only when a whole call is over, and each piece that is over
// shows that the operation makes progress.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <mpi.h>

#include "base/types.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {

/// The group an operation runs in. The handle belongs to the backend, which frees it at the end.
struct MpiGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  std::vector<int> world_ranks;
  /// The members in the order of the ring; see ring_order().
  std::vector<int> ring;
  /// Sums of at least so many bytes go round a ring; see LaunchOptions::least_ring_bytes.
  std::int64_t least_ring_bytes = std::numeric_limits<std::int64_t>::max();
};

/// The world ranks of the members other than this one.
std::vector<int> other_members(const MpiGroup& group);

std::unique_ptr<Operation> make_mpi_exchange(std::shared_ptr<const MpiGroup> group, ConstBlock send,
                                             std::vector<int> peers,
                                             std::vector<Incoming> incoming);
/// The operation of one side of a tagged message; see Communicator::send().
std::unique_ptr<Operation> make_mpi_send(std::shared_ptr<const MpiGroup> group, int peer, int tag,
                                         ConstBlock message);
std::unique_ptr<Operation> make_mpi_receive(std::shared_ptr<const MpiGroup> group, int peer,
                                            int tag, Block message);
std::unique_ptr<Operation> make_mpi_all_reduce(std::shared_ptr<const MpiGroup> group,
                                               ConstBlock send, Block receive);
/// The sum by messages from neighbour to neighbour (ring_sum.cpp). For host memory and groups
/// of two or more. Operations of the same group that are in flight together need different
/// `number`s, the same ones on all members.
std::unique_ptr<Operation> make_mpi_ring_sum(std::shared_ptr<const MpiGroup> group, ConstBlock send,
                                             Block receive, std::int64_t number);
std::unique_ptr<Operation> make_mpi_reduce(std::shared_ptr<const MpiGroup> group, Block block,
                                           int root);
std::unique_ptr<Operation> make_mpi_broadcast(std::shared_ptr<const MpiGroup> group, Block block,
                                              int root);
std::unique_ptr<Operation> make_mpi_barrier(std::shared_ptr<const MpiGroup> group);
/// `texts` is filled when the operation is over.
std::unique_ptr<Operation> make_mpi_gather(std::shared_ptr<const MpiGroup> group, std::string text,
                                           std::shared_ptr<std::vector<std::string>> texts);

}  // namespace gossamer
