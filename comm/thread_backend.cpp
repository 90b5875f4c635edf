#include "comm/thread_backend.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <latch>
#include <map>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/host_stream.hpp"
#include "base/sorted.hpp"
#include "base/text.hpp"
#include "base/thread.hpp"
#include "comm/add_block.hpp"
#include "comm/preconditions.hpp"
#include "comm/progress_worker.hpp"
#include "comm/shared_memory.hpp"
#include "comm/thread_group.hpp"

namespace gossamer {
namespace {

void copy_block(const ConstBlock& from, const Block& to) {
  if (from.bytes() > 0 && from.data != to.data) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(from.bytes()));
  }
}

void sum_in_rank_order(const std::vector<Contribution>& members, const Block& receive) {
  copy_block(members.front().send, receive);
  for (std::size_t m = 1; m < members.size(); ++m) add_block(receive, members[m].send);
}

/// The same for a sum that takes the place of one of its terms.
void reduce_in_rank_order(const std::vector<Contribution>& members, const Block& sum) {
  alignas(64) std::array<std::byte, 16 * 1024> memory;
  const std::int64_t most = std::ssize(memory) / size_of(sum.dtype);
  for (std::int64_t first = 0; first < sum.numel; first += most) {
    const std::int64_t numel = std::min(most, sum.numel - first);
    const Block part{memory.data(), numel, sum.dtype, {}};
    copy_block(part_of(members.front().send, first, numel), part);
    for (std::size_t m = 1; m < members.size(); ++m) {
      add_block(part, part_of(members[m].send, first, numel));
    }
    copy_block(part, part_of(sum, first, numel));
  }
}

/// One member's side of a meeting.
class ThreadOperation : public Operation {
 public:
  struct Config {
    std::shared_ptr<ThreadGroup> group;
    ThreadGroup::Key key;
    MeetingKind kind = MeetingKind::kGather;
    /// The members of the meeting, as ranks of the group, and this rank's place among them.
    std::vector<int> members;
    std::size_t place = 0;
    std::size_t place_in_group = 0;
    /// The root, or the other one of a pair.
    std::size_t source = 0;
    Contribution contribution;
    /// Where gathered texts go; the caller waits, so it outlives the operation.
    std::vector<std::string>* texts = nullptr;
  };

  explicit ThreadOperation(Config config)
      : config_(std::move(config)), receive_(config_.contribution.receive) {}

  ~ThreadOperation() override {
    if (!meeting_ || meeting_->over()) return;
    // Dropped before its end: the run has failed. A peer may be reading this rank's blocks at this
    // moment; none can start to any more.
    config_.group->hub().fail(config_.group->world_ranks()[config_.place_in_group]);
    while (meeting_->num_readers.load() > 0) std::this_thread::yield();
  }

  void start() override {
    meeting_ = config_.group->join(config_.key, config_.kind, config_.place, config_.members.size(),
                                   std::move(config_.contribution));
    if (meeting_->complete()) tell_members();
  }

  bool test() override {
    if (!worked_ && meeting_->complete()) {
      meeting_->num_readers.fetch_add(1);
      const bool usable = !config_.group->hub().failed();
      if (usable) work();
      meeting_->num_readers.fetch_sub(1);
      worked_ = usable;
      if (usable && meeting_->num_done.fetch_add(1) + 1 == meeting_->members.size()) tell_members();
    }
    if (worked_ && meeting_->over()) return true;
    config_.group->hub().check();
    return false;
  }

  [[nodiscard]] bool is_woken() const override { return true; }
  [[nodiscard]] bool is_letter() const override { return config_.kind == MeetingKind::kLetter; }

  [[nodiscard]] std::vector<int> waiting_for() const override {
    std::vector<int> late;
    if (meeting_ && meeting_->complete()) return late;
    std::vector<bool> here(config_.members.size(), false);
    here[config_.place] = true;
    // A member that comes while this is read is listed or not; both are true at some moment.
    if (meeting_) here = config_.group->who_is_here(*meeting_);
    for (std::size_t place = 0; place < here.size(); ++place) {
      if (!here[place]) late.push_back(world_rank(config_.members[place]));
    }
    return late;
  }

