#include "test/support/fault_injector.hpp"

#include <algorithm>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/text.hpp"
#include "comm/forwarding_communicator.hpp"

namespace gossamer {
namespace {

using Moment = Fault::Moment;

bool fits(const Fault& fault, Moment moment, const FaultInjector::Operation& operation) {
  const OpLabel& label = operation.label;
  return fault.member == operation.member && fault.moment == moment &&
         (fault.what.empty() || fault.what == label.what) &&
         (fault.bucket < 0 || fault.bucket == label.bucket) &&
         (fault.round < 0 || fault.round == label.round) &&
         (fault.peer < 0 ||
          std::ranges::find(operation.peers, fault.peer) != operation.peers.end());
}

/// A moment, and perhaps the end of other work.
class LateEvent : public Event {
 public:
  LateEvent(std::chrono::milliseconds delay, EventPtr other)
      : end_(Clock::now() + delay), other_(std::move(other)) {}

  [[nodiscard]] bool done() const override {
    return Clock::now() >= end_ && (!other_ || other_->done());
  }
  void wait() const override {
    std::this_thread::sleep_until(end_);
    if (other_) other_->wait();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point end_;
  EventPtr other_;
};

class FaultyCommunicator : public ForwardingCommunicator {
 public:
  FaultyCommunicator(Communicator& inner, std::shared_ptr<FaultInjector> injector,
                     std::vector<std::int64_t> members)
      : ForwardingCommunicator(inner),
        injector_(std::move(injector)),
        members_(std::move(members)) {}
  FaultyCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<FaultInjector> injector,
                     std::vector<std::int64_t> members)
      : FaultyCommunicator(*inner, std::move(injector), std::move(members)) {
    own_ = std::move(inner);
  }

  Request exchange(int peer, ConstBlock send, Block receive, OpContext context) override {
    strike({peer}, context);
    return ForwardingCommunicator::exchange(peer, send, receive, std::move(context));
  }
  Request exchange_with_neighbors(ConstBlock send, std::vector<int> peers,
                                  std::vector<Incoming> incoming, OpContext context) override {
    std::vector<int> all = peers;
    for (const Incoming& from : incoming) all.push_back(from.peer);
    strike(all, context);
    return ForwardingCommunicator::exchange_with_neighbors(send, std::move(peers),
                                                           std::move(incoming), std::move(context));
  }
  Request send(int peer, int tag, ConstBlock message, OpContext context) override {
    strike({peer}, context);
    return ForwardingCommunicator::send(peer, tag, message, std::move(context));
  }
  Request receive(int peer, int tag, Block message, OpContext context) override {
    strike({peer}, context);
    return ForwardingCommunicator::receive(peer, tag, message, std::move(context));
  }
  Request all_reduce_sum(ConstBlock send, Block receive, OpContext context) override {
    strike(others(), context);
    return ForwardingCommunicator::all_reduce_sum(send, receive, std::move(context));
  }
  Request reduce_sum(Block block, int root, OpContext context) override {
    strike(others(), context);
    return ForwardingCommunicator::reduce_sum(block, root, std::move(context));
  }
  Request broadcast(Block block, int root, OpContext context) override {
    strike(others(), context);
    return ForwardingCommunicator::broadcast(block, root, std::move(context));
  }
  Request wait_signals(std::vector<Awaited> awaited, OpContext context) override {
    std::vector<int> owners;
    for (const Awaited& one : awaited) owners.push_back(one.peer);
    strike(owners, context);
    return ForwardingCommunicator::wait_signals(std::move(awaited), std::move(context));
  }
  std::vector<Buffer> allocate(std::int64_t bytes) override {
    return within("share", [&] { return ForwardingCommunicator::allocate(bytes); });
  }
  std::vector<std::string> all_gather(std::string text) override {
    return within("gather", [&] { return ForwardingCommunicator::all_gather(std::move(text)); });
  }
  void barrier() override {
    within("barrier", [&] {
      ForwardingCommunicator::barrier();
      return true;
    });
  }
  std::unique_ptr<Communicator> split(int color) override {
    std::unique_ptr<Communicator> part =
        within("split", [&] { return ForwardingCommunicator::split(color); });
    if (!part) return nullptr;
    return std::make_unique<FaultyCommunicator>(std::move(part), injector_, members_);
  }

