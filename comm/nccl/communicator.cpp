#include "comm/nccl/communicator.hpp"

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "base/sorted.hpp"
#include "comm/forwarding_communicator.hpp"
#include "comm/nccl/context.hpp"
#include "comm/preconditions.hpp"

namespace gossamer {
namespace {

// Between two looks at the stream.
constexpr auto kPause = std::chrono::microseconds(100);

class NcclCommunicator : public ForwardingCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclContext> context, NcclApi::Comm comm, Communicator& host)
      : ForwardingCommunicator(host), context_(std::move(context)), comm_(comm), host_(host) {}
  NcclCommunicator(std::shared_ptr<NcclContext> context, NcclApi::Comm comm,
                   std::unique_ptr<Communicator> host)
      : ForwardingCommunicator(*host),
        context_(std::move(context)),
        comm_(comm),
        owned_(std::move(host)),
        host_(*owned_) {}
  ~NcclCommunicator() override {
    // Requests may hold the context for longer.
    if (!owned_) context_->give_up();
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return context_->stream(); }
  [[nodiscard]] bool takes_device_memory() const override { return false; }
  /// NCCL shares no memory of the host, and its communicator ends with its world.
  SharedMemory* shared_memory() override { return nullptr; }
  Elastic* elastic() override { return nullptr; }
  void connect() override {}
  std::shared_ptr<void> reserve(std::int64_t, DType, std::int64_t) override { return nullptr; }

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    if (is_on_host(send)) return host_.exchange(peer, send, receive, std::move(context));
    require_peer("exchange", peer, rank(), size());
    require_alike("exchange", send, receive);
    return submit(std::move(context), {world_rank(peer)}, [&](NcclApi& api) {
      as_one(api, [&] {
        api.send(comm_, send, peer, *stream());
        api.receive(comm_, receive, peer, *stream());
      });
    });
  }

  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    if (is_on_host(send)) {
      return host_.exchange_with_neighbors(send, std::move(peers), std::move(incoming),
                                           std::move(context));
    }
    require_neighbors(send, peers, incoming, rank(), size());
    std::vector<int> others;
    for (const int peer : peers) others.push_back(world_rank(peer));
    for (const Incoming& from : incoming) others.push_back(world_rank(from.peer));
    sort_unique(others);
    return submit(std::move(context), std::move(others), [&](NcclApi& api) {
      as_one(api, [&] {
        for (const int peer : peers) api.send(comm_, send, peer, *stream());
        for (const Incoming& from : incoming) {
          api.receive(comm_, from.block, from.peer, *stream());
        }
      });
    });
  }

  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    if (is_on_host(send)) return host_.all_reduce_sum(send, receive, std::move(context));
    require_sum(send, receive);
    return submit(std::move(context), world_ranks(),
                  [&](NcclApi& api) { api.all_reduce_sum(comm_, send, receive, *stream()); });
  }

  Request reduce_sum(Block block, int root, OpContext context) override {
    require_on_host("reduce_sum", block);
    return host_.reduce_sum(block, root, std::move(context));
  }

  Request broadcast(Block block, int root, OpContext context) override {
    if (is_on_host(block)) return host_.broadcast(block, root, std::move(context));
    require_rank("broadcast", root, size());
    return submit(std::move(context), world_ranks(),
                  [&](NcclApi& api) { api.broadcast(comm_, block, root, *stream()); });
  }

  Request send(int peer, int tag, ConstBlock message, OpContext context) override {
    require_on_host("send", message);
    return host_.send(peer, tag, message, std::move(context));
  }
  Request receive(int peer, int tag, Block message, OpContext context) override {
    require_on_host("receive", message);
    return host_.receive(peer, tag, message, std::move(context));
  }

  void check() override { context_->check(); }

  std::unique_ptr<Communicator> split(int color) override {
    finish_operations();
    // First by way of the host: its watchdog names who does not come.
    std::unique_ptr<Communicator> part = host_.split(color);
    const NcclApi::Comm comm = context_->split(comm_, color, rank());
    if (part == nullptr) return nullptr;
    return std::make_unique<NcclCommunicator>(context_, comm, std::move(part));
  }

  void close() override {
    // A part ends with the communicator that it was split from.
    if (owned_ || context_->closed()) return;
    finish_operations();
    // As in split(): the host's watchdog names who does not come.
    host_.barrier();
    context_->close();
  }

 private:
  [[nodiscard]] int world_rank(int member) const {
    return world_ranks()[static_cast<std::size_t>(member)];
  }

  template <class Calls>
  static void as_one(NcclApi& api, const Calls& calls) {
    api.group_start();
    try {
      calls();
    } catch (...) {
      try {
        api.group_end();
      } catch (const CommError&) {  // NOLINT(bugprone-empty-catch): the first error tells more
      }
      throw;
    }
    api.group_end();
  }

  /// NCCL wants none to be outstanding on what is split. The watchdog sees to an end.
  void finish_operations() {
    const EventPtr last = stream()->record();
    while (!last->done()) {
      context_->require();
      std::this_thread::sleep_for(kPause);
    }
    context_->require();
  }

  /// `call` gives the operation to the stream.
  template <class Call>
  Request submit(OpContext context, std::vector<int> peers, const Call& call) {
    context_->require();
    if (context.after) context.after->wait_on(*stream());
    stream()->wait(context.ready);
    EventPtr ends;
    try {
      if (context.prepare) static_cast<void>(context.prepare());
      EventPtr begins = stream()->record();
      context_->operate(comm_, context.label, peers, call);
      ends = stream()->record();
      context_->add({.begins = std::move(begins),
                     .ends = ends,
                     .label = context.label,
                     .peers = std::move(peers)});
    } catch (...) {
      // The stream may have been given the operation before it failed.
      stream()->keep(context.owner);
      throw;
    }
    stream()->keep(context.owner);
    // Aborted operations end, too: only the context knows whether this one has done its work.
    std::function<void()> confirm;
    if (context_->goes_on()) {
      confirm = [shared = context_, comm = comm_, label = context.label] {
        shared->confirm(comm, label);
      };
    }
    return Request(std::make_shared<RequestState>(
        std::move(ends), [shared = context_] { shared->check(); }, std::move(confirm)));
  }

  std::shared_ptr<NcclContext> context_;
  NcclApi::Comm comm_;
  std::unique_ptr<Communicator> owned_;
  Communicator& host_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(NcclApi& api, Communicator& host,
                                                     std::shared_ptr<Stream> stream,
                                                     const NcclOptions& options) {
  // NCCL makes communicators on the device of the thread that calls it.
  stream->enter();
  auto context = std::make_shared<NcclContext>(api, host, std::move(stream), options);
  const OpLabel label{.what = "start of NCCL"};
  const std::string id = host.all_gather(host.rank() == 0 ? api.unique_id() : "").front();
  const NcclApi::Comm comm = context->adopt(
      label, [&](NcclApi& library) { return library.init(id, host.rank(), host.size()); });
  return std::make_unique<NcclCommunicator>(std::move(context), comm, host);
}

}  // namespace gossamer
