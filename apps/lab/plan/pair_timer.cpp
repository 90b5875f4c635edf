#include "apps/lab/plan/pair_timer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <sstream>
#include <string>
#include <utility>

#include "apps/lab/bench/statistics.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUp = 3;
/// A small exchange takes about a round trip, or half of one. A pair whose small exchanges take
/// longer is far.
constexpr double kFar = 1e-3;
/// In small exchanges: how long a train of a far pair takes at least, and the part that does not
/// count.
constexpr double kLeastExchanges = 40.0;
constexpr double kStartExchanges = 15.0;
/// Trains of far pairs have this many blocks at least, so that some of them count.
constexpr int kLeastBlocks = 4;
constexpr int kMostBlocks = 4096;
/// Milliseconds of trains in which no more connections have come to share the blocks of a far pair.
/// The backend decides about them every half second or more (comm/tcp/stream_count.hpp).
constexpr int kSettledMs = 3000;
/// Trains grow by this more than the last one seems to need, because its start was slow.
constexpr double kMargin = 1.2;
/// Bytes and blocks under way: more than a far link holds.
constexpr std::int64_t kWindowBytes = std::int64_t{64} << 20U;
constexpr std::int64_t kLeastWindow = 3;
constexpr std::int64_t kMostWindow = 64;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<double> medians_of(const std::vector<std::vector<double>>& seconds) {
  std::vector<double> medians;
  for (const std::vector<double>& each : seconds) {
    medians.push_back(each.empty() ? 0.0 : median(each));
  }
  return medians;
}

}  // namespace

int blocks_wanted(const std::vector<double>& ends_s, double small_s) {
  const auto length = static_cast<int>(ends_s.size());
  const double missing = kLeastExchanges * small_s / ends_s.back();
  const bool is_long = length >= kLeastBlocks && missing <= 1.0;
  if (small_s < kFar || is_long || length >= kMostBlocks) return length;
  const double wanted = std::ceil(kMargin * missing * length);
  return static_cast<int>(std::clamp(wanted,
                                     static_cast<double>(std::max(length + 1, kLeastBlocks)),
                                     static_cast<double>(kMostBlocks)));
}

double steady_block_s(const std::vector<double>& ends_s, double small_s) {
  const double total_s = ends_s.back();
  if (std::ssize(ends_s) < kLeastBlocks) {
    // If the machine was busy meanwhile, small blocks may have taken longer than large ones.
    return (total_s > small_s ? total_s - small_s : total_s) / static_cast<double>(ends_s.size());
  }
  // The first block never counts, and the last one always does.
  const auto is_over = [&](double end_s) { return end_s >= kStartExchanges * small_s; };
  const auto from = std::ranges::find_if(ends_s.begin(), ends_s.end() - 2, is_over);
  return (total_s - *from) / static_cast<double>(ends_s.end() - 1 - from);
}

PairTimer::PairTimer(Communicator& communicator, const std::vector<RankPair>& pairs, bool together,
                     bool counts_tcp)
    : communicator_(communicator), pairs_(pairs), together_(together), counts_tcp_(counts_tcp) {}

void PairTimer::for_own_pairs(const std::function<void(std::size_t)>& work) {
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    if (p == 0 || !together_) communicator_.barrier();
    const auto& [a, b] = pairs_[p];
    if (communicator_.rank() == a || communicator_.rank() == b) work(p);
  }
}

std::vector<double> PairTimer::exchange_s(std::int64_t bytes, int count) {
  sent_ = Buffer(bytes, DType::kUInt8);
  received_.clear();
  std::vector<std::vector<double>> seconds(pairs_.size());
  for (int turn = -kWarmUp; turn < count; ++turn) {
    for_own_pairs([&](std::size_t p) {
      const double passed = run_train(p, 1).back();
      if (turn >= 0) seconds[p].push_back(passed);
    });
  }
  return medians_of(seconds);
}