 private:
  [[nodiscard]] std::vector<int> others() const {
    std::vector<int> ranks;
    for (int member = 0; member < size(); ++member) {
      if (member != rank()) ranks.push_back(member);
    }
    return ranks;
  }

  [[nodiscard]] FaultInjector::Operation operation(const std::vector<int>& peers,
                                                   const OpLabel& label) const {
    FaultInjector::Operation found{.member = members_.at(world_rank(rank())), .label = label};
    for (const int peer : peers) found.peers.push_back(members_.at(world_rank(peer)));
    return found;
  }

  [[nodiscard]] std::size_t world_rank(int rank) const {
    return static_cast<std::size_t>(world_ranks().at(static_cast<std::size_t>(rank)));
  }

  /// An operation that goes to the worker.
  void strike(const std::vector<int>& peers, OpContext& context) {
    const FaultInjector::Operation struck = operation(peers, context.label);
    for (const Moment moment : {Moment::kBefore, Moment::kAfter}) {
      for (const Fault& fault : injector_->strike(struck, moment)) put(fault, context);
    }
  }

  /// One that the caller waits for. The faults strike operations that do nothing.
  template <class Call>
  std::invoke_result_t<Call> within(std::string_view what, const Call& call) {
    const auto meet = [&](Moment moment) {
      const FaultInjector::Operation struck = operation(others(), {.what = what});
      for (const Fault& fault : injector_->strike(struck, moment)) {
        OpContext context{.label = struck.label};
        put(fault, context);
        ForwardingCommunicator::wait_signals({}, std::move(context)).wait();
      }
    };
    meet(Moment::kBefore);
    auto result = call();
    meet(Moment::kAfter);
    return result;
  }

  void put(const Fault& fault, OpContext& context) const {
    if (fault.kind == Fault::Kind::kDrop) {
      // Never over.
      context.after = std::make_shared<RequestState>();
      return;
    }
    auto& hook = fault.moment == Moment::kBefore ? context.prepare : context.finish;
    if (fault.kind == Fault::Kind::kSlow) {
      hook = [delay = fault.delay, next = std::move(hook)]() -> EventPtr {
        return std::make_shared<LateEvent>(delay, next ? next() : nullptr);
      };
      return;
    }
    CommError::Context known{.rank = own_world_rank(*this), .label = context.label};
    if (fault.kind == Fault::Kind::kFail) {
      known.code = ExitCode::kInternal;
      hook = [known]() -> EventPtr { throw CommError(known, "an injected fault ends this rank"); };
      return;
    }
    const auto lost = std::ranges::find(members_, fault.peer);
    if (lost != members_.end()) known.peers = {static_cast<int>(lost - members_.begin())};
    hook = [known]() -> EventPtr {
      throw PeerLost(known, "an injected fault has cancelled it", /*is_own=*/true);
    };
  }

  std::shared_ptr<FaultInjector> injector_;
  std::vector<std::int64_t> members_;
  std::unique_ptr<Communicator> own_;
};

}  // namespace

FaultInjector::FaultInjector(std::vector<Fault> faults) {
  for (Fault& fault : faults) {
    if (fault.kind == Fault::Kind::kDrop && fault.moment == Moment::kAfter) {
      throw ConfigError("a fault drops an operation after its end, allowed: before it starts");
    }
    plan_.push_back({.fault = std::move(fault)});
  }
}

std::vector<Fault> FaultInjector::strike(const Operation& operation, Moment moment) {
  const std::lock_guard lock(mutex_);
  std::vector<Fault> striking;
  for (Planned& planned : plan_) {
    const Fault& fault = planned.fault;
    if (!fits(fault, moment, operation)) continue;
    const std::int64_t number = planned.count++;
    if (number < fault.skip || number - fault.skip >= fault.times) continue;
    striking.push_back(fault);
    ++num_strikes_;
  }
  return striking;
}

std::int64_t FaultInjector::num_strikes() const {
  const std::lock_guard lock(mutex_);
  return num_strikes_;
}

WrapCommunicator inject_faults(std::shared_ptr<FaultInjector> injector) {
  if (!injector) return {};
  return [injector = std::move(injector)](Communicator& inner,
                                          const std::vector<std::int64_t>& members) {
    return std::make_unique<FaultyCommunicator>(inner, injector, members);
  };
}

}  // namespace gossamer
