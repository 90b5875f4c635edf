#include "comm/mpi/backend.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "comm/collectives/placement.hpp"
#include "comm/collectives/process_world.hpp"
#include "comm/collectives/shared_memory.hpp"
#include "comm/mpi/check.hpp"
#include "comm/mpi/operations.hpp"
#include "comm/mpi/watch.hpp"
#include "comm/preconditions.hpp"

namespace gossamer {
namespace {

/// Before a rank takes the job down, the others have this long to write their own last line.
constexpr auto kLastWords = std::chrono::milliseconds(500);
/// Seconds in which the last messages of a rank that has left may still arrive: TCP repeats a lost
/// packet for a few seconds.
constexpr double kGrace = 5.0;

/// Ends the job: the others are killed by the launcher, which returns `code`.
[[noreturn]] void abort_job(ExitCode code) {
  std::this_thread::sleep_for(kLastWords);
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::abort();
}

/// One communicator handle. Freeing one is a collective call, so it happens in release() and never
/// in a destructor; MPI_Finalize reclaims what was not released.
class MpiComm {
 public:
  explicit MpiComm(MPI_Comm comm) : comm_(comm) {}
  MpiComm(MpiComm&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiComm& operator=(MpiComm&& other) noexcept {
    comm_ = std::exchange(other.comm_, MPI_COMM_NULL);
    return *this;
  }
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;
  ~MpiComm() = default;

  [[nodiscard]] MPI_Comm get() const { return comm_; }
  void release() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }

 private:
  MPI_Comm comm_;
};

/// What the communicators of one process share: the worker and every handle, in order of creation,
/// which is the same on all members.
struct MpiContext {
  /// The host of every world rank, as a number.
  std::vector<int> hosts;
  /// LaunchOptions::least_ring_bytes.
  std::int64_t least_ring_bytes = -1;
  std::vector<MpiComm> comms;
  std::shared_ptr<Attendance> attendance;
  std::optional<MpiWatch> watch;
  std::optional<ProgressWorker> worker;

  /// Meets the other ranks. Returns the group of all.
  std::shared_ptr<const MpiGroup> start(const LaunchOptions& options, int rank, int size,
                                        const Logger& logger);
  /// Has the worker run a call of MPI.
  Request call(std::function<void()> body) {
    return worker->submit(make_call(std::move(body)), {.label = {.what = "call"}});
  }

  MPI_Comm adopt(MPI_Comm comm) {
    mpi_check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comms.emplace_back(comm).get();
  }
  MPI_Comm duplicate(MPI_Comm comm) {
    MPI_Comm copy = MPI_COMM_NULL;
    mpi_check(MPI_Comm_dup(comm, &copy), "MPI_Comm_dup");
    return adopt(copy);
  }
  /// Says how the group sums round a ring. Its ranks must be known.
  void set_ring(MpiGroup& group) const {
    group.ring = ring_order(hosts, group.world_ranks);
    group.least_ring_bytes = least_ring_bytes >= 0
                                 ? least_ring_bytes
                                 : gossamer::least_ring_bytes(hosts, group.world_ranks);
  }
};

class MpiCommunicator : public ProcessCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiContext> context, std::shared_ptr<const MpiGroup> group)
      : context_(std::move(context)), group_(std::move(group)) {}