std::vector<double> PairTimer::steady_s(std::int64_t bytes, int count,
                                        const std::vector<double>& small_s) {
  sent_ = Buffer(bytes, DType::kUInt8);
  received_.clear();
  const std::vector<int> lengths = find_lengths(small_s);
  traffic_.assign(pairs_.size(), {});
  std::vector<std::vector<double>> seconds(pairs_.size());
  for (int turn = 0; turn < count; ++turn) {
    for_own_pairs([&](std::size_t p) {
      if (turn > 0 && turn * lengths[p] >= count) return;
      const auto [ends_s, tcp] = run_counted_train(p, lengths[p]);
      seconds[p].push_back(steady_block_s(ends_s, small_s[p]));
      traffic_[p] += tcp;
    });
  }
  return medians_of(seconds);
}

std::vector<double> PairTimer::run_train(std::size_t pair, int length) {
  const auto& [a, b] = pairs_[pair];
  const int peer = communicator_.rank() == a ? b : a;
  const std::int64_t window = std::min<std::int64_t>(
      length, std::clamp(kWindowBytes / sent_.block().numel, kLeastWindow, kMostWindow));
  while (std::ssize(received_) < window) {
    received_.emplace_back(sent_.block().numel, DType::kUInt8);
  }
  const std::int64_t total = length == 1 ? 1 : length + window;
  std::deque<Request> under_way;
  std::vector<double> ends_s;
  const auto begin = Clock::now();
  const auto end_first = [&] {
    under_way.front().wait();
    under_way.pop_front();
    ends_s.push_back(seconds_since(begin));
  };
  for (std::int64_t i = 0; i < total; ++i) {
    if (std::ssize(under_way) == window) end_first();
    const Buffer& into = received_[static_cast<std::size_t>(i % window)];
    under_way.push_back(communicator_.exchange(peer, sent_.block(), into.block(),
                                               {.label = {.what = "link bench"}}));
  }
  while (!under_way.empty()) end_first();
  ends_s.resize(static_cast<std::size_t>(length));
  return ends_s;
}

PairTimer::CountedTrain PairTimer::run_counted_train(std::size_t pair, int length) {
  const TcpSnapshot before = counts_tcp_ ? tcp_snapshot() : TcpSnapshot();
  std::vector<double> ends_s = run_train(pair, length);
  return {.ends_s = std::move(ends_s),
          .tcp = counts_tcp_ ? traffic_between(before, tcp_snapshot()) : TcpTraffic()};
}

std::vector<int> PairTimer::find_lengths(const std::vector<double>& small_s) {
  std::vector<int> lengths(pairs_.size(), 1);
  std::vector<int> num_streams(pairs_.size(), 0);
  std::vector<int> settled_ms(pairs_.size(), 0);
  for (int turn = 1;; ++turn) {
    std::vector<int> wanted = lengths;
    for_own_pairs([&](std::size_t p) {
      const CountedTrain train = run_counted_train(p, lengths[p]);
      wanted[p] = blocks_wanted(train.ends_s, small_s[p]);
      const bool has_more =
          train.tcp.num_streams > std::exchange(num_streams[p], train.tcp.num_streams);
      const bool may_have_more = train.tcp.num_streams > 0 && small_s[p] >= kFar;
      settled_ms[p] = has_more ? 0 : settled_ms[p] + static_cast<int>(1e3 * train.ends_s.back());
      if (!may_have_more) settled_ms[p] = kSettledMs;
    });
    wanted = of_first_ranks(wanted);
    settled_ms = of_first_ranks(settled_ms);
    const bool is_settled =
        std::ranges::all_of(settled_ms, [](int time) { return time >= kSettledMs; });
    if (wanted == lengths && is_settled && turn >= kWarmUp) return lengths;
    lengths = std::move(wanted);
  }
}

std::vector<int> PairTimer::of_first_ranks(const std::vector<int>& numbers) {
  std::vector<std::string> words;
  for (const int number : numbers) words.push_back(std::to_string(number));
  const std::vector<std::string> texts = communicator_.all_gather(join(words, " "));
  std::vector<int> chosen;
  for (std::size_t p = 0; p < pairs_.size(); ++p) {
    const std::string& text = texts[static_cast<std::size_t>(pairs_[p].first)];
    std::istringstream stream(text);
    int number = 0;
    for (std::size_t i = 0; i <= p; ++i) stream >> number;
    chosen.push_back(number);
  }
  return chosen;
}

}  // namespace gossamer::apps
