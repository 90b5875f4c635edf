#include "apps/lab/simulate/virtual_wire.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "core/exchange/shard.hpp"
#include "core/exchange/tree_lane.hpp"
#include "optim/optimizer.hpp"
#include "topology/registry.hpp"

namespace gossamer::apps {
namespace {

// The plans of a period are kept if it has at most kFewRounds or, in ranks times rounds,
// kMostPlannedRankRounds; a rank takes about 40 bytes in a round. Other plans are made anew in
// every period.
constexpr std::int64_t kFewRounds = 64;
constexpr std::int64_t kMostPlannedRankRounds = std::int64_t{1} << 22;

bool is_one(double value) { return value == 1.0; }

std::shared_ptr<const Topology> topology_of(const LaneSpec& spec,
                                            std::shared_ptr<const Topology> topology,
                                            int world_size) {
  if (spec.members != LaneMembers::kAll) return topology;
  return make_topology("complete", {.size = world_size, .node_size = world_size});
}

}  // namespace

/// Memory for the messages of one shard.
class VirtualWire::SumMemory {
 public:
  explicit SumMemory(const CodedSum& sum)
      : num_ranks_(sum.num_ranks()),
        bytes_(sum.message_bytes()),
        distance_(sum.message_distance()),
        memory_((num_ranks_ + 1) * distance_, DType::kUInt8) {}

  [[nodiscard]] Block message(std::int64_t rank) const {
    return part_of(memory_.block(), rank * distance_, bytes_);
  }
  [[nodiscard]] SummandRow messages() const { return {message(0), distance_, num_ranks_}; }
  [[nodiscard]] Block result() const { return message(num_ranks_); }

