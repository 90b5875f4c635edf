#pragma once
// The way of packets between far hosts: when each packet arrives, and which packets are lost.
//
// Every host has a link that it sends on and a link that it receives on. A packet passes the link
// of its sender, travels for half the round trip, and passes the link of its receiver. A link has a
// rate and a queue. It drops a packet that would wait longer than the queue allows. The network
// between the links loses packets at random, with the same seed in every run. The packets of one
// pair of hosts arrive in the order in which they were sent.
//
// Protocol: send() every packet, then advance() to the present; next() says when to call advance()
// again. Time is an argument of all calls and must not go back. Not thread-safe.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

namespace gossamer::hosts {

using Time = std::chrono::steady_clock::time_point;
using Packet = std::vector<std::byte>;

/// What all hosts of a network have in common.
struct NetworkSettings {
  int num_hosts = 2;
  /// What a host may send, and what it may receive. Above 0.
  std::int64_t bits_per_second = 500'000'000;
  /// Between any two hosts; half of it each way.
  std::chrono::nanoseconds round_trip{0};
  /// The part of all packets that is lost, from 0 to 1.
  double loss = 0;
};

/// One direction of a host's connection: a rate and the queue before it.
class Link {
 public:
  Link(std::int64_t bits_per_second, std::chrono::nanoseconds longest_wait)
      : bits_per_second_(bits_per_second), longest_wait_(longest_wait) {}

  /// When the last bit of a packet has passed that comes at `arrival`. Empty when the queue is
  /// full.
  std::optional<Time> pass(Time arrival, std::size_t num_bytes) {
    const Time start = std::max(arrival, free_at_);
    if (start - arrival > longest_wait_) return std::nullopt;
    // Rounded up, so that no stream exceeds the rate.
    const auto bit_nanoseconds = static_cast<std::int64_t>(num_bytes) * 8 * 1'000'000'000;
    free_at_ = start + std::chrono::nanoseconds((bit_nanoseconds + bits_per_second_ - 1) /
                                                bits_per_second_);
    return free_at_;
  }

 private:
  std::int64_t bits_per_second_;
  std::chrono::nanoseconds longest_wait_;
  Time free_at_{};
};

class PacketSchedule {
 public:
  /// The queue of a link is never shorter. TCP needs a queue even where the round trip is short.
  static constexpr std::chrono::milliseconds kShortestQueue{50};

  explicit PacketSchedule(const NetworkSettings& settings)
      : one_way_((settings.round_trip + std::chrono::nanoseconds(1)) / 2), lost_(settings.loss) {
    const auto longest_wait =
        std::max<std::chrono::nanoseconds>(settings.round_trip, kShortestQueue);
    const Link link(settings.bits_per_second, longest_wait);
    sending_.assign(static_cast<std::size_t>(settings.num_hosts), link);
    receiving_ = sending_;
  }

  /// Host `from` sends a packet to host `to`.
  void send(Time now, int from, int to, Packet packet) {
    const auto sent = sending_[static_cast<std::size_t>(from)].pass(now, packet.size());
    if (!sent || lost_(random_)) return;
    add({*sent + one_way_, num_added_, to, false, std::move(packet)});
  }

  /// When advance() has something to do. Empty when no packet is on its way.
  std::optional<Time> next() const {
    if (waiting_.empty()) return std::nullopt;
    return waiting_.front().due;
  }

  /// Calls deliver(to, packet) for every packet that has arrived by `now`.
  template <class Deliver>
  void advance(Time now, Deliver&& deliver) {
    while (!waiting_.empty() && waiting_.front().due <= now) {
      std::pop_heap(waiting_.begin(), waiting_.end(), later);
      Event event = std::move(waiting_.back());
      waiting_.pop_back();
      if (event.received) {
        deliver(event.to, event.packet);
        continue;
      }
      const auto received =
          receiving_[static_cast<std::size_t>(event.to)].pass(event.due, event.packet.size());
      if (received) add({*received, num_added_, event.to, true, std::move(event.packet)});
    }
  }

 private:
  struct Event {
    Time due;
    /// Settles the order of events of one time.
    std::uint64_t index;
    int to;
    /// The packet has passed the receiver's link as well.
    bool received;
    Packet packet;
  };

  static bool later(const Event& a, const Event& b) {
    return a.due != b.due ? a.due > b.due : a.index > b.index;
  }

  void add(Event event) {
    ++num_added_;
    waiting_.push_back(std::move(event));
    std::push_heap(waiting_.begin(), waiting_.end(), later);
  }

  std::chrono::nanoseconds one_way_;
  std::bernoulli_distribution lost_;
  std::mt19937_64 random_;
  std::vector<Link> sending_;
  std::vector<Link> receiving_;
  /// A heap whose front is due first.
  std::vector<Event> waiting_;
  std::uint64_t num_added_ = 0;
};

}  // namespace gossamer::hosts
