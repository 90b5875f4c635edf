#include "core/exchange/host_slots.hpp"

#include <algorithm>
#include <iterator>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/text.hpp"

namespace gossamer {
namespace {

/// The counter has a page of its own, and slots begin at a page.
constexpr std::int64_t kPage = 4096;
/// A rank of a group of n reads n blocks. The sum by messages moves about as many bytes however
/// large n is, so larger groups use it.
constexpr std::int64_t kMostSummed = 8;

std::int64_t slot_bytes(const LaneSpec& spec) {
  return (spec.numel * size_of(spec.dtype) + kPage - 1) / kPage * kPage;
}

}  // namespace

std::int64_t HostMemory::reserve(std::int64_t bytes) {
  if (is_shared_) throw std::logic_error("HostMemory: it is shared already");
  return std::exchange(bytes_, bytes_ + bytes);
}

void HostMemory::share() {
  if (std::exchange(is_shared_, true)) throw std::logic_error("HostMemory: it is shared already");
  SharedMemory* const memory = world_.shared_memory();
  if (world_.size() == 1 || memory == nullptr) return;
  parts_ = memory->allocate(bytes_);
  const auto num_reached = std::ranges::count_if(
      parts_, [](const Buffer& part) { return part.block().data != nullptr; });
  if (num_reached < 2) parts_.assign(parts_.size(), {});
  const bool is_refused = num_reached < memory->num_on_host() && memory->num_on_host() > 1;
  for (const std::string& rank :
       world_.all_gather(concat(num_reached < 2 ? "" : "s", is_refused ? "r" : ""))) {
    if (rank.find('s') != std::string::npos) ++sharing_.num_sharing;
    if (rank.find('r') != std::string::npos) ++sharing_.num_refused;
  }
}

HostSlots::HostSlots(std::shared_ptr<HostMemory> memory, const LaneSpec& spec)
    : memory_(std::move(memory)),
      world_(memory_->world()),
      numel_(spec.numel),
      dtype_(spec.dtype),
      slot_bytes_(slot_bytes(spec)),
      first_(memory_->reserve(kPage + 2 * slot_bytes_)) {}

bool HostSlots::are_shared() const {
  if (!memory_->is_shared()) throw std::logic_error("HostSlots: nobody has shared the memory");
  return reaches(world_.rank());
}

Counter& HostSlots::counter_of(int rank) const {
  // The memory begins with zeros, which is what a new counter holds.
  void* const place = memory_->of(rank) + first_;
  return *std::launder(static_cast<Counter*>(place));
}

Block HostSlots::slot_of(int rank, std::uint64_t round) const {
  std::byte* const first = memory_->of(rank) + first_ + kPage;
  return {first + static_cast<std::int64_t>(round % 2) * slot_bytes_, numel_, dtype_, {}};
}

std::vector<int> HostSlots::summed(const RankRound& round) const {
  std::vector<int> ranks;
  if (round.node_size > 1 && round.kind == RankRound::Kind::kIdle) {
    ranks.resize(static_cast<std::size_t>(round.node_size));
    std::iota(ranks.begin(), ranks.end(), world_.rank() / round.node_size * round.node_size);
  } else if (round.node_size == 1) {
    ranks = round.group;
  }
  const bool sums_here = std::ssize(ranks) <= kMostSummed &&
                         std::ranges::all_of(ranks, [this](int rank) { return reaches(rank); });
  return sums_here ? ranks : std::vector<int>();
}

std::vector<int> HostSlots::reached(const RankRound& round, const std::vector<int>& ranks) const {
  std::vector<int> found;
  const auto take = [&found](const std::vector<int>& from, const auto& takes) {
    std::ranges::copy_if(from, std::back_inserter(found), takes);
  };
  take(summed(round), [this](int rank) { return rank != world_.rank(); });
  if (round.node_size == 1) take(ranks, [this](int rank) { return reaches(rank); });
  return found;
}

std::vector<int> HostSlots::readers_of(const RankRound& round) const {
  return reached(round, round.send_to);
}

std::vector<int> HostSlots::sources_of(const RankRound& round) const {
  return reached(round, round.receive_from);
}

RankRound HostSlots::unreached(const RankRound& round) const {
  RankRound rest = round;
  if (round.node_size > 1 || round.kind == RankRound::Kind::kGroup) return rest;
  const auto is_reached = [this](int rank) { return reaches(rank); };
  std::erase_if(rest.send_to, is_reached);
  std::erase_if(rest.receive_from, is_reached);
  if (rest.send_to.empty() && rest.receive_from.empty()) rest.kind = RankRound::Kind::kIdle;
  return rest;
}

void HostSlots::publish(const RankRound& round) {
  sources_ = sources_of(round);
  former_readers_ = std::exchange(readers_, readers_of(round));
  std::erase_if(former_readers_,
                [this](int rank) { return std::ranges::find(sources_, rank) != sources_.end(); });
  world_.shared_memory()->signal(counter_of(world_.rank()), ++num_started_);
}

Request HostSlots::arrival(OpContext context) {
  // Counters that come in time need no worker, so nothing else would tell of a failure elsewhere.
  if (!sources_.empty() || !former_readers_.empty()) world_.check();
  const OpLabel label = context.label;
  std::vector<Request> both_ways;
  // A timeline shows the peers of the round alone.
  both_ways.push_back(await_start_of(std::exchange(sources_, {}), std::move(context)));
  both_ways.push_back(await_start_of(std::exchange(former_readers_, {}), {.label = label}));
  return all_of(std::move(both_ways));
}

Request HostSlots::await_start_of(const std::vector<int>& ranks, OpContext context) {
  std::vector<Awaited> awaited;
  for (const int rank : ranks) {
    const Awaited counter{.peer = rank, .counter = &counter_of(rank), .least = num_started_};
    if (context.trace.records() || !counter.has_come()) awaited.push_back(counter);
  }
  if (awaited.empty()) return {};
  context.owner = both(std::move(context.owner), memory_);
  return world_.shared_memory()->wait_signals(std::move(awaited), std::move(context));
}

}  // namespace gossamer