 private:
  /// All have come, or all have done their parts.
  void tell_members() const {
    for (const int member : config_.members) {
      config_.group->hub().bell(world_rank(member))->tell();
    }
  }

  [[nodiscard]] int world_rank(int member) const {
    return config_.group->world_ranks()[static_cast<std::size_t>(member)];
  }

  void work() {
    const std::vector<Contribution>& members = meeting_->members;
    switch (config_.kind) {
      case MeetingKind::kMessage:
      case MeetingKind::kLetter:
        if (config_.place == config_.source) return;
        return copy_block(members[config_.source].send, receive_);
      case MeetingKind::kExchange:
      case MeetingKind::kBroadcast:
        return copy_block(members[config_.source].send, receive_);
      case MeetingKind::kAllReduce:
        return sum_in_rank_order(members, receive_);
      case MeetingKind::kReduce:
        if (config_.place == config_.source) reduce_in_rank_order(members, receive_);
        return;
      case MeetingKind::kGather:
        for (const Contribution& member : members) config_.texts->push_back(member.text);
        return;
    }
  }

  Config config_;
  Block receive_;
  std::shared_ptr<Meeting> meeting_;
  bool worked_ = false;
};

/// Several messages as one operation, over when all are.
class OperationSet : public Operation {
 public:
  explicit OperationSet(std::vector<std::unique_ptr<Operation>> parts) : parts_(std::move(parts)) {}

  void start() override {
    for (const auto& part : parts_) part->start();
  }
  bool test() override {
    std::erase_if(parts_, [](const auto& part) { return part->test(); });
    return parts_.empty();
  }
  [[nodiscard]] bool is_woken() const override { return true; }
  [[nodiscard]] std::vector<int> waiting_for() const override {
    std::vector<int> late;
    for (const auto& part : parts_)
      std::ranges::copy(part->waiting_for(), std::back_inserter(late));
    sort_unique(late);
    return late;
  }

