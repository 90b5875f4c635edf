#pragma once
// An asynchronous exchange carries one rank's part of asynchronous push-sum. The ranks send one
// another messages when they are ready, and do not agree on a time. A rank waits only when it has
// not heard from a rank for too many of its own steps.
//
// Every rank has a model z and a mass s, which is 1 at first. A message holds a copy of z and a
// part of the mass. Over all ranks and all messages on their way, the sums of s and of s z do not
// change by communication. A message is never overwritten, and mass that cannot be sent stays. So z
// converges to the mean sum of s z / sum of s although no rank knows the weights of others.
// Sources: Kempe, Dobra and Gehrke, FOCS 2003; Assran et al., "Stochastic gradient push for
// distributed deep learning", ICML 2019 (overlap SGP).
//
// A rank sends along its out-edges and receives along its in-edges: its edges in all rounds of the
// topology's period. An out-edge is busy from the message until the receiver's acknowledgement, so
// an edge holds at most one message that is not used yet. A step k of this rank:
//
//   take(k)     waits until for every in-edge a message is here, or k - (the step that used the
//               last message) <= max_age. Then s' = s + sum of the messages' masses. The caller
//               sets z <- (s / s') z + sum of (mass / s') z_message - update / s'.
//   release()   acknowledges the messages.
//   send(k)     F = the free out-edges of round k; sends (z, s / (1 + |F|)) along each, and keeps
//               the rest of the mass.
//
// While take() waits, it also serves every free out-edge of the period that has had no message
// since the last update: it sends (z, s / 2) and keeps the other half. So a rank that waits has
// served all its out-edges, or its messages are at their receivers. If q waits for r, then r
// computes and will send, or r waits and its message is under way to q. Hence no ranks wait for one
// another in a circle. To serve only the edges of round k is not enough.
//
// close() is collective. A rank sends a last message, without mass, along every out-edge. It goes
// on using messages until it has the last message of every in-edge. Then no message is under way,
// the masses of all ranks sum to the number of ranks, and the mean of the models is the mean of s
// z. The first take() after close() opens the exchange again.
//
// Other ranks may still make steps while this one closes. It acknowledges their messages and says
// that it closes; after that they send it no mass. If they did, a rank that goes on would get
// nothing back, its mass would shrink in every step, and its updates, divided by the mass, would
// grow without bound.
//
// Messages also spread the number of steps, as another push-sum: mean_steps() follows the mean
// number of steps of all ranks.
//
// Invariant: after take(k), k - (the step that used the last message), the age, is at most max_age.
// Errors: CommError; std::logic_error for calls in the wrong order. Not thread safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/buffer.hpp"
#include "base/state_visitor.hpp"
#include "comm/communicator.hpp"
#include "core/exchange/lane_metrics.hpp"
#include "topology/topology.hpp"

namespace gossamer {

/// The numbers that push-sum spreads.
struct AsyncExchangeState {
  double mass = 1.0;
  /// This rank's share of all steps of all ranks; divided by the mass: their mean.
  double steps = 0.0;
};

class AsyncExchange {
 public:
  struct Message {
    ConstBlock body = {};
    double weight = 0.0;
  };
  /// The messages that a step mixes in: z <- keep z + sum of weight * message - update_scale *
  /// update.
  struct Taken {
    double keep = 1.0;
    std::vector<Message> messages = {};
    double update_scale = 1.0;
  };
  struct Config {
    /// Bytes of the model in a message.
    std::int64_t body_bytes = 0;
    /// The rank waits when the last message it has used is older than so many of its own steps. 0:
    /// it uses a new message in every step. Null: it never waits.
    std::optional<std::int64_t> max_age = {};
    /// Enqueues the copy of the model z into the block, which has body_bytes elements.
    std::function<void(const Block& body)> write = {};
    /// Enqueues z <- keep z + sum of weight * message, for messages that z takes in at close().
    std::function<void(const Taken& taken)> mix = {};
  };
  struct Counters {
    /// The largest age of a message after a take().
    std::int64_t largest_age = 0;
    std::int64_t num_messages = 0;
  };
  /// `stream` works off what Config::write enqueues. the exchange adds waits and bytes to
  /// `metrics`. The references but `topology` must outlive the exchange. Throws ConfigError
  /// for a topology that why_no_async_exchange() refuses.
  AsyncExchange(Communicator& communicator, Stream& stream, LaneMetrics& metrics,
                const Topology& topology, Config config);

  /// See above. `step` counts this rank's steps from 0. The messages stay until release().
  Taken take(std::int64_t step);
  /// The work that reads the messages must have been given to the stream.
  void release();
  /// The work that writes z must have been given to the stream.
  void send(std::int64_t step);
  /// Collective; see above.
  void close();

  /// Messages of this rank that are not used yet, as far as this rank knows.
  [[nodiscard]] std::int64_t num_busy();
  [[nodiscard]] const AsyncExchangeState& state() const { return state_; }
  /// Shows the visitor this rank's mass and share of all steps. After close() only.
  void visit(StateVisitor& visitor);
  [[nodiscard]] double mean_steps() const { return state_.steps / state_.mass; }
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  struct Header {
    AsyncExchangeState share = {};
    std::int64_t is_last = 0;
  };
  struct OutEdge {
    int peer = 0;
    /// A message that is sent or not acknowledged; null: the edge is free.
    std::shared_ptr<const Buffer> message = {};
    Request sent = {};
    Request acknowledged = {};
    /// One byte: the last acknowledgement.
    Buffer answer = {};
    bool is_served = false;
    bool is_closed = false;
  };
  struct InEdge {
    int peer = 0;
    Buffer inbox = {};
    Request arrival = {};
    std::int64_t heard = 0;
    bool is_taken = false;
    bool is_closed = false;
  };

  [[nodiscard]] bool sends_in_round(std::int64_t step, int peer) const;
  [[nodiscard]] Buffer allocate(std::int64_t bytes) const;
  [[nodiscard]] static Header& header_of(const Buffer& message);
  void open(std::int64_t step);
  void post(InEdge& edge);
  /// Learns which messages have been acknowledged. Throws what an operation failed with.
  void free_edges();
  /// Acknowledges the messages that have been taken.
  void acknowledge(std::uint8_t answer);
  /// Whether a message with mass may be sent along the edge.
  [[nodiscard]] static bool may_carry_mass(const OutEdge& edge);
  [[nodiscard]] bool is_overdue(const InEdge& edge, std::int64_t step) const;
  /// Sends the same message along all `edges`, which are free.
  void send_along(const std::vector<OutEdge*>& edges, bool is_last);
  /// Waits until one of `awaited` is over, or one of this rank's own messages on their way moves
  /// on. `awaits_own`: the rank cannot go on without these either.
  void wait_for_news(RequestState::Operations awaited, bool awaits_own);
  /// Takes the messages that have arrived.
  Taken take_arrived(std::int64_t step);

  Communicator& communicator_;
  Stream& stream_;
  LaneMetrics& metrics_;
  Config config_;
  /// The peers that this rank sends to, for every round of the period.
  std::vector<std::vector<int>> rounds_;
  std::vector<OutEdge> out_;
  std::vector<InEdge> in_;
  /// Memory for messages. An entry is free when this is its only holder.
  std::vector<std::shared_ptr<Buffer>> copies_;
  /// The acknowledgements that a rank may send, each at its own place.
  Buffer answers_;
  AsyncExchangeState state_;
  Counters counters_;
  bool is_open_ = false;
};

/// Says why a topology does not suit asynchronous ranks, with advice; empty if it does.
std::string why_no_async_exchange(const Topology& topology);

}  // namespace gossamer