  [[nodiscard]] int rank() const override { return group_->rank; }
  [[nodiscard]] int size() const override { return static_cast<int>(group_->world_ranks.size()); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override { return group_->world_ranks; }

  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return stream_; }
  [[nodiscard]] bool takes_device_memory() const override { return mpi_takes_device_memory(); }

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    require_peer("exchange", peer, rank(), size());
    require_alike("exchange", send, receive);
    return submit_exchange(send, {peer}, {{peer, receive}}, std::move(context));
  }

  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    require_neighbors(send, peers, incoming, rank(), size());
    return submit_exchange(send, std::move(peers), std::move(incoming), std::move(context));
  }

  // Every tagged message has a channel of its own, so it waits for nothing.
  Request send(int peer, int tag, ConstBlock message, OpContext context) override {
    require_tagged("send", peer, tag, rank(), size());
    return context_->worker->submit(make_mpi_send(group_, peer, tag, message), std::move(context));
  }

  Request receive(int peer, int tag, Block message, OpContext context) override {
    require_tagged("receive", peer, tag, rank(), size());
    return context_->worker->submit(make_mpi_receive(group_, peer, tag, message),
                                    std::move(context));
  }

  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    require_sum(send, receive);
    return submit(sums_in_ring(send, receive)
                      ? make_mpi_ring_sum(group_, send, receive, num_ring_sums_++)
                      : make_mpi_all_reduce(group_, send, receive),
                  std::move(context));
  }

  Request reduce_sum(Block block, int root, OpContext context) override {
    require_rank("reduce_sum", root, size());
    require_summable("reduce_sum", block.dtype);
    return submit(make_mpi_reduce(group_, block, root), std::move(context));
  }

  Request broadcast(Block block, int root, OpContext context) override {
    require_rank("broadcast", root, size());
    return submit(make_mpi_broadcast(group_, block, root), std::move(context));
  }

  Request wait_signals(std::vector<Awaited> awaited, OpContext context) override {
    return context_->worker->submit(make_await(of_world(*this, std::move(awaited))),
                                    std::move(context));
  }

  std::vector<std::string> all_gather(std::string text) override {
    return gather(std::move(text), {.what = "gather"});
  }

  void barrier() override {
    submit(make_mpi_barrier(group_), {.label = {.what = "barrier"}}).wait();
  }

  void check() override { context_->worker->check(); }
  [[nodiscard]] double worker_cpu_s() override { return context_->worker->cpu_s(); }

  std::unique_ptr<Communicator> split(int color) override {
    // MPI_Comm_split has no nonblocking form. Gathering first brings all members here under the
    // watchdog, so that the blocking call after it finds all ranks.
    const std::vector<std::string> colors = gather(std::to_string(color), {.what = "split"});
    auto part = std::make_shared<MpiGroup>();
    const auto call = [this, color, part] {
      MPI_Comm comm = MPI_COMM_NULL;
      mpi_check(MPI_Comm_split(group_->comm, color < 0 ? MPI_UNDEFINED : color, rank(), &comm),
                "MPI_Comm_split");
      if (comm == MPI_COMM_NULL) return;
      part->comm = context_->adopt(comm);
      MPI_Comm_rank(comm, &part->rank);
    };
    submit(make_call(call), {.label = {.what = "split"}}).wait();
    if (color < 0) return nullptr;
    for (std::size_t member = 0; member < colors.size(); ++member) {
      if (colors[member] == std::to_string(color)) {
        part->world_ranks.push_back(world_ranks()[member]);
      }
    }
    context_->set_ring(*part);
    return std::make_unique<MpiCommunicator>(context_, std::move(part));
  }

 private:
  [[nodiscard]] const std::vector<int>& hosts() const override { return context_->hosts; }

  Request submit(std::unique_ptr<Operation> operation, OpContext context) {
    return context_->worker->submit(std::move(operation), std::move(context), group_.get());
  }

  [[nodiscard]] bool sums_in_ring(const ConstBlock& send, const Block& receive) const {
    return size() > 1 && send.bytes() >= group_->least_ring_bytes && is_on_host(send) &&
           is_on_host(receive);
  }

  /// Exchanges have a channel of their own, so that no collective operation waits for a peer's
  /// message.
  Request submit_exchange(ConstBlock send, std::vector<int> peers, std::vector<Incoming> incoming,
                          OpContext context) {
    const void* channel = &group_->world_ranks;
    return context_->worker->submit(
        make_mpi_exchange(group_, send, std::move(peers), std::move(incoming)), std::move(context),
        channel);
  }

  std::vector<std::string> gather(std::string text, OpLabel label) {
    auto texts = std::make_shared<std::vector<std::string>>();
    submit(make_mpi_gather(group_, std::move(text), texts), {.label = label}).wait();
    return std::move(*texts);
  }

  std::shared_ptr<MpiContext> context_;
  std::shared_ptr<const MpiGroup> group_;
  std::shared_ptr<Stream> stream_ = std::make_shared<InlineStream>();
  std::int64_t num_ring_sums_ = 0;
};

