#include "apps/lab/plan/iteration_model.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <utility>

#include "apps/lab/plan/scheduled_traffic.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/text.hpp"

namespace gossamer::apps {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

struct SimulationEvent {
  enum class Kind : std::uint8_t { kGradient, kUpdated, kTransferOver };
  double time = 0.0;
  /// At equal times, events run in the order in which they were added.
  std::uint64_t order = 0;
  Kind kind = Kind::kGradient;
  /// The index of a rank or of an exchange in flight.
  std::int64_t subject = 0;
  int transfer = 0;
  friend bool operator>(const SimulationEvent& a, const SimulationEvent& b) {
    return std::pair(a.time, a.order) > std::pair(b.time, b.order);
  }
};

/// The exchange of one bucket in one round, by all ranks.
struct ModelledExchange {
  const Traffic* traffic = nullptr;
  std::int64_t key = 0;
  std::int64_t bucket = 0;
  /// For each transfer, the number of members and transfers that it still waits for.
  std::vector<int> missing = {};
  std::size_t num_open = 0;
};

/// The state of a link.
struct LinkState {
  double bandwidth = 1.0;
  /// Seconds per byte that each paying rank loses.
  double lost_s_per_byte = 0.0;
  /// The link whose lost_s counts the loss.
  int account = 0;
  /// The time at which the link will have served all transfers that have begun.
  double free_s = 0.0;
  /// What each paying rank has lost so far.
  double lost_s = 0.0;
  /// Bytes that it has carried in the steps that count.
  double bytes = 0.0;
};

struct RankState {
  std::int64_t step = 0;
  std::int64_t bucket = 0;
  /// All-reduce only: backward is over, and the rank waits for its buckets.
  bool settling = false;
  bool blocked = false;
  double blocked_since_s = 0.0;
  /// Seconds of forward and backward of this step.
  double compute_s = 0.0;
  /// node_account: the link whose lost_s counts the losses of the rank's node. paid_s: seconds of
  /// its own account and of the node's that the rank has already lost.
  int node_account = 0;
  double paid_s = 0.0;
  double counted_from_s = 0.0;
  double ended_s = 0.0;
  double waited_s = 0.0;
};

class Simulation {
 public:
  Simulation(const StepModel& model, const LinkTable& links, const TrafficSource& source,
             bool waits_in_step)
      : model_(model), table_(links), source_(source), waits_in_step_(waits_in_step) {
    for (int link = 0; link < links.size(); ++link) {
      const LinkSpeed speed = links.speed(link);
      links_.push_back({.bandwidth = speed.bandwidth,
                        .lost_s_per_byte = speed.lost_s_per_byte / links.num_payers(link),
                        .account = links.account(link)});
    }
    total_bytes_ = std::accumulate(model.bucket_bytes.begin(), model.bucket_bytes.end(), 0.0);
    waits_.resize(at(model.world.size * num_buckets()));
    due_.resize(waits_.size());
    for (int rank = 0; rank < model.world.size; ++rank) {
      random_.emplace_back(model.seed, static_cast<std::uint64_t>(rank));
      ranks_.push_back({.node_account = links.out_of_node(rank)});
    }
  }

  StepPrediction run() {
    for (int rank = 0; rank < model_.world.size; ++rank) begin_step(rank);
    while (!events_.empty()) {
      const SimulationEvent event = events_.top();
      events_.pop();
      now_s_ = event.time;
      switch (event.kind) {
        case SimulationEvent::Kind::kGradient:
          gradient_arrives(event.subject);
          break;
        case SimulationEvent::Kind::kUpdated:
          bucket_is_updated(event.subject);
          break;
        case SimulationEvent::Kind::kTransferOver:
          transfer_ends(event.subject, event.transfer);
          break;
      }
    }
    StepPrediction mean;
    const double count = static_cast<double>(model_.num_steps) * model_.world.size;
    for (const RankState& rank : ranks_) {
      mean.step_s += (rank.ended_s - rank.counted_from_s) / count;
      mean.wait_s += rank.waited_s / count;
    }
    for (int link = 0; link < table_.size(); ++link) {
      const double bytes = links_[at(link)].bytes;
      if (table_.leaves_rank(link)) mean.bytes_sent += bytes / count;
      if (table_.leaves_region(link)) {
        mean.bytes_across += bytes / static_cast<double>(model_.num_steps);
      }
    }
    return mean;
  }

