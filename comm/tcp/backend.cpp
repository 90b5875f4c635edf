#include "comm/tcp/backend.hpp"

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_limit.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "comm/collectives/placement.hpp"
#include "comm/collectives/process_world.hpp"
#include "comm/collectives/shared_memory.hpp"
#include "comm/preconditions.hpp"
#include "comm/tcp/elastic_worlds.hpp"
#include "comm/tcp/operations.hpp"
#include "comm/tcp/world.hpp"

namespace gossamer {
namespace {

using tcp::Group;
using tcp::GroupPtr;
using tcp::MessageKey;
using tcp::MessageUse;
using tcp::Post;

/// Seconds in which the last messages of a rank that has left may still arrive: TCP repeats a lost
/// packet for a few seconds.
constexpr double kGrace = 5.0;

/// What the communicators of one rank share.
struct TcpContext {
  std::vector<int> hosts;
  /// LaunchOptions::least_ring_bytes.
  std::int64_t least_ring_bytes = -1;
  std::shared_ptr<tcp::Transport> transport;
  std::shared_ptr<Attendance> attendance;
  /// Goes first: it uses the transport.
  std::unique_ptr<ProgressWorker> worker;
  /// The next number of a group that no group of this rank has.
  std::uint32_t next_group = 1;
};

class TcpCommunicator : public ProcessCommunicator {
 public:
  TcpCommunicator(std::shared_ptr<TcpContext> context, std::uint32_t number,
                  std::vector<int> world_ranks, int rank)
      : context_(std::move(context)) {
    auto group = std::make_shared<Group>();
    group->transport = context_->transport;
    group->number = number;
    group->rank = rank;
    group->world_ranks = std::move(world_ranks);
    group->ring = ring_order(context_->hosts, group->world_ranks);
    group_ = std::move(group);
    is_on_one_host_ = num_on_host() == size();
  }

  [[nodiscard]] int rank() const override { return group_->rank; }
  [[nodiscard]] int size() const override { return group_->size(); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override { return group_->world_ranks; }
  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return stream_; }

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    require_peer("exchange", peer, rank(), size());
    require_alike("exchange", send, receive);
    return submit_messages(send, {peer}, {{peer, receive}}, std::move(context));
  }

  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    require_neighbors(send, peers, incoming, rank(), size());
    return submit_messages(send, peers, incoming, std::move(context));
  }

  Request send(int peer, int tag, ConstBlock message, OpContext context) override {
    require_tagged("send", peer, tag, rank(), size());
    const Post post{.member = peer, .key = tagged_key(sent_, peer, tag), .send = message};
    return submit(tcp::make_messages(group_, {post}, {}, /*is_tagged=*/true), std::move(context));
  }

