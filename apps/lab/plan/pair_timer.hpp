#pragma once
// Times exchanges between pairs of ranks: small blocks for the latency, large ones for the
// bandwidth.
//
// TCP needs many round trips until it sends as fast as a far link allows, and begins anew after a
// pause. Large blocks of a far pair therefore follow one another without a pause, in a train. The
// train grows until it takes enough round trips, and the first of them do not count. A train on a
// near link is one block. Trains whose bytes still come to be shared by more connections do not
// count either (comm.streams: auto).
//
// Protocol: all ranks make the same calls. Either the pairs take turns, train by train, while the
// other ranks wait, or all pairs exchange at once. Errors: CommError. Not thread safe.

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/lab/plan/measured_links.hpp"
#include "apps/lab/plan/tcp_counters.hpp"
#include "base/buffer.hpp"
#include "comm/communicator.hpp"

namespace gossamer::apps {

/// How many blocks a train should have. `ends_s[i]`: seconds from its begin until block i was
/// there. `small_s`: the seconds of a small exchange between the two ranks. Returns the present
/// number when the train is long enough.
int blocks_wanted(const std::vector<double>& ends_s, double small_s);
/// Seconds that each further block adds to a train, without the slow start.
double steady_block_s(const std::vector<double>& ends_s, double small_s);

class PairTimer {
 public:
  /// `together`: all pairs exchange at once. `counts_tcp`: tcp_traffic() is wanted.
  PairTimer(Communicator& communicator, const std::vector<RankPair>& pairs, bool together,
            bool counts_tcp);

  /// The median seconds of `count` exchanges of `bytes`, for each pair; 0 for pairs of other ranks.
  std::vector<double> exchange_s(std::int64_t bytes, int count);
  /// The median seconds that a block of `bytes` takes in trains, of `count` blocks or more.
  /// `small_s` is what exchange_s() gives for small blocks.
  std::vector<double> steady_s(std::int64_t bytes, int count, const std::vector<double>& small_s);
  /// What TCP has sent for each pair during the last call of steady_s().
  [[nodiscard]] const std::vector<TcpTraffic>& tcp_traffic() const { return traffic_; }

 private:
  /// Calls `work` with the index of every pair that this rank is in.
  void for_own_pairs(const std::function<void(std::size_t)>& work);
  /// Seconds from the begin until each of `length` blocks was there. While they end, equally many
  /// others are under way, so a train of several has more blocks behind them.
  std::vector<double> run_train(std::size_t pair, int length);
  struct CountedTrain {
    std::vector<double> ends_s = {};
    TcpTraffic tcp = {};
  };
  /// The same, and what TCP has sent for it if that is wanted.
  CountedTrain run_counted_train(std::size_t pair, int length);
  /// The lengths of trains that are long enough, when no more connections come to share them.
  std::vector<int> find_lengths(const std::vector<double>& small_s);
  /// The numbers that the first rank of each pair gives.
  std::vector<int> of_first_ranks(const std::vector<int>& numbers);

  Communicator& communicator_;
  const std::vector<RankPair>& pairs_;
  bool together_;
  bool counts_tcp_;
  Buffer sent_;
  /// The inboxes, one for each block that is under way.
  std::vector<Buffer> received_;
  std::vector<TcpTraffic> traffic_;
};

}  // namespace gossamer::apps