 private:
  [[nodiscard]] std::int64_t num_buckets() const { return std::ssize(model_.bucket_bytes); }
  int& waits_of(std::int64_t rank, std::int64_t bucket) {
    return waits_[at(rank * num_buckets() + bucket)];
  }
  std::int64_t& due_of(std::int64_t rank, std::int64_t bucket) {
    return due_[at(rank * num_buckets() + bucket)];
  }

  void push(double time, SimulationEvent::Kind kind, std::int64_t subject, int transfer = 0) {
    events_.push({time, num_events_++, kind, subject, transfer});
  }

  /// Seconds of backward until the rank's next bucket is ready.
  double backward_s(const RankState& rank) const {
    return rank.compute_s * model_.backward_share * model_.bucket_bytes[at(rank.bucket)] /
           total_bytes_;
  }

  /// Seconds that transfers have taken from a rank since the last call.
  double lost_s(std::int64_t index) {
    RankState& rank = ranks_[at(index)];
    const double total = links_[at(index)].lost_s + links_[at(rank.node_account)].lost_s;
    return total - std::exchange(rank.paid_s, total);
  }

  void begin_step(std::int64_t index) {
    RankState& rank = ranks_[at(index)];
    rank.compute_s = model_.compute_s;
    if (model_.straggler_cv > 0.0) {
      const double variance = model_.straggler_cv * model_.straggler_cv;
      rank.compute_s *= variance * random_[at(index)].gamma(1.0 / variance);
    }
    rank.bucket = 0;
    rank.settling = false;
    const double forward_s = rank.compute_s * (1.0 - model_.backward_share);
    push(now_s_ + forward_s + backward_s(rank) + lost_s(index), SimulationEvent::Kind::kGradient,
         index);
  }

  void end_step(std::int64_t index) {
    RankState& rank = ranks_[at(index)];
    ++rank.step;
    if (rank.step == model_.num_warmup) {
      rank.counted_from_s = now_s_;
      rank.waited_s = 0.0;
    }
    rank.ended_s = now_s_;
    if (rank.step < model_.num_warmup + model_.num_steps) begin_step(index);
  }

  void gradient_arrives(std::int64_t index) {
    RankState& rank = ranks_[at(index)];
    if (!waits_in_step_) {
      await_bucket(index);
      return;
    }
    start_exchange(index);
    if (++rank.bucket < num_buckets()) {
      push(now_s_ + backward_s(rank) + lost_s(index), SimulationEvent::Kind::kGradient, index);
      return;
    }
    rank.settling = true;
    rank.bucket = 0;
    await_bucket(index);
  }

  void await_bucket(std::int64_t index) {
    RankState& rank = ranks_[at(index)];
    if (waits_of(index, rank.bucket) > 0 && rank.step >= due_of(index, rank.bucket)) {
      rank.blocked = true;
      rank.blocked_since_s = now_s_;
      return;
    }
    const double bytes = model_.bucket_bytes[at(rank.bucket)];
    const double speed = model_.links.update_bytes_per_s;
    push(now_s_ + (speed > 0.0 ? bytes / speed : 0.0), SimulationEvent::Kind::kUpdated, index);
  }

  void bucket_is_updated(std::int64_t index) {
    RankState& rank = ranks_[at(index)];
    if (!waits_in_step_) start_exchange(index);
    if (++rank.bucket == num_buckets()) {
      end_step(index);
    } else if (rank.settling) {
      await_bucket(index);
    } else {
      push(now_s_ + backward_s(rank) + lost_s(index), SimulationEvent::Kind::kGradient, index);
    }
  }