/// The lowest rank on the host of each rank, by rank.
std::vector<int> hosts_of_ranks(int rank, int size) {
  MPI_Comm host = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host),
            "MPI_Comm_split_type");
  int lowest = rank;
  mpi_check(MPI_Bcast(&lowest, 1, MPI_INT, 0, host), "MPI_Bcast");
  MPI_Comm_free(&host);
  std::vector<int> hosts(static_cast<std::size_t>(size));
  mpi_check(MPI_Allgather(&lowest, 1, MPI_INT, hosts.data(), 1, MPI_INT, MPI_COMM_WORLD),
            "MPI_Allgather");
  return hosts;
}

std::shared_ptr<const MpiGroup> MpiContext::start(const LaunchOptions& options, int rank, int size,
                                                  const Logger& logger) {
  hosts = hosts_of_ranks(rank, size);
  least_ring_bytes = options.least_ring_bytes;
  attendance = std::make_shared<Attendance>(static_cast<std::size_t>(size));
  watch.emplace(duplicate(MPI_COMM_WORLD), rank, size, attendance);
  auto group = std::make_shared<MpiGroup>();
  group->comm = duplicate(MPI_COMM_WORLD);
  group->rank = rank;
  for (int member = 0; member < size; ++member) group->world_ranks.push_back(member);
  set_ring(*group);
  worker.emplace(ProgressWorker::Config{
      .rank = rank,
      .timeout_s = options.timeout_s,
      .attendance = attendance,
      .grace_s = kGrace,
      .while_waiting = options.while_waiting,
      .service = [this] { watch->service(); },
      .diagnose = [this](const std::vector<int>& peers,
                         const std::string& /*so_far*/) { return watch->diagnose(peers); },
      .ask = [this] { watch->ask(); },
      .logger = logger});
  return group;
}

void shut_down(MpiContext& context) {
  context.worker->stop();
  context.watch->close();
  for (MpiComm& comm : context.comms) comm.release();
  MPI_Finalize();
}

class MpiSession : public Session {
 public:
  MpiSession(std::shared_ptr<MpiContext> context, std::shared_ptr<const MpiGroup> group,
             const World& world, Logger logger)
      : context_(std::move(context)),
        world_(world),
        logger_(std::move(logger)),
        communicator_(context_, std::move(group)) {}

  [[nodiscard]] Communicator& communicator() override { return communicator_; }
  [[nodiscard]] const World& world() const override { return world_; }

  void tell_steps(std::int64_t num_steps) override {
    context_->attendance->tell_steps(world_.rank, num_steps);
  }

  void lift_timeout() override { context_->worker->lift_timeout(); }

  void close() override {
    lift_timeout();
    context_->worker->drain();
    context_->call([&watch = *context_->watch] { watch.tell_leaving(); }).wait();
    communicator_.barrier();
    context_->call([&watch = *context_->watch] { watch.wait_for_messages(); }).wait();
    shut_down(*context_);
  }

  bool abort(ExitCode code, std::string_view reason) override {
    const bool is_first = !context_->watch->has_heard_of_failure();
    is_first ? logger_.error(reason) : logger_.debug(reason);
    // Fails where the worker has failed: then the others have an error of their own, or will.
    context_->call([&watch = *context_->watch, code, text = std::string(reason)] {
      watch.tell_failure(code, text);
    });
    abort_job(code);
  }

 private:
  std::shared_ptr<MpiContext> context_;
  World world_;
  Logger logger_;
  MpiCommunicator communicator_;
};

}  // namespace

Sessions open_mpi(const LaunchOptions& options) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  // MPICH asks one of these, and not the communicator of the requests, when MPI_Testall has failed.
  for (const MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF}) {
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const Logger logger(options.log_level, size > 1 ? concat("rank ", rank) : "");
  try {
    if (provided < MPI_THREAD_SERIALIZED) {
      throw CommError({.rank = rank, .label = {.what = "start"}},
                      "this MPI offers no thread support; gossamer needs MPI_THREAD_SERIALIZED");
    }
    auto context = std::make_shared<MpiContext>();
    auto group = context->start(options, rank, size, logger);
    const World world = world_on(context->hosts, rank, options, logger);
    Sessions sessions;
    sessions.push_back(
        std::make_unique<MpiSession>(std::move(context), std::move(group), world, logger));
    return sessions;
  } catch (const std::exception& error) {
    logger.error(error.what());
    abort_job(exit_code_of(error));
  }
}

}  // namespace gossamer
