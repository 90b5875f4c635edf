#pragma once
// The few calls of NCCL that the NCCL communicator makes. Two implementations: NCCL itself
// (library.hpp), loaded when a GPU is asked for, and a stand-in for tests, whose operations
// meet on threads.
//
// Rules, as in NCCL: calls on a communicator may return before they have had their effect;
// progress() tells when they have. Operations are given to a stream and run in its order. An
// operation begins when all its members have come to it. Operations between group_start() and
// group_end() run as one. Members make the same calls on a communicator in the same order.
//
// Thread safety: one call at a time.
// Errors: CommError with the library's own words.

#include <cstdint>
#include <span>
#include <string>

#include "base/stream.hpp"
#include "base/types.hpp"

namespace gossamer {

class NcclApi {
 public:
  /// A communicator of the library; null: none.
  using Comm = void*;

  virtual ~NcclApi() = default;
  [[nodiscard]] virtual std::string version() const = 0;
  /// One member of a new communicator makes the id and tells it to the others.
  virtual std::string unique_id() = 0;
  virtual Comm init(const std::string& id, int rank, int size) = 0;
  /// Collective. `part` becomes the communicator of the members with the same color, ordered by
  /// `key`; null for a negative color. The library may write `part` late, so `part` must stay in
  /// place until progress(comm) returns true.
  virtual void split(Comm comm, int color, int key, Comm* part) = 0;
  /// Whether all calls so far have had their effect. Throws when one has failed or a peer is lost.
  virtual bool progress(Comm comm) = 0;

  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void send(Comm comm, const ConstBlock& block, int peer, Stream& stream) = 0;
  virtual void receive(Comm comm, const Block& block, int peer, Stream& stream) = 0;
  virtual void all_reduce_sum(Comm comm, const ConstBlock& send, const Block& receive,
                              Stream& stream) = 0;
  virtual void broadcast(Comm comm, const Block& block, int root, Stream& stream) = 0;

  /// Collective: lets the operations of a communicator run to their end and releases its
  /// connections; over when progress() returns true. Only destroy() may follow.
  virtual void finalize(Comm comm) = 0;
  /// Frees a communicator that finalize() has ended. Does not communicate.
  virtual void destroy(Comm comm) = 0;
  /// Ends and frees communicators at once, with operations in flight. Does not communicate.
  virtual void abort(std::span<const Comm> comms) noexcept = 0;
};

}  // namespace gossamer