  Request receive(int peer, int tag, Block message, OpContext context) override {
    require_tagged("receive", peer, tag, rank(), size());
    const Post post{.member = peer, .key = tagged_key(received_, peer, tag), .receive = message};
    return submit(tcp::make_messages(group_, {}, {post}, /*is_tagged=*/true), std::move(context));
  }

  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    require_sum(send, receive);
    const std::uint64_t number = num_collectives_++;
    const auto make = sum_of(send.bytes());
    return submit(make(group_, number, send, receive), std::move(context));
  }

  Request reduce_sum(Block block, int root, OpContext context) override {
    require_rank("reduce_sum", root, size());
    require_summable("reduce_sum", block.dtype);
    return submit(tcp::make_reduce(group_, num_collectives_++, block, root), std::move(context));
  }

  Request broadcast(Block block, int root, OpContext context) override {
    require_rank("broadcast", root, size());
    return submit(tcp::make_broadcast(group_, num_collectives_++, block, root), std::move(context));
  }

  Request wait_signals(std::vector<Awaited> awaited, OpContext context) override {
    return submit(make_await(of_world(*this, std::move(awaited))), std::move(context));
  }

  std::vector<std::string> all_gather(std::string text) override {
    return gather(std::move(text), {.what = "gather"});
  }

  void barrier() override { gather({}, {.what = "barrier"}); }
  void check() override { context_->worker->check(); }
  [[nodiscard]] double worker_cpu_s() override { return context_->worker->cpu_s(); }

  std::unique_ptr<Communicator> split(int color) override {
    // The members of a part agree on a number that is new to all of them.
    const std::vector<std::string> answers =
        gather(concat(color, " ", context_->next_group), {.what = "split"});
    std::uint32_t number = 0;
    std::vector<int> members;
    int rank = 0;
    for (std::size_t member = 0; member < answers.size(); ++member) {
      const std::size_t space = answers[member].find(' ');
      std::uint32_t next = 0;
      parse_whole(std::string_view(answers[member]).substr(space + 1), next);
      number = std::max(number, next);
      if (answers[member].substr(0, space) != std::to_string(color)) continue;
      if (static_cast<int>(member) < this->rank()) ++rank;
      members.push_back(world_ranks()[member]);
    }
    context_->next_group = number + 1;
    if (color < 0) return nullptr;
    return std::make_unique<TcpCommunicator>(context_, number, std::move(members), rank);
  }

 private:
  /// Numbers of messages, for each peer and use.
  using Counts = std::map<std::pair<int, int>, std::uint64_t>;

  using MakeSum = std::unique_ptr<Operation> (*)(GroupPtr, std::uint64_t, ConstBlock, Block);

  [[nodiscard]] MakeSum sum_of(std::int64_t bytes) const {
    // From so many bytes for each member, shards are better than all blocks for all members.
    constexpr std::int64_t kLeastShard = std::int64_t{8} << 10U;
    // A member gets at most so many bytes where every member gets all blocks. Up to eight members
    // this is no limit.
    constexpr std::int64_t kMostGathered = std::int64_t{512} << 10U;
    const std::int64_t least_ring_bytes = context_->least_ring_bytes;
    const bool is_large =
        least_ring_bytes >= 0 ? bytes >= least_ring_bytes : bytes >= kLeastShard * size();
    if (size() == 1 || (!is_large && bytes * size() <= kMostGathered)) return tcp::make_small_sum;
    if (is_on_one_host_ && least_ring_bytes < 0) return tcp::make_host_sum;
    return is_large ? tcp::make_ring_sum : tcp::make_shard_sum;
  }

  [[nodiscard]] const std::vector<int>& hosts() const override { return context_->hosts; }

  /// Nothing waits for an earlier operation: every message has its own place.
  Request submit(std::unique_ptr<Operation> operation, OpContext context) {
    return context_->worker->submit(std::move(operation), std::move(context));
  }

  [[nodiscard]] MessageKey key(Counts& counts, int peer, int use) const {
    return {.group = group_->number,
            .use = static_cast<std::uint8_t>(use),
            .number = counts[{peer, use}]++};
  }
  [[nodiscard]] MessageKey tagged_key(Counts& counts, int peer, int tag) const {
    return key(counts, peer, static_cast<int>(MessageUse::kTagged) + tag);
  }

  Request submit_messages(ConstBlock send, const std::vector<int>& peers,
                          const std::vector<Incoming>& incoming, OpContext context) {
    constexpr int kUse = static_cast<int>(MessageUse::kExchange);
    std::vector<Post> sends;
    std::vector<Post> receives;
    for (const int peer : peers) {
      sends.push_back({.member = peer, .key = key(sent_, peer, kUse), .send = send});
    }
    for (const Incoming& from : incoming) {
      receives.push_back(
          {.member = from.peer, .key = key(received_, from.peer, kUse), .receive = from.block});
    }
    return submit(tcp::make_messages(group_, std::move(sends), std::move(receives),
                                     /*is_tagged=*/false),
                  std::move(context));
  }

  std::vector<std::string> gather(std::string text, OpLabel label) {
    auto texts = std::make_shared<std::vector<std::string>>();
    submit(tcp::make_gather(group_, num_collectives_++, std::move(text), texts), {.label = label})
        .wait();
    return std::move(*texts);
  }

  std::shared_ptr<TcpContext> context_;
  GroupPtr group_;
  bool is_on_one_host_ = false;
  std::shared_ptr<Stream> stream_ = std::make_shared<InlineStream>();
  Counts sent_;
  Counts received_;
  std::uint64_t num_collectives_ = 0;
};

class TcpSession : public EpochSession {
 public:
  TcpSession(std::shared_ptr<TcpContext> context, const World& world, Logger logger)
      : context_(std::move(context)),
        world_(world),
        logger_(std::move(logger)),
        communicator_(context_, 0, everybody(world.size), world.rank) {}

  ~TcpSession() override {
    // What still runs on the worker uses the transport.
    context_->worker->stop();
    context_->transport->close();
  }

  void abandon() override {
    context_->worker->stop();
    context_->transport->part_early();
  }

  [[nodiscard]] bool has_stalled() const override { return context_->worker->has_stalled(); }

