#include "comm/threads/backend.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "comm/collectives/shared_memory.hpp"
#include "comm/preconditions.hpp"
#include "comm/threads/group.hpp"
#include "comm/threads/operations.hpp"
#include "comm/threads/worlds.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer {
namespace {

class ThreadCommunicator : public Communicator, private SharedMemory {
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
          side_of(MeetingKind::kMessage, rank_, peer, num_sent_[peer]++, {.send = send}));
    }
    for (const Incoming& from : incoming) {
      // The block that is received says what the message must be like.
      messages.push_back(side_of(MeetingKind::kMessage, from.peer, rank_,
                                 num_received_[from.peer]++,
                                 {.send = from.block, .receive = from.block}));
    }
    return worker_->submit(make_operation_set(std::move(messages)), std::move(context),
                           group_.get());
  }

  // Every tagged message has a channel of its own, so it waits for nothing.
  Request send(int peer, int tag, ConstBlock message, OpContext context) override {
    require_tagged("send", peer, tag, rank(), size());
    return worker_->submit(
        side_of(MeetingKind::kTagged, rank_, peer,
                tagged_number(num_tagged_sent_[peer * kNumTags + tag], tag), {.send = message}),
        std::move(context));
  }

  Request receive(int peer, int tag, Block message, OpContext context) override {
    require_tagged("receive", peer, tag, rank(), size());
    return worker_->submit(side_of(MeetingKind::kTagged, peer, rank_,
                                   tagged_number(num_tagged_received_[peer * kNumTags + tag], tag),
                                   {.send = message, .receive = message}),
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

  SharedMemory* shared_memory() override { return this; }
  std::vector<Buffer> allocate(std::int64_t bytes) override {
    const std::int64_t number = num_sharings_++;
    group_->lay_out(number, static_cast<std::size_t>(rank_), Buffer(bytes, DType::kUInt8));
    gather({}, {.what = "share"});
    return group_->pick_up(number);
  }

  [[nodiscard]] std::int64_t num_on_host() const override { return size(); }

  void signal(Counter& counter, std::uint64_t value) override {
    SharedMemory::signal(counter, value);
    group_->hub().tell_all();
  }

  Request wait_signals(std::vector<Awaited> awaited, OpContext context) override {
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
  Request submit(ThreadPart part, OpContext context) {
    return worker_->submit(make_thread_operation(std::move(part)), std::move(context),
                           group_.get());
  }

  /// The next number of a tagged message with this tag; no two tags share one.
  static std::int64_t tagged_number(std::int64_t& count, int tag) {
    return kNumTags * count++ + tag;
  }

  /// One side of a message or tagged message; place 0 sends, place 1 receives.
  std::unique_ptr<Operation> side_of(MeetingKind kind, int from, int to, std::int64_t number,
                                     Contribution contribution) {
    return make_thread_operation(
        ThreadPart{.group = group_,
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
  // The numbers of tagged messages, by peer and tag.
  std::map<int, std::int64_t> num_tagged_sent_;
  std::map<int, std::int64_t> num_tagged_received_;
  std::int64_t num_collectives_ = 0;
  std::int64_t num_splits_ = 0;
  std::int64_t num_sharings_ = 0;
};

class ThreadSession : public EpochSession {
 public:
  ThreadSession(const std::shared_ptr<ThreadGroup>& group, const World& world,
                const LaunchOptions& options, std::function<bool()> is_disturbed)
      : world_(world),
        hub_(group->hub()),
        survives_(is_disturbed != nullptr),
        logger_(options.log_level, world.size > 1 ? concat("rank ", world.rank) : ""),
        worker_(std::make_shared<ProgressWorker>(
            ProgressWorker::Config{.rank = world.rank,
                                   .timeout_s = options.timeout_s,
                                   .attendance = hub_.attendance(),
                                   .survives = survives_,
                                   .while_waiting = options.while_waiting,
                                   .bell = hub_.bell(world.rank),
                                   .service = heeding(std::move(is_disturbed), world.rank),
                                   .failed = survives_ ? telling(group, world.rank) : nullptr,
                                   .logger = logger_})),
        communicator_(worker_, group, world.rank) {}

  ~ThreadSession() override {
    // Before the worker drops operations.
    if (!has_ended_) hub_.fail(world_.rank, ExitCode::kPeerLost, "its session has gone");
    // Communicators that live longer share it, and it asks for what ends with this session.
    worker_->stop();
  }

  void abandon() override {
    has_ended_ = true;
    worker_->stop();
    // Ranks that have not noticed yet need not wait for it.
    hub_.fail(world_.rank, ExitCode::kPeerLost, "it goes on in another world");
  }

  [[nodiscard]] bool has_stalled() const override { return worker_->has_stalled(); }

  [[nodiscard]] Communicator& communicator() override { return communicator_; }
  [[nodiscard]] const World& world() const override { return world_; }

  void tell_steps(std::int64_t num_steps) override {
    hub_.attendance()->tell_steps(world_.rank, num_steps);
  }

  void lift_timeout() override { worker_->lift_timeout(); }

  void close() override {
    lift_timeout();
    worker_->drain();
    // A rank that leaves before the others is lost for them.
    if (survives_) communicator_.barrier();
    has_ended_ = true;
    hub_.leave(world_.rank);
  }

  bool abort(ExitCode code, std::string_view reason) override {
    has_ended_ = true;
    const bool is_first = hub_.fail(world_.rank, code, reason);
    // The ranks that only learn of another's failure need not repeat it.
    is_first ? logger_.error(reason) : logger_.debug(reason);
    return is_first;
  }

 private:
  /// What the worker does in each turn.
  static std::function<void()> heeding(std::function<bool()> is_disturbed, int rank) {
    if (!is_disturbed) return nullptr;
    return [is_disturbed = std::move(is_disturbed), rank] {
      if (!is_disturbed()) return;
      throw PeerLost({.rank = rank, .label = {.what = "communication"}},
                     "the members of the run change");
    };
  }

  /// Tells the others why the worker has failed.
  static std::function<void(const std::exception_ptr&)> telling(
      const std::shared_ptr<ThreadGroup>& group, int rank) {
    return [group, rank](const std::exception_ptr& error) {
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& known) {
        group->hub().fail(rank, exit_code_of(known), known.what());
      } catch (...) {
        group->hub().fail(rank, ExitCode::kInternal, "an unknown error");
      }
    };
  }

  World world_;
  ThreadHub& hub_;
  /// The run goes on without ranks that fail.
  bool survives_;
  Logger logger_;
  std::shared_ptr<ProgressWorker> worker_;
  ThreadCommunicator communicator_;
  bool has_ended_ = false;
};

}  // namespace

std::shared_ptr<ThreadGroup> make_thread_world(int size, bool survives) {
  std::vector<int> everyone(static_cast<std::size_t>(size));
  std::iota(everyone.begin(), everyone.end(), 0);
  return std::make_shared<ThreadGroup>(std::make_shared<ThreadHub>(everyone.size(), survives),
                                       everyone);
}

std::unique_ptr<EpochSession> enter_threads(const std::shared_ptr<ThreadGroup>& group,
                                            const World& world, const LaunchOptions& options,
                                            std::function<bool()> is_disturbed) {
  return std::make_unique<ThreadSession>(group, world, options, std::move(is_disturbed));
}

Sessions open_threads(const LaunchOptions& options) {
  if (options.fault.survives) return open_elastic_threads(options);
  const int size = std::max(1, options.num_ranks);
  const int node_size = options.node_size > 0 ? options.node_size : size;
  const auto group = make_thread_world(size, /*survives=*/false);
  Sessions sessions;
  for (int rank = 0; rank < size; ++rank) {
    sessions.push_back(enter_threads(group, world_of(rank, size, node_size), options, nullptr));
  }
  return sessions;
}

}  // namespace gossamer