  void start_exchange(std::int64_t index) {
    const RankState& rank = ranks_[at(index)];
    const Traffic* traffic = source_(rank.step, rank.bucket);
    if (traffic == nullptr) return;
    if (waits_of(index, rank.bucket) > 0) {
      throw ConfigError(
          "a bucket starts an exchange while it still has one under way, which a plan does not "
          "follow; allowed: algorithms that wait for the one before");
    }
    waits_of(index, rank.bucket) = traffic->num_waits[at(index)];
    due_of(index, rank.bucket) = rank.step + traffic->late;
    if (traffic->starts[at(index)].empty()) return;
    const std::int64_t slot = slot_of(rank.step * num_buckets() + rank.bucket, traffic);
    for (const int transfer : traffic->starts[at(index)]) one_less(slot, transfer);
  }

  /// The slot of an exchange; the first rank that starts the exchange creates it.
  std::int64_t slot_of(std::int64_t key, const Traffic* traffic) {
    const auto [found, is_new] = slots_.try_emplace(key, 0);
    if (!is_new) return found->second;
    if (unused_.empty()) {
      unused_.push_back(std::ssize(exchanges_));
      exchanges_.emplace_back();
    }
    found->second = unused_.back();
    unused_.pop_back();
    ModelledExchange& exchange = exchanges_[at(found->second)];
    exchange.traffic = traffic;
    exchange.key = key;
    exchange.bucket = key % num_buckets();
    exchange.num_open = traffic->transfers.size();
    exchange.missing.clear();
    for (const Transfer& transfer : traffic->transfers) {
      exchange.missing.push_back(static_cast<int>(transfer.members.size()) + transfer.num_before);
    }
    return found->second;
  }

  void one_less(std::int64_t slot, int index) {
    ModelledExchange& exchange = exchanges_[at(slot)];
    if (--exchange.missing[at(index)] > 0) return;
    const Transfer& transfer = exchange.traffic->transfers[at(index)];
    const double bytes = model_.bucket_bytes[at(exchange.bucket)];
    const bool counts = exchange.key / num_buckets() >= model_.num_warmup;
    const double latency_s = transfer.latency_s + transfer.ready_s;
    double end_s = now_s_ + (transfer.holds_links ? latency_s : 0.0);
    for (const Flow& flow : transfer.flows) {
      LinkState& link = links_[at(flow.link)];
      link.free_s = std::max(link.free_s, now_s_) + flow.share * bytes / link.bandwidth;
      if (transfer.holds_links) link.free_s += latency_s;
      end_s = std::max(end_s, link.free_s);
      links_[at(link.account)].lost_s += flow.share * bytes * link.lost_s_per_byte;
      if (counts) link.bytes += flow.share * bytes;
    }
    if (!transfer.holds_links) end_s += latency_s;
    push(end_s, SimulationEvent::Kind::kTransferOver, slot, index);
  }

  void transfer_ends(std::int64_t slot, int index) {
    const Traffic& traffic = *exchanges_[at(slot)].traffic;
    const Transfer& transfer = traffic.transfers[at(index)];
    const std::int64_t bucket = exchanges_[at(slot)].bucket;
    for (const int next : transfer.next) one_less(slot, next);
    if (--exchanges_[at(slot)].num_open == 0) {
      slots_.erase(exchanges_[at(slot)].key);
      unused_.push_back(slot);
    }
    for (const int rank : transfer.waiters) {
      if (--waits_of(rank, bucket) > 0) continue;
      RankState& state = ranks_[at(rank)];
      if (!state.blocked || state.bucket != bucket) continue;
      state.blocked = false;
      state.waited_s += now_s_ - state.blocked_since_s;
      await_bucket(rank);
    }
  }

