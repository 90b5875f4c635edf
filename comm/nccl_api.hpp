#pragma once
// The few calls of NCCL that the NCCL communicator makes. One implementation is NCCL itself
// (nccl_library.hpp), which is loaded when a GPU is asked for; tests have one of their own, whose
// operations meet on threads.
//
// As in NCCL: calls that concern a communicator may return before they have had their effect;
// progress() says when they have. Operations are given to a stream and run in its order, an
// operation begins when all its members have come to it, and those between group_start() and
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
  /// What the members of a new communicator have to know in common; made by one of them.
  virtual std::string unique_id() = 0;
  virtual Comm init(const std::string& id, int rank, int size) = 0;
  /// Collective. `part` becomes the communicator of the members with the same color, ordered by
  /// `key`; null for a negative color. It may be filled in as late as progress(comm) says yes, and
  /// must stay where it is until then.
  virtual void split(Comm comm, int color, int key, Comm* part) = 0;
  /// Whether all calls so far have had their effect. Throws when one has failed, or a peer is lost.
  virtual bool progress(Comm comm) = 0;

  virtual void group_start() = 0;
  virtual void group_end() = 0;
  virtual void send(Comm comm, const ConstBlock& block, int peer, Stream& stream) = 0;
  virtual void receive(Comm comm, const Block& block, int peer, Stream& stream) = 0;
  virtual void all_reduce_sum(Comm comm, const ConstBlock& send, const Block& receive,
                              Stream& stream) = 0;
  virtual void broadcast(Comm comm, const Block& block, int root, Stream& stream) = 0;

  /// Ends communicators and their operations, wherever they are. Does not communicate.
  virtual void abort(std::span<const Comm> comms) noexcept = 0;
};

}  // namespace gossamer