 private:
  std::vector<std::unique_ptr<Operation>> parts_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ProgressWorker> worker, std::shared_ptr<ThreadGroup> group,
                     int rank)
      : worker_(std::move(worker)), group_(std::move(group)), rank_(rank) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(world_ranks().size()); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override {
    return group_->world_ranks();
  }

  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return stream_; }

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    require_peer("exchange", peer, rank(), size());
    require_alike("exchange", send, receive);
    const std::pair pair = std::minmax({rank_, peer});
    const std::size_t place = rank_ < peer ? 0 : 1;
    return submit({.group = group_,
                   .key = {MeetingKind::kExchange, pair.first, pair.second, num_exchanges_[peer]++},
                   .kind = MeetingKind::kExchange,
                   .members = {pair.first, pair.second},
                   .place = place,
                   .place_in_group = static_cast<std::size_t>(rank_),
                   .source = 1 - place,
                   .contribution = {.send = send, .receive = receive}},
                  std::move(context));
  }

  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    require_neighbors(send, peers, incoming, rank(), size());
    std::vector<std::unique_ptr<Operation>> messages;
    for (const int peer : peers) {
      messages.push_back(
          message(MeetingKind::kMessage, rank_, peer, num_sent_[peer]++, {.send = send}));
    }
    for (const Incoming& from : incoming) {
      // The block that is received says what the message must be like.
      messages.push_back(message(MeetingKind::kMessage, from.peer, rank_,
                                 num_received_[from.peer]++,
                                 {.send = from.block, .receive = from.block}));
    }
    return worker_->submit(std::make_unique<OperationSet>(std::move(messages)), std::move(context),
                           group_.get());
  }

  // Every letter has a channel of its own, so it waits for nothing.
  Request send(int peer, int tag, ConstBlock letter, OpContext context) override {
    require_letter("send", peer, tag, rank(), size());
    return worker_->submit(
        message(MeetingKind::kLetter, rank_, peer,
                letter_number(num_letters_sent_[peer * kNumTags + tag], tag), {.send = letter}),
        std::move(context));
  }

  Request receive(int peer, int tag, Block letter, OpContext context) override {
    require_letter("receive", peer, tag, rank(), size());
    return worker_->submit(message(MeetingKind::kLetter, peer, rank_,
                                   letter_number(num_letters_received_[peer * kNumTags + tag], tag),
                                   {.send = letter, .receive = letter}),
                           std::move(context));
  }

  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    require_sum(send, receive);
    return submit_collective(MeetingKind::kAllReduce, {.send = send, .receive = receive}, 0,
                             std::move(context));
  }

  Request reduce_sum(Block block, int root, OpContext context) override {
    require_rank("reduce_sum", root, size());
    require_summable("reduce_sum", block.dtype);
    return submit_collective(MeetingKind::kReduce, {.send = block, .receive = block}, root,
                             std::move(context));
  }

  Request broadcast(Block block, int root, OpContext context) override {
    require_rank("broadcast", root, size());
    return submit_collective(MeetingKind::kBroadcast, {.send = block, .receive = block}, root,
                             std::move(context));
  }

  std::vector<Buffer> share(std::int64_t bytes) override {
    const std::int64_t number = num_sharings_++;
    group_->lay_out(number, static_cast<std::size_t>(rank_), Buffer(bytes, DType::kUInt8));
    gather({}, {.what = "share"});
    return group_->pick_up(number);
  }

  [[nodiscard]] std::int64_t num_on_host() const override { return size(); }

  void raise(Counter& counter, std::uint64_t value) override {
    Communicator::raise(counter, value);
    group_->hub().tell_all();
  }

  Request await(std::vector<Awaited> awaited, OpContext context) override {
    return worker_->submit(
        make_await(
            of_world(*this, std::move(awaited)), [group = group_] { group->hub().check(); },
            /*is_woken=*/true),
        std::move(context));
  }

  std::vector<std::string> all_gather(std::string text) override {
    return gather(std::move(text), {.what = "gather"});
  }

  void barrier() override { gather({}, {.what = "barrier"}); }
  void check() override {
    worker_->check();
    group_->hub().check(own_world_rank(*this));
  }

  [[nodiscard]] double worker_cpu_s() override { return worker_->cpu_s(); }

  std::unique_ptr<Communicator> split(int color) override {
    const std::int64_t number = num_splits_++;
    const std::vector<std::string> colors = gather(std::to_string(color), {.what = "split"});
    if (color < 0) return nullptr;
    std::vector<int> members;
    int rank = 0;
    for (std::size_t member = 0; member < colors.size(); ++member) {
      if (colors[member] != std::to_string(color)) continue;
      if (static_cast<int>(member) < rank_) ++rank;
      members.push_back(world_ranks()[member]);
    }
    return std::make_unique<ThreadCommunicator>(
        worker_, group_->subgroup(number, color, std::move(members)), rank);
  }

 private:
  Request submit(ThreadOperation::Config config, OpContext context) {
    return worker_->submit(std::make_unique<ThreadOperation>(std::move(config)), std::move(context),
                           group_.get());
  }

  /// The next number of a letter with this tag; no two tags share one.
  static std::int64_t letter_number(std::int64_t& count, int tag) {
    return kNumTags * count++ + tag;
  }

  /// One side of a message or letter; place 0 sends, place 1 receives.
  std::unique_ptr<Operation> message(MeetingKind kind, int from, int to, std::int64_t number,
                                     Contribution contribution) {
    return std::make_unique<ThreadOperation>(
        ThreadOperation::Config{.group = group_,
                                .key = {kind, from, to, number},
                                .kind = kind,
                                .members = {from, to},
                                .place = from == rank_ ? std::size_t{0} : std::size_t{1},
                                .place_in_group = static_cast<std::size_t>(rank_),
                                .source = 0,
                                .contribution = std::move(contribution)});
  }

  Request submit_collective(MeetingKind kind, Contribution contribution, int root,
                            OpContext context, std::vector<std::string>* texts = nullptr) {
    std::vector<int> members(world_ranks().size());
    for (std::size_t m = 0; m < members.size(); ++m) members[m] = static_cast<int>(m);
    return submit({.group = group_,
                   .key = {MeetingKind::kGather, -1, -1, num_collectives_++},
                   .kind = kind,
                   .members = std::move(members),
                   .place = static_cast<std::size_t>(rank_),
                   .place_in_group = static_cast<std::size_t>(rank_),
                   .source = static_cast<std::size_t>(root),
                   .contribution = std::move(contribution),
                   .texts = texts},
                  std::move(context));
  }

  std::vector<std::string> gather(std::string text, OpLabel label) {
    // Owned by the operation too: a failure may end this call while the worker still writes.
    auto texts = std::make_shared<std::vector<std::string>>();
    submit_collective(MeetingKind::kGather, {.text = std::move(text)}, 0, {label, texts},
                      texts.get())
        .wait();
    return std::move(*texts);
  }

  std::shared_ptr<ProgressWorker> worker_;
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  std::shared_ptr<Stream> stream_ = std::make_shared<InlineStream>();
  // Running numbers by which the members' operations find each other.
  std::map<int, std::int64_t> num_exchanges_;
  std::map<int, std::int64_t> num_sent_;
  std::map<int, std::int64_t> num_received_;
  // For every peer and tag.
  std::map<int, std::int64_t> num_letters_sent_;
  std::map<int, std::int64_t> num_letters_received_;
  std::int64_t num_collectives_ = 0;
  std::int64_t num_splits_ = 0;
  std::int64_t num_sharings_ = 0;
};

