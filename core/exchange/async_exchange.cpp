#include "core/exchange/async_exchange.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "base/sorted.hpp"
#include "base/text.hpp"
#include "topology/rank_round.hpp"

namespace gossamer {
namespace {

constexpr int kMessageTag = 0;
constexpr int kAcknowledgementTag = 1;
// What an acknowledgement says of the receiver.
constexpr std::uint8_t kGoesOn = 0;
constexpr std::uint8_t kCloses = 1;
// The model follows the header, aligned for vector instructions.
constexpr std::int64_t kHeaderBytes = 64;
// A rank holds memory for every edge of the period.
constexpr std::int64_t kLongestPeriod = 4096;

std::uint8_t& byte_of(const Buffer& buffer, std::size_t place = 0) {
  return buffer.block().as<std::uint8_t>()[place];
}

}  // namespace

std::string why_no_async_exchange(const Topology& topology) {
  if (topology.period().value_or(kManyRounds) > kLongestPeriod) {
    return concat("asynchronous ranks need a topology that repeats within ", kLongestPeriod,
                  " rounds, and ", topology.name(),
                  " does not; take directed-one-peer-exp or static-exp");
  }
  for (std::int64_t k = 0; k < *topology.period(); ++k) {
    if (topology.round(k).node_size == 1) continue;
    return concat("asynchronous ranks need a topology of one level, and ", topology.name(),
                  " has two; take directed-one-peer-exp or static-exp");
  }
  return "";
}

AsyncExchange::AsyncExchange(Communicator& communicator, Stream& stream, LaneMetrics& metrics,
                             const Topology& topology, Config config)
    : communicator_(communicator), stream_(stream), metrics_(metrics), config_(std::move(config)) {
  const std::string reason = why_no_async_exchange(topology);
  if (!reason.empty()) throw ConfigError(reason);
  static_assert(sizeof(Header) <= kHeaderBytes);
  std::vector<int> out;
  std::vector<int> in;
  for (std::int64_t k = 0; k < *topology.period(); ++k) {
    const Round round = with_arcs_for_groups(topology.round(k), communicator.size());
    const RankRound mine = rank_round(round, communicator.rank());
    rounds_.push_back(mine.send_to);
    out.insert(out.end(), mine.send_to.begin(), mine.send_to.end());
    in.insert(in.end(), mine.receive_from.begin(), mine.receive_from.end());
  }
  sort_unique(out);
  sort_unique(in);
  for (const int peer : out) out_.push_back({.peer = peer, .answer = allocate(1)});
  for (const int peer : in) {
    in_.push_back({.peer = peer, .inbox = allocate(kHeaderBytes + config_.body_bytes)});
  }
  answers_ = allocate(2);
  for (const std::uint8_t answer : {kGoesOn, kCloses}) byte_of(answers_, answer) = answer;
}

Buffer AsyncExchange::allocate(std::int64_t bytes) const {
  return stream_.allocate_host(bytes, DType::kUInt8);
}

AsyncExchange::Header& AsyncExchange::header_of(const Buffer& message) {
  return *static_cast<Header*>(message.block().data);
}

bool AsyncExchange::sends_in_round(std::int64_t step, int peer) const {
  const auto round = static_cast<std::size_t>(step % std::ssize(rounds_));
  return std::ranges::binary_search(rounds_[round], peer);
}

void AsyncExchange::open(std::int64_t step) {
  is_open_ = true;
  for (OutEdge& edge : out_) {
    edge.is_closed = edge.is_served = false;
    byte_of(edge.answer) = kGoesOn;
  }
  for (InEdge& edge : in_) {
    edge.is_closed = false;
    edge.heard = step;
    post(edge);
  }
}

void AsyncExchange::post(InEdge& edge) {
  edge.arrival = communicator_.receive(
      edge.peer, kMessageTag, edge.inbox.block(),
      {.label = {.what = "message"}, .owner = edge.inbox.owner(), .ready = stream_.record()});
}

void AsyncExchange::free_edges() {
  for (OutEdge& edge : out_) {
    if (!edge.message || !edge.sent.done() || !edge.acknowledged.done()) continue;
    edge.sent.wait();
    edge.acknowledged.wait();
    edge.message.reset();
  }
}

bool AsyncExchange::may_carry_mass(const OutEdge& edge) {
  return !edge.message && byte_of(edge.answer) != kCloses;
}

bool AsyncExchange::is_overdue(const InEdge& edge, std::int64_t step) const {
  return config_.max_age && !edge.is_closed && !edge.arrival.done() &&
         step - edge.heard > *config_.max_age;
}

void AsyncExchange::send_along(const std::vector<OutEdge*>& edges, bool is_last) {
  if (edges.empty()) return;
  const auto count = static_cast<double>(edges.size());
  // A last message has no mass, so that to close twice moves no model.
  AsyncExchangeState share{.mass = 0.0, .steps = 0.0};
  if (!is_last) {
    share = {.mass = state_.mass / (1.0 + count), .steps = state_.steps / (1.0 + count)};
  }
  state_.mass -= count * share.mass;
  state_.steps -= count * share.steps;
  auto copy = std::ranges::find_if(copies_, [](const auto& c) { return c.use_count() == 1; });
  if (copy == copies_.end()) {
    copies_.push_back(std::make_shared<Buffer>(allocate(kHeaderBytes + config_.body_bytes)));
    copy = copies_.end() - 1;
  }
  const Block block = (*copy)->block();
  header_of(**copy) = {.share = share, .is_last = is_last ? 1 : 0};
  if (!is_last) config_.write(part_of(block, kHeaderBytes, config_.body_bytes));
  for (OutEdge* edge : edges) {
    edge->message = *copy;
    edge->is_served = true;
    edge->is_closed = is_last;
    const OpContext context{
        .label = {.what = "message"}, .owner = (*copy)->owner(), .ready = stream_.record()};
    edge->sent = communicator_.send(edge->peer, kMessageTag, block, context);
    metrics_.bytes_sent += static_cast<double>(block.bytes());
    ++counters_.num_messages;
    // The receiver knows that a last message is the last.
    if (is_last) continue;
    edge->acknowledged = communicator_.receive(
        edge->peer, kAcknowledgementTag, edge->answer.block(),
        {.label = {.what = "acknowledgement"}, .owner = edge->answer.owner()});
  }
}

void AsyncExchange::wait_for_news(RequestState::Operations awaited, bool awaits_own) {
  RequestState::Operations others;
  for (const OutEdge& edge : out_) {
    if (!edge.message) continue;
    const bool is_sent = edge.sent.done();
    const bool is_acknowledged = edge.acknowledged.done();
    // The caller has not seen yet that this edge is free.
    if (is_sent && is_acknowledged) return;
    (awaits_own ? awaited : others)
        .push_back(is_sent ? edge.acknowledged.state() : edge.sent.state());
  }
  if (!awaited.empty()) RequestState::wait_for_any(awaited, others);
}

AsyncExchange::Taken AsyncExchange::take_arrived(std::int64_t step) {
  Taken taken;
  const double before = state_.mass;
  for (InEdge& edge : in_) {
    if (edge.is_closed || !edge.arrival.done()) continue;
    edge.arrival.wait();
    edge.is_taken = true;
    edge.heard = step;
    const Header& header = header_of(edge.inbox);
    edge.is_closed = header.is_last != 0;
    if (edge.is_closed) continue;
    state_.mass += header.share.mass;
    state_.steps += header.share.steps;
    taken.messages.push_back(
        {part_of(edge.inbox.block(), kHeaderBytes, config_.body_bytes), header.share.mass});
  }
  taken.keep = before / state_.mass;
  taken.update_scale = 1.0 / state_.mass;
  for (Message& message : taken.messages) message.weight /= state_.mass;
  return taken;
}

void AsyncExchange::release() { acknowledge(kGoesOn); }

void AsyncExchange::acknowledge(std::uint8_t answer) {
  for (InEdge& edge : in_) {
    if (!std::exchange(edge.is_taken, false) || edge.is_closed) continue;
    // First the receive: the next message follows the acknowledgement.
    post(edge);
    communicator_.send(edge.peer, kAcknowledgementTag, part_of(answers_.block(), answer, 1),
                       {.label = {.what = "acknowledgement"},
                        .owner = answers_.owner(),
                        .ready = stream_.record()});
  }
}

AsyncExchange::Taken AsyncExchange::take(std::int64_t step) {
  if (!is_open_) open(step);
  const auto overdue = [&](const InEdge& edge) { return is_overdue(edge, step); };
  if (std::ranges::any_of(in_, overdue)) {
    const ScopedTimer timer(metrics_.wait_s);
    do {
      free_edges();
      for (OutEdge& edge : out_) {
        if (may_carry_mass(edge) && !edge.is_served) send_along({&edge}, /*is_last=*/false);
      }
      RequestState::Operations awaited;
      for (const InEdge& edge : in_) {
        if (overdue(edge)) awaited.push_back(edge.arrival.state());
      }
      // The messages may have come just now. Then this rank must not wait for acknowledgements: the
      // ranks that owe them may wait for its next message.
      if (awaited.empty()) break;
      wait_for_news(std::move(awaited), /*awaits_own=*/false);
    } while (std::ranges::any_of(in_, overdue));
  }
  Taken taken = take_arrived(step);
  for (const InEdge& edge : in_) {
    if (edge.is_closed) continue;
    counters_.largest_age = std::max(counters_.largest_age, step - edge.heard);
  }
  return taken;
}

std::int64_t AsyncExchange::num_busy() {
  free_edges();
  return std::ranges::count_if(out_, [](const OutEdge& edge) { return edge.message != nullptr; });
}

void AsyncExchange::send(std::int64_t step) {
  if (!is_open_) throw std::logic_error("AsyncExchange: send() before take()");
  free_edges();
  state_.steps += 1.0;
  std::vector<OutEdge*> edges;
  for (OutEdge& edge : out_) {
    edge.is_served = false;
    if (may_carry_mass(edge) && sends_in_round(step, edge.peer)) edges.push_back(&edge);
  }
  send_along(edges, /*is_last=*/false);
}

void AsyncExchange::visit(StateVisitor& visitor) {
  visitor.number("run/mass", state_.mass);
  visitor.number("run/share_of_steps", state_.steps);
}

void AsyncExchange::close() {
  if (!is_open_) open(0);
  const auto is_over = [this] {
    return std::ranges::all_of(in_, [](const InEdge& edge) { return edge.is_closed; }) &&
           std::ranges::all_of(out_,
                               [](const OutEdge& edge) { return edge.is_closed && !edge.message; });
  };
  for (;;) {
    const Taken taken = take_arrived(0);
    if (!taken.messages.empty()) config_.mix(taken);
    acknowledge(kCloses);
    free_edges();
    std::vector<OutEdge*> edges;
    for (OutEdge& edge : out_) {
      if (!edge.message && !edge.is_closed) edges.push_back(&edge);
    }
    send_along(edges, /*is_last=*/true);
    if (is_over()) break;
    RequestState::Operations awaited;
    for (const InEdge& edge : in_) {
      if (!edge.is_closed) awaited.push_back(edge.arrival.state());
    }
    wait_for_news(std::move(awaited), /*awaits_own=*/true);
  }
  is_open_ = false;
}

}  // namespace gossamer
