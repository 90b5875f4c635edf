#pragma once
// Gives all ranks the values of one rank, many blocks at a time. A far network takes its round trip
// once for each operation that a rank waits for, so blocks travel packed together.

#include <cstdint>
#include <vector>

#include "base/stream.hpp"
#include "base/types.hpp"
#include "comm/communicator.hpp"

namespace gossamer {

/// The bytes of an operation of broadcast_blocks(). The memory of eight of them is in use at most.
inline constexpr std::int64_t kBroadcastBytes = std::int64_t{16} << 20U;

/// Collective: all ranks pass blocks of the same sizes in the same order, on the device of `stream`
/// or in host memory. Copies the blocks of `root` into the blocks of all ranks, by one operation
/// for each kBroadcastBytes, of which up to eight are under way at the same time. Waits for the
/// stream. Throws CommError; the blocks may then have been written in part.
void broadcast_blocks(Communicator& communicator, Stream& stream, const std::vector<Block>& blocks,
                      int root = 0);

}  // namespace gossamer