/// One rank from start to end. Returns its exit code.
int run_rank(const std::shared_ptr<ThreadGroup>& group, const LaunchOptions& options,
             const World& world, const RankBody& body) {
  const Logger logger(options.log_level, world.size > 1 ? concat("rank ", world.rank) : "");
  const auto leave = [&](const char* what, ExitCode code) {
    // The ranks that only learn of another's failure need not repeat it.
    group->hub().fail(world.rank, code, what);
    const bool first = group->hub().failed_rank() == world.rank;
    first ? logger.error(what) : logger.debug(what);
    return static_cast<int>(code);
  };
  // Outlives the catch blocks: the others must learn of the failure before it drops operations.
  std::shared_ptr<ProgressWorker> worker;
  try {
    worker = std::make_shared<ProgressWorker>(ProgressWorker::Config{
        .rank = world.rank, .timeout_s = options.timeout_s, .bell = group->hub().bell(world.rank)});
    ThreadCommunicator communicator(worker, group, world.rank);
    const int code = body(communicator, world);
    worker->drain();
    return code;
  } catch (const std::exception& error) {
    return leave(error.what(), exit_code_of(error));
  } catch (...) {
    return leave("an unknown error", ExitCode::kInternal);
  }
}

}  // namespace

int launch_threads(const LaunchOptions& options, const RankBody& body) {
  if (const std::string why = why_not_whole(1); !why.empty()) throw ConfigError(why);
  const int size = std::max(1, options.num_ranks);
  const int node_size = options.node_size > 0 ? options.node_size : size;
  if (size % node_size != 0) {
    throw ConfigError(concat("comm.local_size: ", node_size, " does not divide the ", size,
                             " ranks, allowed: a divisor of the number of ranks"));
  }
  std::vector<int> everyone(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) everyone[static_cast<std::size_t>(rank)] = rank;
  const auto hub = std::make_shared<ThreadHub>(everyone.size());
  const auto group = std::make_shared<ThreadGroup>(hub, everyone);
  std::vector<int> codes(everyone.size());
  // No rank begins unless all can.
  std::latch decided(1);
  bool begins = false;
  std::vector<std::jthread> threads;
  try {
    for (int rank = 0; rank < size; ++rank) {
      threads.push_back(start_thread<std::jthread>([&, rank] {
        decided.wait();
        if (!begins) return;
        codes[static_cast<std::size_t>(rank)] =
            run_rank(group, options, world_of(rank, size, node_size), body);
      }));
    }
  } catch (...) {
    decided.count_down();
    throw;
  }
  begins = true;
  decided.count_down();
  threads.clear();
  if (hub->failed()) return codes[static_cast<std::size_t>(hub->failed_rank())];
  const auto failed = std::ranges::find_if(codes, [](int code) { return code != 0; });
  return failed == codes.end() ? 0 : *failed;
}

}  // namespace gossamer