  const StepModel& model_;
  const LinkTable& table_;
  const TrafficSource& source_;
  bool waits_in_step_;
  std::vector<LinkState> links_;
  double total_bytes_ = 0.0;
  std::vector<RankState> ranks_;
  /// The random numbers of each rank. Outside of RankState, because one Random takes kilobytes and
  /// is needed only once a step.
  std::vector<Random> random_;
  /// For each rank and bucket, the number of transfers that the exchange in flight waits for.
  std::vector<int> waits_;
  /// The step from which on a rank waits for that exchange.
  std::vector<std::int64_t> due_;
  std::unordered_map<std::int64_t, std::int64_t> slots_;
  std::vector<ModelledExchange> exchanges_;
  std::vector<std::int64_t> unused_;
  std::priority_queue<SimulationEvent, std::vector<SimulationEvent>, std::greater<>> events_;
  std::uint64_t num_events_ = 0;
  double now_s_ = 0.0;
};

bool is_between(double value, double low, double high) { return value >= low && value <= high; }

void check(const StepModel& model) {
  if (!is_between(model.compute_s, 0.0, 1e6)) {
    throw ConfigError(concat("A step cannot compute for ", model.compute_s,
                             " seconds; allowed: 0 to a million."));
  }
  if (!is_between(model.backward_share, 0.0, 1.0)) {
    throw ConfigError("The share of backward must be from 0 to 1.");
  }
  if (!is_between(model.straggler_cv, 0.0, 10.0)) {
    throw ConfigError(concat("The spread of compute times cannot be ", model.straggler_cv,
                             "; allowed: 0 to 10 times the mean."));
  }
  if (model.num_steps < 1 || model.num_warmup < 1) {
    throw ConfigError("At least one step must be followed, after at least one to warm up.");
  }
  if (model.bucket_bytes.empty()) throw ConfigError("There must be at least one bucket.");
  for (const double bytes : model.bucket_bytes) {
    if (is_between(bytes, 1.0, 1e15)) continue;
    throw ConfigError(concat("A bucket cannot have ", bytes, " bytes; allowed: 1 to 1e15."));
  }
}

}  // namespace

std::vector<double> split_into_buckets(double model_bytes, double bucket_bytes, std::int64_t most) {
  if (!is_between(model_bytes, 1.0, 1e15) || !is_between(bucket_bytes, 1.0, 1e15)) {
    throw ConfigError("Model and buckets must have between 1 and 1e15 bytes.");
  }
  const double count = std::ceil(model_bytes / bucket_bytes);
  if (count > static_cast<double>(most)) {
    return std::vector<double>(at(most), model_bytes / static_cast<double>(most));
  }
  std::vector<double> sizes(static_cast<std::size_t>(count), bucket_bytes);
  sizes.back() = model_bytes - bucket_bytes * (count - 1.0);
  // A division that was rounded up may leave a last bucket of less than a byte.
  if (sizes.back() < 1.0) sizes.pop_back();
  return sizes;
}

StepPrediction predict(const StepModel& model, const LinkTable& links, const TrafficSource& source,
                       bool waits_in_step) {
  check(model);
  return Simulation(model, links, source, waits_in_step).run();
}

StepPrediction predict_schedule(const StepModel& model, const ExchangeSchedule& schedule,
                                const Topology* topology, const Codec* codec) {
  check(model);
  const LinkTable links(model.world, model.links);
  ScheduledTraffic traffic(schedule, links, topology, codec);
  const auto source = [&](std::int64_t k, std::int64_t bucket) { return traffic.of(k, bucket); };
  return predict(model, links, source, schedule.waits_in_step());
}

StepPrediction predict_local(const StepModel& model) {
  check(model);
  const LinkTable links(model.world, model.links);
  const auto nothing = [](std::int64_t, std::int64_t) { return nullptr; };
  return predict(model, links, nothing, /*waits_in_step=*/false);
}

}  // namespace gossamer::apps
