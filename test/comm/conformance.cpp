#include "test/comm/conformance.hpp"

#include "test/comm/values.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/buffer.hpp"
#include "base/random.hpp"
#include "optim/block_update.hpp"

namespace gossamer {
namespace {

template <class T>
void exchange_with_everybody(Communicator& communicator) {
  const int rank = communicator.rank();
  for (int step = 1; step < communicator.size(); ++step) {
    // A round-robin pairing, so that pairs of every distance meet without waiting in a circle.
    for (int peer = 0; peer < communicator.size(); ++peer) {
      if ((rank ^ peer) != step || peer == rank) continue;
      for (const std::int64_t numel : kSizes) {
        // Large blocks with one peer only.
        if (step > 1 && numel == kSizes.back()) continue;
        const Values<T> mine(communicator, values_of<T>(rank, numel));
        const Values<T> theirs(communicator, mine.size());
        communicator.exchange(peer, mine.block(), theirs.block(), {}).wait();
        require(theirs == values_of<T>(peer, numel), "exchange of ", numel, " elements with ",
                peer);
        require(mine == values_of<T>(rank, numel), "what was sent has changed");
      }
    }
  }
}

void exchanges_pairs(Communicator& communicator) {
  exchange_with_everybody<float>(communicator);
  exchange_with_everybody<double>(communicator);
  exchange_with_everybody<std::int64_t>(communicator);
  exchange_with_everybody<std::uint8_t>(communicator);
  exchange_with_everybody<BFloat16>(communicator);
}

void broadcasts_from_every_root(Communicator& communicator) {
  for (int root = 0; root < communicator.size(); ++root) {
    for (const std::int64_t numel : kSizes) {
      const Values<std::uint8_t> values(communicator,
                                        values_of<std::uint8_t>(communicator.rank(), numel));
      communicator.broadcast(values.block(), root, {}).wait();
      require(values == values_of<std::uint8_t>(root, numel), "broadcast from ", root);
    }
  }
}

void gathers_texts(Communicator& communicator) {
  const auto text_of = [](int rank) {
    if (rank % 3 == 0) return std::string();
    std::string text(static_cast<std::size_t>(rank) * 1'000, 'x');
    text[5] = '\0';
    return text + std::to_string(rank);
  };
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto texts = communicator.all_gather(text_of(communicator.rank()));
    require(std::ssize(texts) == communicator.size(), "one text per rank");
    for (int rank = 0; rank < communicator.size(); ++rank) {
      require(texts[static_cast<std::size_t>(rank)] == text_of(rank), "the text of rank ", rank);
    }
  }
}

void splits(Communicator& communicator) {
  const int rank = communicator.rank();
  require(communicator.split(-1) == nullptr, "nobody wants a communicator");
  // The first rank stays out; the others are dealt to two groups.
  const auto part = communicator.split(rank == 0 ? -1 : rank % 2);
  require((part == nullptr) == (rank == 0), "only rank 0 stays out");
  const auto all = communicator.split(7);
  require(all->size() == communicator.size() && all->rank() == rank, "all ranks in order");
  if (part) {
    std::vector<int> expected;
    for (int member = 1; member < communicator.size(); ++member) {
      if (member % 2 == rank % 2)
        expected.push_back(communicator.world_ranks()[static_cast<std::size_t>(member)]);
    }
    require(part->world_ranks() == expected, "the members of a part");
    require(own_world_rank(*part) == own_world_rank(communicator), "own place");
    sums_over_all(*part);
    exchange_with_everybody<float>(*part);
    reduces_to_every_root(*part);
    broadcasts_from_every_root(*part);
    gathers_texts(*part);
    const auto single = part->split(part->rank());
    require(single->size() == 1, "a group of one");
    sums_over_all(*single);
    single->barrier();
  }
  communicator.barrier();
}

/// Many exchanges with one peer: started in the same order, waited for in any.
void keeps_many_exchanges_in_flight(Communicator& communicator) {
  const int peer = communicator.rank() ^ 1;
  if (peer >= communicator.size()) return;
  Random random(3, static_cast<std::uint64_t>(communicator.rank()));
  std::vector<Values<float>> sent;
  std::vector<Values<float>> received;
  std::vector<Request> requests;
  constexpr int kCount = 20;
  for (int k = 0; k < kCount; ++k) {
    const std::int64_t numel = kSizes[static_cast<std::size_t>(k) % kSizes.size()];
    sent.emplace_back(communicator, values_of<float>(communicator.rank(), numel, k));
    received.emplace_back(communicator, sent.back().size());
  }
  for (std::size_t k = 0; k < kCount; ++k) {
    requests.push_back(communicator.exchange(peer, sent[k].block(), received[k].block(), {}));
  }
  std::vector<std::size_t> order(kCount);
  std::iota(order.begin(), order.end(), std::size_t{0});
  random.shuffle(std::span(order));
  for (const std::size_t k : order) {
    requests[k].wait();
    require(requests[k].done() && !requests[k].pending(), "over after wait()");
    require(received[k] == values_of<float>(peer, sent[k].block().numel, static_cast<int>(k)),
            "exchange ", k);
  }
}

/// Everybody sends to the ranks 1 and 2 (and so on, up to `reach`) after it, on a circle: one
/// direction only, several messages at once, twice over with other values.
void exchanges_with_neighbors(Communicator& communicator) {
  const int size = communicator.size();
  const int rank = communicator.rank();
  for (int reach = 0; reach < size; ++reach) {
    std::vector<int> peers;
    std::vector<int> sources;
    for (int distance = 1; distance <= reach; ++distance) {
      peers.push_back((rank + distance) % size);
      sources.push_back((rank + size - distance) % size);
    }
    for (const std::int64_t numel : kSizes) {
      std::vector<Values<float>> mine;
      std::vector<Values<float>> theirs;
      std::vector<Request> requests;
      for (int salt = 0; salt < 2; ++salt) {
        mine.emplace_back(communicator, values_of<float>(rank, numel, salt));
      }
      for (std::size_t salt = 0; salt < 2; ++salt) {
        std::vector<Incoming> incoming;
        for (const int source : sources) {
          theirs.emplace_back(communicator, static_cast<std::size_t>(numel));
          incoming.push_back({source, theirs.back().block()});
        }
        requests.push_back(
            communicator.exchange_with_neighbors(mine[salt].block(), peers, incoming, {}));
      }
      for (Request& request : requests) request.wait();
      for (int salt = 0; salt < 2; ++salt) {
        for (std::size_t s = 0; s < sources.size(); ++s) {
          require(theirs[static_cast<std::size_t>(salt) * sources.size() + s] ==
                      values_of<float>(sources[s], numel, salt),
                  numel, " elements from neighbour ", sources[s]);
        }
      }
    }
  }
}

/// Rank 0 only sends, the last one only receives, who is in between does both or nothing.
void exchanges_unevenly(Communicator& communicator) {
  const int last = communicator.size() - 1;
  const int rank = communicator.rank();
  if (last == 0) return;
  const Values<double> mine(communicator, values_of<double>(rank, 1025));
  const Values<double> theirs(communicator, mine.size());
  std::vector<int> peers;
  std::vector<Incoming> incoming;
  if (rank == 0) peers = {last};
  if (rank == last) incoming = {{0, theirs.block()}};
  communicator.exchange_with_neighbors(mine.block(), peers, incoming, {}).wait();
  if (rank == last) require(theirs == values_of<double>(0, 1025), "what rank 0 sent");
  communicator.barrier();
}

/// Sum, then exchange of the sums, then broadcast of what came: every link starts by itself. Two
/// chains at once, on communicators of their own for each link.
void runs_chains(Communicator& communicator) {
  const int size = communicator.size();
  const int rank = communicator.rank();
  const auto pairs = communicator.split(rank / 2);
  const auto pairs_again = communicator.split(rank / 2);
  const int other_leader = rank ^ 2;
  const bool exchanges = rank % 2 == 0 && other_leader < size;
  constexpr std::size_t kNumel = 2'000;
  constexpr int kChains = 2;
  std::vector<Values<float>> mine;
  std::vector<Values<float>> sums;
  std::vector<Values<float>> others;
  std::vector<Request> ends;
  for (int salt = 0; salt < kChains; ++salt) {
    mine.emplace_back(communicator, values_of<float>(rank, kNumel, salt));
    sums.emplace_back(communicator, kNumel);
    others.emplace_back(communicator, kNumel);
  }
  for (std::size_t c = 0; c < kChains; ++c) {
    Request link = pairs->all_reduce_sum(mine[c].block(), sums[c].block(), {});
    if (exchanges) {
      link = communicator.exchange(other_leader, sums[c].block(), others[c].block(),
                                   {.after = link.state()});
    }
    const auto owner = both(sums[c].owner(), others[c].owner());
    const auto add = [stream = pairs_again->stream(), sum = sums[c].block(),
                      other = others[c].block(), owner]() -> EventPtr {
      enqueue_mix(*stream, sum, 1.0, {{other, 1.0}});
      stream->keep(owner);
      return stream->record();
    };
    ends.push_back(
        pairs_again->broadcast(sums[c].block(), 0, {.after = link.state(), .prepare = add}));
  }
  for (Request& end : ends) end.wait();
  for (std::size_t c = 0; c < kChains; ++c) {
    const std::vector<float> result = sums[c].read();
    for (std::size_t i = 0; i < kNumel; ++i) {
      float expected = 0.0F;
      const int first = rank / 4 * 4;
      for (int member = first; member < std::min(first + 4, size); ++member) {
        expected += value_of<float>(member, static_cast<std::int64_t>(i), static_cast<int>(c));
      }
      require(result[i] == expected, "element ", i, " of chain ", c);
    }
  }
}

/// Exchanges with two neighbours and sums in two groups, all under way together.
void mixes_peers_and_groups(Communicator& communicator) {
  const int size = communicator.size();
  const int rank = communicator.rank();
  const auto copy = communicator.split(0);
  const Values<float> mine(communicator, values_of<float>(rank, 4'099));
  std::vector<Values<float>> results;
  for (int i = 0; i < 6; ++i) results.emplace_back(communicator, mine.size());
  std::vector<Request> requests;
  std::vector<int> peers(results.size(), -1);
  for (std::size_t turn = 0; turn < 2; ++turn) {
    // Even ranks meet their right neighbour in the first turn and their left one in the second.
    const int peer = (rank % 2 == 0) == (turn == 0) ? rank + 1 : rank - 1;
    if (peer >= 0 && peer < size) {
      peers[turn] = peer;
      requests.push_back(communicator.exchange(peer, mine.block(), results[turn].block(), {}));
    }
    requests.push_back(copy->all_reduce_sum(mine.block(), results[2 + turn].block(), {}));
    requests.push_back(communicator.all_reduce_sum(mine.block(), results[4 + turn].block(), {}));
  }
  std::ranges::reverse(requests);
  for (Request& request : requests) request.wait();
  for (std::size_t turn = 0; turn < 2; ++turn) {
    if (peers[turn] < 0) continue;
    require(results[turn] == values_of<float>(peers[turn], 4'099), "neighbour ", peers[turn]);
  }
  const std::vector<float> sum = results[2].read();
  require(results[3] == sum && results[4] == sum && results[5] == sum, "the same sum four times");
}

/// A request that nobody waits for goes on, and its owner lives as long.
void finishes_what_nobody_waits_for(Communicator& communicator) {
  const int peer = communicator.rank() ^ 1;
  if (peer < communicator.size()) {
    auto sent = std::make_shared<Values<float>>(communicator,
                                                values_of<float>(communicator.rank(), 100'000));
    auto received = std::make_shared<Values<float>>(communicator, sent->size());
    const std::weak_ptr<Values<float>> watched = received;
    const Block from = sent->block();
    const Block to = received->block();
    Request dropped = communicator.exchange(peer, from, to,
                                            {.owner = both(std::move(sent), std::move(received))});
    dropped = Request();
    const Values<float> mine(communicator, 1);
    const Values<float> theirs(communicator, 1);
    communicator.exchange(peer, mine.block(), theirs.block(), {}).wait();
    // Both ends of the first are submitted now, so that it comes to its end by itself.
    while (!watched.expired()) {
      // A device's stream drops owners when it is used.
      communicator.stream()->synchronize();
      std::this_thread::yield();
    }
  }
  communicator.barrier();
}

template <class Error, class Work>
void require_throw(const Work& work, std::string_view what) {
  try {
    work();
  } catch (const Error&) {
    return;
  }
  require(false, "no error: ", what);
}

void refuses_nonsense(Communicator& communicator) {
  const Values<float> four(communicator, 4);
  const Values<float> five(communicator, 5);
  const Values<double> doubles(communicator, 4);
  require_throw<std::logic_error>(
      [&] { communicator.exchange(communicator.rank(), four.block(), four.block(), {}); },
      "an exchange with oneself");
  require_throw<std::logic_error>(
      [&] { communicator.exchange(communicator.size(), four.block(), four.block(), {}); },
      "a peer that does not exist");
  require_throw<std::logic_error>(
      [&] { communicator.all_reduce_sum(four.block(), five.block(), {}); }, "different sizes");
  require_throw<std::logic_error>(
      [&] { communicator.exchange_with_neighbors(four.block(), {communicator.rank()}, {}, {}); },
      "a neighbour that is the rank itself");
  require_throw<std::logic_error>(
      [&] {
        const Incoming from{.peer = (communicator.rank() + 1) % communicator.size(),
                            .block = five.block()};
        communicator.exchange_with_neighbors(four.block(), {}, {from}, {});
      },
      "a neighbour's block of another size");
  require_throw<std::logic_error>(
      [&] {
        communicator.exchange_with_neighbors(four.block(), {-1, -1}, {}, {});
      },
      "neighbours that do not exist");
  require_throw<std::logic_error>(
      [&] { communicator.all_reduce_sum(four.block(), doubles.block(), {}); }, "different types");
  const Values<std::uint8_t> bytes(communicator, 4);
  const Values<BFloat16> halves(communicator, 4);
  for (const Block& block : {bytes.block(), halves.block()}) {
    require_throw<std::logic_error>([&] { communicator.all_reduce_sum(block, block, {}); },
                                    "a sum of what cannot be summed");
  }
  const Buffer host_bytes(4, DType::kUInt8);
  const Buffer host_floats(4, DType::kFloat32);
  require_throw<std::logic_error>([&] { communicator.reduce_sum(host_bytes.block(), 0, {}); },
                                  "a reduction of what cannot be summed");
  require_throw<std::logic_error>([&] { communicator.reduce_sum(host_floats.block(), -1, {}); },
                                  "a root of a reduction that does not exist");
  require_throw<std::logic_error>([&] { communicator.broadcast(four.block(), -1, {}); },
                                  "a root that does not exist");
  communicator.barrier();
}

constexpr std::array kCases = {
    ConformanceCase{"ExchangesPairs", exchanges_pairs},
    ConformanceCase{"ExchangesWithNeighbors", exchanges_with_neighbors},
    ConformanceCase{"ExchangesUnevenly", exchanges_unevenly},
    ConformanceCase{"RunsChains", runs_chains},
    ConformanceCase{"SumsOverAll", sums_over_all},
    ConformanceCase{"RepeatsSumsBitForBit", repeats_sums_bit_for_bit},
    ConformanceCase{"KeepsManySumsInFlight", keeps_many_sums_in_flight},
    ConformanceCase{"ReducesToEveryRoot", reduces_to_every_root},
    ConformanceCase{"BroadcastsFromEveryRoot", broadcasts_from_every_root},
    ConformanceCase{"GathersTexts", gathers_texts},
    ConformanceCase{"SendsLetters", sends_messages},
    ConformanceCase{"SharesMemory", shares_memory},
    ConformanceCase{"Splits", splits},
    ConformanceCase{"KeepsManyExchangesInFlight", keeps_many_exchanges_in_flight},
    ConformanceCase{"MixesPeersAndGroups", mixes_peers_and_groups},
    ConformanceCase{"FinishesWhatNobodyWaitsFor", finishes_what_nobody_waits_for},
    ConformanceCase{"RefusesNonsense", refuses_nonsense},
};

}  // namespace

std::span<const ConformanceCase> conformance_cases() { return kCases; }

}  // namespace gossamer