  [[nodiscard]] Communicator& communicator() override { return communicator_; }
  [[nodiscard]] const World& world() const override { return world_; }

  void tell_steps(std::int64_t num_steps) override {
    context_->attendance->tell_steps(world_.rank, num_steps);
  }

  void lift_timeout() override { context_->worker->lift_timeout(); }

  void close() override {
    lift_timeout();
    context_->worker->drain();
    tell_leaving();
    communicator_.barrier();
    context_->worker->stop();
    context_->transport->part();
  }

  bool abort(ExitCode code, std::string_view reason) override {
    const bool is_first = !context_->transport->has_heard_of_failure();
    is_first ? logger_.error(reason) : logger_.debug(reason);
    context_->worker->stop();
    context_->transport->tell_failure(code, reason);
    return is_first;
  }

  /// Connects this rank with others, so that news reaches all.
  void meet() {
    try {
      communicator_.barrier();
    } catch (const std::exception& error) {
      context_->worker->stop();
      context_->transport->tell_failure(exit_code_of(error), error.what());
      throw;
    }
  }

 private:
  static std::vector<int> everybody(int size) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
    return ranks;
  }

  void tell_leaving() {
    context_->worker
        ->submit(make_call([transport = context_->transport] { transport->tell_leaving(); }),
                 {.label = {.what = "call"}})
        .wait();
  }

  std::shared_ptr<TcpContext> context_;
  World world_;
  Logger logger_;
  TcpCommunicator communicator_;
};

}  // namespace

namespace tcp {

std::unique_ptr<EpochSession> enter(Place place, const World& world, const LaunchOptions& options,
                                    Logger logger) {
  auto context = std::make_shared<TcpContext>();
  context->hosts = std::move(place.hosts);
  context->least_ring_bytes = options.least_ring_bytes;
  context->transport = std::move(place.transport);
  context->attendance = place.attendance;
  const auto transport = context->transport;
  context->worker = std::make_unique<ProgressWorker>(ProgressWorker::Config{
      .rank = world.rank,
      .timeout_s = options.timeout_s,
      .attendance = place.attendance,
      .survives = options.fault.survives,
      .grace_s = kGrace,
      .while_waiting = options.while_waiting,
      .bell = transport->bell(),
      .service = [transport] { transport->service(); },
      .failed = [transport](const std::exception_ptr& error) { transport->abandon(error); },
      .diagnose = [transport](
                      const std::vector<int>& peers,
                      const std::string& so_far) { return transport->diagnose(peers, so_far); },
      .idle_s = [transport](const std::vector<int>& peers) { return transport->idle_s(peers); },
      .hint = [transport](const std::vector<int>& peers) { return transport->hint(peers); },
      .logger = logger});
  auto session = std::make_unique<TcpSession>(std::move(context), world, std::move(logger));
  session->meet();
  return session;
}

void require_files(const MeetingOptions& meeting, int num_for_each) {
  // The files of a run, of its checkpoints and of its records; the store; what the system's
  // libraries open.
  constexpr std::int64_t kOthers = 14;
  // A rank connects with those with which it exchanges. Most topologies have fewer peers in a
  // round.
  constexpr std::int64_t kMostPeers = 4;
  const std::int64_t limit = raise_file_limit();
  const std::int64_t others = meeting.size - 1;
  const std::int64_t needed =
      num_open_files() + num_for_each * others + std::min(others, kMostPeers) + kOthers;
  if (needed <= limit) return;
  throw CommError(
      {.rank = meeting.rank, .label = {.what = "start"}},
      concat("a rank of ", meeting.size, " needs at least ", needed, " files and connections",
             num_for_each > 0 ? concat(", because fault.mode: survive takes ", num_for_each,
                                       " connections between any two ranks")
                              : "",
             file_limit_hint(EMFILE)));
}

}  // namespace tcp

Sessions open_tcp(const LaunchOptions& options) {
  // A rank that joins does not know yet how many connections it needs.
  raise_file_limit();
  Sessions sessions;
  if (options.fault.survives && options.meeting.store != nullptr) {
    sessions.push_back(tcp::open_elastic(options));
    return sessions;
  }
  tcp::require_files(options.meeting, 0);
  tcp::Place place = tcp::find_place(options);
  Logger logger(options.log_level, place.hosts.size() > 1 ? concat("rank ", place.rank) : "");
  const World world = world_on(place.hosts, place.rank, options, logger);
  sessions.push_back(tcp::enter(std::move(place), world, options, std::move(logger)));
  return sessions;
}

}  // namespace gossamer
