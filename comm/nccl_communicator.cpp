#include "comm/nccl_communicator.hpp"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/sorted.hpp"
#include "base/text.hpp"
#include "comm/preconditions.hpp"

namespace gossamer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kWatchPause = std::chrono::milliseconds(20);
constexpr auto kCallPause = std::chrono::microseconds(100);
// Most calls take less: a sleep for each bucket would be felt in small models.
constexpr auto kShortCall = std::chrono::milliseconds(1);

/// What the communicators of one rank share. Two locks: `api_mutex_` for the library, which takes
/// one call at a time, and `mutex_` for what the watchdog and the rank both look at; the first may
/// be held while the second is taken.
class NcclContext {
 public:
  NcclContext(NcclApi& api, Communicator& host, std::shared_ptr<Stream> stream,
              const NcclOptions& options)
      : api_(api),
        host_(host),
        stream_(std::move(stream)),
        rank_(own_world_rank(host)),
        options_(options),
        watchdog_([this] { watch(); }) {}
  ~NcclContext() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    watchdog_.join();
    api_.abort(comms_);
  }
  NcclContext(const NcclContext&) = delete;
  NcclContext& operator=(const NcclContext&) = delete;

  [[nodiscard]] const std::shared_ptr<Stream>& stream() { return stream_; }

  [[nodiscard]] bool closed() const { return closed_; }

  /// Throws the error that has ended this rank's communication, if one has.
  void check() {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

  /// The communicator that `make` returns, when it can be used.
  template <class Make>
  NcclApi::Comm adopt(const OpLabel& label, const Make& make) {
    NcclApi::Comm comm = nullptr;
    guarded(label, {}, [&] { comm = make(api_); });
    own(comm);
    complete(comm, label, {});
    return comm;
  }

  /// The part of a communicator that split() gives this rank; null: none.
  NcclApi::Comm split(NcclApi::Comm comm, int color, int key) {
    const OpLabel label{.what = "split"};
    // Stays where it is whatever happens: the library may write it late.
    NcclApi::Comm& part = parts_.emplace_back(nullptr);
    guarded(label, {}, [&] { api_.split(comm, color, key, &part); });
    complete(comm, label, {});
    if (color < 0) return nullptr;
    own(part);
    complete(part, label, {});
    return part;
  }

  /// Gives an operation to the stream, and waits until the library has done so.
  template <class Call>
  void operate(NcclApi::Comm comm, const OpLabel& label, const std::vector<int>& peers,
               const Call& call) {
    guarded(label, peers, [&] { call(api_); });
    complete(comm, label, peers);
  }

  /// Collective: ends all communicators in good order. Throws CommError; they are aborted then.
  void close() {
    const OpLabel label{.what = "end of NCCL"};
    std::vector<NcclApi::Comm> comms;
    {
      const std::lock_guard lock(mutex_);
      comms = comms_;
    }
    guarded(label, {}, [&] {
      for (const NcclApi::Comm comm : comms) api_.finalize(comm);
    });
    for (const NcclApi::Comm comm : comms) complete(comm, label, {});
    guarded(label, {}, [&] {
      {
        // From here on neither the watchdog nor the destructor touches them.
        const std::lock_guard lock(mutex_);
        comms_.clear();
      }
      for (const NcclApi::Comm comm : comms) api_.destroy(comm);
    });
    closed_ = true;
  }

  struct Pending {
    EventPtr begins;
    EventPtr ends;
    OpLabel label;
    std::vector<int> peers;
    std::optional<Clock::time_point> began = std::nullopt;
  };

  void add(Pending pending) {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(pending));
  }

 private:
  void own(NcclApi::Comm comm) {
    const std::lock_guard lock(mutex_);
    comms_.push_back(comm);
  }

  /// One call of the library. Errors end the rank's communication.
  template <class Call>
  void guarded(const OpLabel& label, const std::vector<int>& peers, const Call& call) {
    if (closed_) throw std::logic_error("NCCL: a communicator is used after its close()");
    try {
      const std::lock_guard lock(api_mutex_);
      // Under the lock: the watchdog may be about to abort what the call is for.
      check();
      call();
    } catch (const CommError& error) {
      fail({rank_, peers, label}, error.reason());
      check();
    }
  }

  /// Waits until the calls on a communicator have had their effect.
  void complete(NcclApi::Comm comm, const OpLabel& label, const std::vector<int>& peers) {
    const auto begin = Clock::now();
    bool over = false;
    while (true) {
      guarded(label, peers, [&] { over = api_.progress(comm); });
      if (over) return;
      const auto waited = Clock::now() - begin;
      if (std::chrono::duration<double>(waited).count() > options_.timeout_s) {
        fail({rank_, peers, label}, too_late());
      }
      if (waited < kShortCall) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kCallPause);
      }
    }
  }

  [[nodiscard]] std::string too_late() const {
    return concat("no end after ", shortest(options_.timeout_s), " s (comm.timeout_s)");
  }

  void fail(const CommError::Context& context, std::string_view reason) {
    std::vector<NcclApi::Comm> comms;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = std::make_exception_ptr(CommError(context, reason));
      comms.swap(comms_);
    }
    // Nobody calls the library from now on but to end things.
    const std::lock_guard lock(api_mutex_);
    api_.abort(comms);
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      wake_.wait_for(lock, kWatchPause, [this] { return stopping_; });
      if (stopping_ || failure_) continue;
      lock.unlock();
      look();
      lock.lock();
    }
  }

  void look() {
    Pending oldest;
    try {
      stream_->enter();
      if (const std::optional<Pending> late = forget_ended(oldest)) {
        return fail({rank_, late->peers, late->label}, too_late());
      }
      look_for_errors();
      host_.check();
    } catch (const CommError& error) {
      // What the host's communicator says names its own peers.
      const std::vector<int>& named = error.context().peers;
      fail({rank_, named.empty() ? oldest.peers : named, oldest.label}, error.reason());
    } catch (const std::exception& error) {
      fail({rank_, oldest.peers, oldest.label}, error.what());
    }
  }

  /// What NCCL has noticed by itself: a peer that is gone, a network that is down.
  void look_for_errors() {
    const std::lock_guard api_lock(api_mutex_);
    std::vector<NcclApi::Comm> comms;
    {
      const std::lock_guard lock(mutex_);
      comms = comms_;
    }
    for (const NcclApi::Comm comm : comms) static_cast<void>(api_.progress(comm));
  }

  /// Drops what is over. Returns the oldest operation if it has taken too long; `oldest` is the one
  /// that the others stand behind.
  std::optional<Pending> forget_ended(Pending& oldest) {
    const std::lock_guard lock(mutex_);
    while (!pending_.empty() && pending_.front().ends->done()) pending_.pop_front();
    if (pending_.empty()) return std::nullopt;
    Pending& first = pending_.front();
    oldest = first;
    if (!first.began) {
      // Until then it waits for this rank's own computing.
      if (first.begins->done()) first.began = Clock::now();
      return std::nullopt;
    }
    const double waited = std::chrono::duration<double>(Clock::now() - *first.began).count();
    if (waited <= options_.timeout_s) return std::nullopt;
    return first;
  }

  NcclApi& api_;
  Communicator& host_;
  std::shared_ptr<Stream> stream_;
  int rank_;
  NcclOptions options_;
  std::deque<NcclApi::Comm> parts_;  // the rank's own; a deque keeps them in place
  bool closed_ = false;              // the rank's own
  std::mutex api_mutex_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<NcclApi::Comm> comms_;  // guarded by mutex_
  std::deque<Pending> pending_;       // guarded by mutex_; in the order of the stream
  std::exception_ptr failure_;        // guarded by mutex_
  bool stopping_ = false;             // guarded by mutex_
  std::thread watchdog_;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclContext> context, NcclApi::Comm comm, Communicator& host)
      : context_(std::move(context)), comm_(comm), host_(host) {}
  NcclCommunicator(std::shared_ptr<NcclContext> context, NcclApi::Comm comm,
                   std::unique_ptr<Communicator> host)
      : context_(std::move(context)), comm_(comm), owned_(std::move(host)), host_(*owned_) {}

  [[nodiscard]] int rank() const override { return host_.rank(); }
  [[nodiscard]] int size() const override { return host_.size(); }
  [[nodiscard]] const std::vector<int>& world_ranks() const override { return host_.world_ranks(); }
  [[nodiscard]] const std::shared_ptr<Stream>& stream() override { return context_->stream(); }

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

  Request broadcast(Block block, int root, OpContext context) override {
    if (is_on_host(block)) return host_.broadcast(block, root, std::move(context));
    require_rank("broadcast", root, size());
    return submit(std::move(context), world_ranks(),
                  [&](NcclApi& api) { api.broadcast(comm_, block, root, *stream()); });
  }

  std::vector<std::string> all_gather(std::string text) override {
    return host_.all_gather(std::move(text));
  }
  void barrier() override { host_.barrier(); }
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
      context_->check();
      std::this_thread::sleep_for(kCallPause);
    }
    context_->check();
  }

  /// `call` gives the operation to the stream.
  template <class Call>
  Request submit(OpContext context, std::vector<int> peers, const Call& call) {
    context_->check();
    if (context.after) {
      // What this rank's stream has been given before is done before anyway.
      if (const EventPtr event = context.after->event()) {
        stream()->wait(event);
      } else {
        context.after->when_over(stream()->hold());
      }
    }
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
    return Request(
        std::make_shared<RequestState>(std::move(ends), [shared = context_] { shared->check(); }));
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