 private:
  std::int64_t num_ranks_;
  std::int64_t bytes_;
  std::int64_t distance_;
  Buffer memory_;
};

VirtualWire::VirtualWire(const LaneSpec& spec, std::shared_ptr<const Topology> topology,
                         int world_size, const Codec* codec)
    : spec_(spec),
      topology_(topology_of(spec, std::move(topology), world_size)),
      world_size_(world_size),
      codec_(codec != nullptr && spec.result == LaneResult::kMix ? codec->mixing() : nullptr),
      push_sum_(world_size),
      rows_(world_size * spec.numel, spec.dtype),
      work_of_(static_cast<std::size_t>(world_size)),
      has_arrived_(static_cast<std::size_t>(world_size)) {
  if (spec.result != LaneResult::kApart && spec.dtype != DType::kFloat64) {
    throw std::logic_error("VirtualWire: only float64 can be summed");
  }
  if (spec.result == LaneResult::kShardSum) {
    throw ConfigError(
        "simulated ranks hold all of the optimizer's states; take algorithm.shard: none, which "
        "gives the same results");
  }
  if (codec != nullptr && spec.result == LaneResult::kSum && spec.num_coded > 0 && world_size > 1) {
    coded_sum_.emplace(*codec, spec, world_size);
  }
  if (spec.members == LaneMembers::kTree) {
    std::int64_t num_rows = 0;
    peers_ = tree_peers(*topology_, world_size);
    for (const std::vector<int>& peers : peers_) {
      first_row_.push_back(num_rows);
      num_rows += std::ssize(peers);
    }
    rows_ = Buffer(num_rows * spec.numel, spec.dtype);
    heard_rows_ = Buffer(num_rows * spec.numel, spec.dtype);
  }
  if (codec_ == nullptr) return;
  encoded_rows_ = Buffer(world_size * codec_->encoded_bytes(spec.numel), DType::kUInt8);
}

Block VirtualWire::row(std::int64_t index) const {
  return part_of(rows_.block(), index * spec_.numel, spec_.numel);
}

Block VirtualWire::encoded_row(std::int64_t rank) const {
  const std::int64_t bytes = codec_->encoded_bytes(spec_.numel);
  return part_of(encoded_rows_.block(), rank * bytes, bytes);
}

bool VirtualWire::hears_ranks(const RowWork& work) const {
  const auto terms = std::span(plan_->terms())
                         .subspan(static_cast<std::size_t>(work.first),
                                  static_cast<std::size_t>(work.last - work.first));
  return std::ranges::all_of(terms, [this](const RowTerm& t) { return t.row < world_size_; });
}

void VirtualWire::start(int rank, std::int64_t k, const ConstBlock& send,
                        const std::optional<Grid>& grid) {
  if (num_started_.fetch_add(1) == 0) {
    started_ = {.round = k, .is_encoded = grid.has_value()};
  }
  if (grid) codec_->encode(encoded_row(rank), send, *grid, best_simd_path());
  const std::int64_t first = first_row_.empty() ? rank : first_row_[static_cast<std::size_t>(rank)];
  std::memcpy(row(first).data, send.data, static_cast<std::size_t>(send.bytes()));
  has_arrived_[static_cast<std::size_t>(rank)] = 1;
}

const RoundPlan& VirtualWire::plan_of(std::int64_t k) {
  if (spec_.result == LaneResult::kSum) {
    if (plans_.empty()) plans_.push_back(RoundPlan::sum_of_all(world_size_));
    return plans_.front();
  }
  const auto period = topology_->period();
  if (topology_->directed() && period && k % *period > std::ssize(plans_)) repeats_ = false;
  const bool keeps =
      period && repeats_ && *period <= std::max(kFewRounds, kMostPlannedRankRounds / world_size_);
  const std::int64_t turn = keeps ? k % *period : 0;
  if (!keeps) plans_.clear();
  while (turn >= std::ssize(plans_)) {
    const std::int64_t round = keeps ? std::ssize(plans_) : k;
    const std::int64_t most = spec_.result == LaneResult::kApart ? world_size_
                              : codec_ == nullptr                ? 0
                                                                 : most_coded_members(*codec_);
    const Round next = with_arcs_for_groups(next_round(*topology_, round, push_sum_), most);
    if (codec_ != nullptr && next.node_size > 1) {
      throw ConfigError(concat("the simulator encodes no rounds of two levels, which ",
                               topology_->name(), " has; take codec fp32"));
    }
    plans_.emplace_back(next, world_size_);
    repeats_ = repeats_ && std::ranges::all_of(push_sum_.weights(), is_one);
  }
  return plans_[static_cast<std::size_t>(turn)];
}

void VirtualWire::reserve_rows(const RoundPlan& plan) {
  if (plan.num_rows() * spec_.numel <= rows_.block().numel) return;
  const Buffer larger(plan.num_rows() * spec_.numel, spec_.dtype);
  const Block old = part_of(rows_.block(), 0, world_size_ * spec_.numel);
  std::memcpy(larger.block().data, old.data, static_cast<std::size_t>(old.bytes()));
  rows_ = larger;
}

void VirtualWire::deliver(WorkerPool& pool) {
  const int num_started = num_started_.exchange(0);
  if (num_started == 0) return;
  if (num_started != world_size_) {
    throw std::logic_error("VirtualWire: not all ranks have started the round");
  }
  if (spec_.members == LaneMembers::kTree) {
    std::swap(rows_, heard_rows_);
    return;
  }
  if (spec_.result == LaneResult::kGather) return gather();
  const RoundPlan& plan = plan_of(started_.round);
  plan_ = &plan;
  delivered_ = started_;
  reserve_rows(plan);
  if (coded_sum_) {
    compute_coded_sum(pool);
  } else {
    compute_sums(pool);
  }
  work_of_.assign(work_of_.size(), nullptr);
  for (const RowWork& work : plan.ranks()) work_of_[static_cast<std::size_t>(work.row)] = &work;
}

void VirtualWire::inboxes_of(const RoundPlan& plan, const RowWork& work,
                             std::vector<Inbox>& inboxes) const {
  inboxes.clear();
  inboxes.reserve(static_cast<std::size_t>(work.last - work.first));
  for (std::int32_t t = work.first; t < work.last; ++t) {
    const RowTerm& term = plan.terms()[static_cast<std::size_t>(t)];
    inboxes.push_back({row(term.row), term.weight});
  }
}

void VirtualWire::compute_sums(WorkerPool& pool) {
  for (const auto& layer : plan_->sums()) {
    pool.share(std::ssize(layer), 1, [&](const PartRange& range) {
      std::vector<Inbox> inboxes;
      for (std::int64_t i = range.first; i < range.last; ++i) {
        compute_sum(*plan_, layer[static_cast<std::size_t>(i)], inboxes);
      }
    });
  }
}

void VirtualWire::compute_sum(const RoundPlan& plan, const RowWork& work,
                              std::vector<Inbox>& inboxes) {
  inboxes_of(plan, work, inboxes);
  const Block sum = row(work.row);
  std::memcpy(sum.data, inboxes.front().block.data, static_cast<std::size_t>(sum.bytes()));
  const std::span rest = std::span(inboxes).subspan(1);
  if (rest.empty() && work.keep != 1.0) {
    for (double& value : sum.as<double>()) value *= work.keep;
  } else {
    gossamer::mix(sum, work.keep, rest);
  }
}

void VirtualWire::compute_coded_sum(WorkerPool& pool) {
  const CodedSum& coded = *coded_sum_;
  // The one sum of the plan.
  const Block sum = row(world_size_);
  InlineStream stream;
  if (coded.gathers()) {
    const SumMemory memory(coded);
    encode_shards(0, memory);
    return coded.gather(stream, memory.messages(), sum, best_simd_path());
  }
  pool.share(coded.num_filled(), 1, [&](const PartRange& range) {
    const SumMemory memory(coded);
    for (std::int64_t shard = range.first; shard < range.last; ++shard) {
      encode_shards(shard, memory);
      coded.add(stream, shard, memory.messages(), memory.result(), best_simd_path());
      coded.decode(stream, shard, memory.result(), sum, best_simd_path());
    }
  });
}

void VirtualWire::encode_shards(std::int64_t shard, const SumMemory& memory) const {
  InlineStream stream;
  for (int rank = 0; rank < world_size_; ++rank) {
    coded_sum_->encode(stream, shard, row(rank), memory.message(rank), best_simd_path());
  }
}

void VirtualWire::accumulate_residual(int rank, const Block& to) const {
  if (!coded_sum_) return;
  const CodedSum& coded = *coded_sum_;
  const SumMemory memory(coded);
  const SimdPath simd = best_simd_path();
  InlineStream stream;
  for (std::int64_t shard = 0; shard < coded.num_filled(); ++shard) {
    coded.encode(stream, shard, row(rank), memory.message(0), simd);
    coded.accumulate_residual(stream, shard, row(rank), memory.message(0), to, simd);
  }
  if (coded.gathers() || rank >= coded.num_filled()) return;
  encode_shards(rank, memory);
  coded.add(stream, rank, memory.messages(), memory.result(), simd);
  coded.accumulate_residual_of_sum(stream, rank, memory.messages(), memory.result(), to, simd);
}

void VirtualWire::gather() {
  for (int rank = 1; rank < world_size_; ++rank) {
    const Shard shard = shard_of(spec_.numel, spec_.dtype, rank, world_size_);
    if (shard.numel == 0) continue;
    const Block to = part_of(row(0), shard.first, shard.numel);
    std::memcpy(to.data, part_of(row(rank), shard.first, shard.numel).data,
                static_cast<std::size_t>(to.bytes()));
  }
}

Intake VirtualWire::take_gathered(int rank) {
  const auto place = static_cast<std::size_t>(rank);
  if (std::exchange(has_arrived_[place], char{0}) == 0) return {};
  return {.keep = 0.0, .inboxes = {{row(0), 1.0}}};
}

Intake VirtualWire::take_from_peers(int rank) {
  const auto place = static_cast<std::size_t>(rank);
  if (std::exchange(has_arrived_[place], char{0}) == 0) return {};
  Intake intake;
  for (const int peer : peers_[place]) {
    const std::vector<int>& theirs = peers_[static_cast<std::size_t>(peer)];
    const auto to_rank = std::ranges::find(theirs, rank) - theirs.begin();
    const std::int64_t row = first_row_[static_cast<std::size_t>(peer)] + to_rank;
    intake.inboxes.push_back({part_of(heard_rows_.block(), row * spec_.numel, spec_.numel), 1.0});
  }
  return intake;
}

Intake VirtualWire::take(int rank) {
  if (spec_.members == LaneMembers::kTree) return take_from_peers(rank);
  if (spec_.result == LaneResult::kGather) return take_gathered(rank);
  const auto place = static_cast<std::size_t>(rank);
  Intake intake;
  if (delivered_.round >= 0) intake.update_scale = 1.0 / push_sum_.weights()[place];
  if (std::exchange(has_arrived_[place], char{0}) == 0) return intake;
  const RowWork* work = work_of_[place];
  if (work == nullptr) return intake;
  inboxes_of(*plan_, *work, intake.inboxes);
  intake.keep = work->keep;
  if (codec_ == nullptr || !hears_ranks(*work)) return intake;
  intake.exchange.coding = {
      .codec = codec_, .own = encoded_row(rank), .decodes = delivered_.is_encoded};
  if (!delivered_.is_encoded) return intake;
  for (std::size_t i = 0; i < intake.inboxes.size(); ++i) {
    const std::size_t term = static_cast<std::size_t>(work->first) + i;
    intake.inboxes[i].block = encoded_row(plan_->terms()[term].row);
  }
  intake.keep = 1.0;
  return intake;
}

}  // namespace gossamer::apps
