#include "python/src/session.hpp"

#include "python/src/pointer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.hpp"
#include "base/host_stream.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/forwarding_communicator.hpp"
#include "core/bucket/bucket_plan.hpp"
#include "core/bucket/model_average.hpp"
#include "core/state/broadcast_blocks.hpp"
#include "core/state/tensor_names.hpp"

namespace gossamer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// Lets Ctrl-C end a wait. Signals of Python run on its main thread alone.
void look_for_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::vector<std::shared_ptr<PySession>> open(const std::string& backend, int num_ranks,
                                             int node_size, double timeout_s, bool survives) {
  LaunchOptions options = waiting_options(timeout_s);
  options.fault.survives = survives;
  options.num_ranks = num_ranks;
  options.node_size = node_size;
  std::vector<std::shared_ptr<PySession>> sessions;
  for (auto& session : open_sessions(backend.empty() ? default_backend() : backend, options)) {
    sessions.push_back(std::make_shared<PySession>(std::move(session), timeout_s));
  }
  return sessions;
}

/// The stay of a rank in a part of the ranks, which the whole session ends.
class WithoutEnd : public Session {
 public:
  void tell_steps(std::int64_t /*num_steps*/) override { refuse(); }
  void lift_timeout() override { refuse(); }
  void close() override { refuse(); }
  bool abort(ExitCode /*code*/, std::string_view /*reason*/) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("the whole session does this"); }
};

/// The stay in a part whose ranks stay the same.
class PartSession : public WithoutEnd {
 public:
  PartSession(std::unique_ptr<Communicator> communicator, const Placement& placement)
      : communicator_(std::move(communicator)),
        world_{.rank = communicator_->rank(),
               .size = communicator_->size(),
               .node_size = 1,
               .placement = placement} {}

  [[nodiscard]] Communicator& communicator() override { return *communicator_; }
  [[nodiscard]] const World& world() const override { return world_; }

 private:
  std::unique_ptr<Communicator> communicator_;
  World world_;
};

/// The communicator of the ranks of one place, which follows the members of a run.
class PlaceCommunicator : public ForwardingCommunicator {
 public:
  PlaceCommunicator(Communicator& whole, int place)
      : ForwardingCommunicator(whole), whole_(whole), place_(place) {
    split_anew();
  }

 private:
  Elastic* elastic() override { return this; }

  [[nodiscard]] Membership membership() const override {
    Membership found = whole_.elastic()->membership();
    const std::vector<std::int64_t> all = std::exchange(found.members, {});
    for (const int rank : world_ranks()) {
      found.members.push_back(all.at(static_cast<std::size_t>(rank)));
    }
    found.world = {
        .rank = rank(), .size = size(), .node_size = 1, .placement = found.world.placement};
    return found;
  }

  void admit(bool admits) override { whole_.elastic()->admit(admits); }

  Membership reconfigure(std::int64_t step) override {
    drop_subgroups();
    // It belongs to the world that ends here. In between, this is the whole.
    set_inner(whole_);
    part_.reset();
    whole_.elastic()->reconfigure(step);
    split_anew();
    return membership();
  }

  void split_anew() {
    part_ = whole_.split(place_);
    set_inner(*part_);
  }

  Communicator& whole_;
  int place_;
  std::unique_ptr<Communicator> part_;
};

/// The stay of a rank among the ranks of its place, which the whole session ends.
class PlaceSession : public WithoutEnd {
 public:
  PlaceSession(Communicator& whole, int place) : communicator_(whole, place) { follow(); }

  [[nodiscard]] Communicator& communicator() override { return communicator_; }
  [[nodiscard]] const World& world() const override {
    follow();
    return world_;
  }

 private:
  void follow() const {
    Communicator& communicator = communicator_;
    world_ = communicator.elastic()->membership().world;
  }

  mutable PlaceCommunicator communicator_;
  mutable World world_;
};

/// Memory of Python: its address and its bytes.
using Memory = std::pair<std::uintptr_t, std::int64_t>;

/// Copies the bytes of `root` to all. The operations have memory of their own, because Ctrl-C may
/// end the wait and not the operation.
void broadcast(const PySession& session, const std::vector<Memory>& memory, int root) {
  std::vector<Block> blocks;
  for (const auto& [address, num_bytes] : memory) {
    blocks.push_back({pointer_to(address), num_bytes, DType::kUInt8, {}});
  }
  InlineStream stream;
  broadcast_blocks(session.communicator(), stream, blocks, root);
}

/// The address of values, their number, and their type.
using Values = std::tuple<std::uintptr_t, std::int64_t, std::string>;

/// The values become their mean over all ranks. The operations have memory of their own.
void average(const PySession& session, const std::vector<Values>& values) {
  std::vector<ParameterMemory> copies;
  for (const auto& [address, numel, type] : values) {
    if (type != "float32" && type != "float64") {
      throw ConfigError("a mean of " + type + ", allowed: float32, float64");
    }
    const Buffer copy(numel, type == "float32" ? DType::kFloat32 : DType::kFloat64);
    std::memcpy(copy.block().data, pointer_to(address),
                static_cast<std::size_t>(copy.block().bytes()));
    copies.push_back({.parameters = copy});
  }
  InlineStream stream;
  // The rank's own values are not taken back.
  static_cast<void>(ModelAverage(session.communicator(), stream, copies));
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const Block mean = copies[i].parameters.block();
    std::memcpy(pointer_to(std::get<0>(values[i])), mean.data,
                static_cast<std::size_t>(mean.bytes()));
  }
}

}  // namespace

LaunchOptions waiting_options(double timeout_s) {
  return {.timeout_s = timeout_s, .while_waiting = look_for_signals};
}

Session& PySession::open() const {
  if (!home_.is_here()) {
    throw std::logic_error(
        "this process was forked from one that trains, and cannot take part; start it with the "
        "method 'spawn', or let it only load data");
  }
  if (!is_open()) throw std::logic_error("this session has been closed");
  if (session_) return *session_;
  throw std::logic_error(
      "this rank has not joined the run yet, which happens when it wraps its module");
}

PySession::~PySession() {
  if (!home_.is_here()) {
    static_cast<void>(session_.release());
    static_cast<void>(new auto(std::move(transports_)));
    return;
  }
  if (nb::is_alive()) {
    const nb::gil_scoped_acquire held;
    listeners_.clear();
  }
  // A worker may need the lock for the last of what it sends.
  const WithoutLock free;
  transports_.clear();
  session_.reset();
}

const World& PySession::world() const {
  static const World kNone{.rank = -1, .size = 0, .node_size = 0};
  return joins() && !session_ && is_open() ? kNone : open().world();
}

void PySession::join() {
  if (joins() && !session_ && is_open()) session_ = join_();
}

Membership PySession::membership() const {
  const bool has_members = session_ && is_open() && communicator().is_elastic();
  return has_members ? communicator().elastic()->membership() : Membership();
}

void PySession::admit(bool admits) const {
  if (communicator().is_elastic()) communicator().elastic()->admit(admits);
}

void PySession::reconfigure(std::int64_t step) const {
  if (!communicator().is_elastic()) throw std::logic_error("the ranks of this run stay the same");
  communicator().elastic()->reconfigure(step);
}

void PySession::on_change(nb::callable callback) {
  (whole_ ? *whole_ : *this).listeners_.push_back(std::move(callback));
}

double PySession::goodput() const {
  if (whole_) return whole_->goodput();
  const std::chrono::duration<double> elapsed = Clock::now() - begin_;
  return std::clamp(1.0 - recovery_s_ / std::max(elapsed.count(), 1e-9), 0.0, 1.0);
}

Communicator& PySession::called() const {
  Communicator& communicator = this->communicator();
  if (!(whole_ ? *whole_ : *this).refuses_calls_) return communicator;
  throw PeerLost({.rank = world().rank, .label = {.what = "communication"}},
                 "a rank joins, allowed: after the next step");
}

DeviceTransport& PySession::transport(Device device, const TransportChoice& choice,
                                      const Logger& logger) {
  const std::string key = concat(to_string(device), " ", choice.exchange, " ", choice.share);
  const auto found = transports_.find(key);
  if (found != transports_.end()) return found->second;
  return transports_
      .try_emplace(
          key, device, choice,
          DeviceTransport::Setup{.host = communicator(), .logger = logger, .timeout_s = timeout_s_})
      .first->second;
}

std::shared_ptr<PySession> PySession::part(int color) {
  if (color < 0) throw ConfigError(concat("part: color is ", color, ", allowed: 0 or more"));
  if (is_elastic()) return part_of_places(color);
  auto members = std::make_unique<PartSession>(communicator().split(color), world().placement);
  const auto made = std::make_shared<PySession>(whole(), std::move(members));
  made->shares_memory_ = shares_memory_;
  whole()->parts_.emplace_back(made);
  return made;
}

std::shared_ptr<PySession> PySession::part_of_places(int color) {
  if (whole_ || place_ < 0) {
    throw ConfigError(
        "part: this session has survive=True, and a part does not know of ranks that are lost, "
        "allowed: a session without survive=True");
  }
  if (color != place_) {
    throw ConfigError(concat("part: color is ", color, ", and nodes may be lost, allowed: ", place_,
                             ", the place of this rank in its node"));
  }
  for (const auto& part : parts_) {
    // Others would have to follow the members in the same order.
    if (auto found = part.lock()) return found;
  }
  const auto own = whole();
  const auto enter = [own = own.get(), color]() -> std::unique_ptr<Session> {
    own->join();
    return std::make_unique<PlaceSession>(own->communicator(), color);
  };
  const auto made =
      joins() ? std::make_shared<PySession>(own, enter) : std::make_shared<PySession>(own, enter());
  made->shares_memory_ = shares_memory_;
  parts_.emplace_back(made);
  return made;
}

void PySession::lift_timeout() {
  if (whole_) return whole_->lift_timeout();
  if (is_open() && session_) session_->lift_timeout();
}

void PySession::tell_steps() const {
  if (whole_) return whole_->tell_steps();
  open().tell_steps(num_begun_);
}

void PySession::begin_step(std::int64_t num_steps) {
  if (whole_) return whole_->begin_step(num_steps);
  num_begun_ = is_elastic() ? num_steps + 1 : num_begun_ + 1;
  tell_steps();
}

void PySession::close_transports() {
  for (auto& [key, transport] : transports_) transport.close();
}

void PySession::close() {
  if (whole_ || !is_open()) return;
  for (const auto& part : parts_) {
    if (const auto found = part.lock()) found->close_transports();
  }
  close_transports();
  if (session_) {
    const bool is_first = session_->world().rank == 0;
    session_->close();
    if (is_first && at_end_) at_end_();
  }
  // After an error the session is open still, and abort() tells the others.
  is_open_ = false;
}

bool PySession::abort(int code, const std::string& reason) {
  if (whole_) return whole_->abort(code, reason);
  if (!is_open()) return false;
  is_open_ = false;
  return session_ && session_->abort(static_cast<ExitCode>(code), reason);
}

namespace {

using Free = nb::call_guard<nb::gil_scoped_release>;

/// The parts of a session, and its members where ranks may be lost.
void add_members(nb::class_<PySession>& type) {
  type.def_prop_ro("is_open", &PySession::is_open)
      .def("part", &PySession::part, "color"_a, Free(),
           "Return the session of the ranks that give the same color. Collective.\n\n"
           "Its ranks count from 0, in the order of the whole session, with which it ends and "
           "fails.")
      .def_prop_ro("whole", &PySession::whole,
                   "The session of which this one is a part; else this one.")
      .def_prop_ro("place", &PySession::place,
                   "This rank's place in its node, where nodes are members of the run; else -1.")
      .def_prop_ro("is_elastic", &PySession::is_elastic, "Whether ranks may be lost, and join.")
      .def_prop_ro("joins", &PySession::joins, "Whether this rank joins a run, or has joined one.")
      .def_prop_ro(
          "members", [](const PySession& session) { return session.membership().members; },
          "The number of each member of the run, by rank, where ranks may be lost.")
      .def_prop_ro(
          "epoch", [](const PySession& session) { return session.membership().epoch; },
          "How often the members have changed.")
      .def_prop_ro(
          "all_vote", [](const PySession& session) { return session.membership().all_vote; },
          "Whether all members count in the majority that goes on; False: ranks have just joined.")
      .def_prop_ro("goodput", &PySession::goodput,
                   "The share of the time in which no change of the members was under way.")
      .def(
          "on_change", &PySession::on_change, "callback"_a,
          nb::sig("def on_change(self, callback: collections.abc.Callable[[typing.Any], None]) -> "
                  "None"),
          "Have `callback` called with a MembershipChange each time that members are lost or join.")
      .def_prop_ro(
          "listeners", &PySession::listeners,
          nb::sig("def listeners(self) -> list[collections.abc.Callable[[typing.Any], None]]"))
      .def("add_recovery", &PySession::add_recovery, "seconds"_a)
      .def("join", &PySession::join, Free(), "Enter the run, on a rank that joins one.")
      .def("admit", &PySession::admit, "admits"_a, Free())
      .def(
          "check", [](const PySession& session) { session.communicator().check(); }, Free(),
          "Raise PeerLost if ranks are lost, or wait to join.")
      .def("refuse_calls", &PySession::refuse_calls, "refuses"_a,
           "Have collective calls raise PeerLost from now on, or make them again.")
      .def("reconfigure", &PySession::reconfigure, "step"_a, Free());
}

/// The place of this rank, and the beginning and the end of its work.
void add_place(nb::class_<PySession>& type) {
  type.def_prop_ro("rank", [](const PySession& session) { return session.world().rank; })
      .def_prop_ro("world_size", [](const PySession& session) { return session.world().size; })
      .def_prop_ro("node_size", [](const PySession& session) { return session.world().node_size; })
      .def_prop_ro("local_rank",
                   [](const PySession& session) { return session.world().placement.local_rank; })
      .def_prop_ro(
          "local_world_size",
          [](const PySession& session) { return session.world().placement.local_world_size; })
      .def_prop_rw("shares_memory", &PySession::shares_memory, &PySession::set_shares_memory)
      .def("begin_step", &PySession::begin_step, "num_steps"_a,
           "Tell ranks that will wait for this one that it begins a step.")
      .def("lift_timeout", &PySession::lift_timeout)
      .def("close", &PySession::close, Free(), "Leave the world. All ranks call it.")
      .def("abort", &PySession::abort, "code"_a, "reason"_a, Free());
}

/// The collective calls with values of Python.
void add_collectives(nb::class_<PySession>& type) {
  type.def(
          "barrier", [](const PySession& session) { session.called().barrier(); }, Free(),
          "Wait until all ranks have come here. Collective.")
      .def(
          "all_gather",
          [](const PySession& session, const std::string& text) {
            return session.called().all_gather(text);
          },
          "text"_a, Free(), "Return the texts of all ranks, by rank. Collective.")
      .def(
          "sum",
          [](const PySession& session, std::vector<double> numbers) {
            return sum_over_ranks(session.called(), std::move(numbers));
          },
          "numbers"_a, Free(),
          "Return sums over all ranks, with the same bits on all of them. Collective.")
      .def(
          "agree",
          [](const PySession& session, const std::string& what, const std::string& lines) {
            gossamer::agree(session.called(), what, lines);
          },
          "what"_a, "lines"_a, Free(),
          "Raise a ConfigError that names `what` if the ranks' lines differ. Collective.")
      .def(
          "agree_with_first",
          [](const PySession& session, const std::string& what, const std::string& lines) {
            gossamer::agree_with_first(session.called(), what, lines);
          },
          "what"_a, "lines"_a, Free(),
          "Raise a ConfigError that names `what` on ranks whose lines differ from rank 0's. "
          "Collective.")
      .def("broadcast", &broadcast, "memory"_a, "root"_a = 0, Free())
      .def("average", &average, "values"_a, Free());
}

}  // namespace

void add_session(nb::module_& module) {
  nb::class_<PySession> type(module, "Session");
  add_members(type);
  add_place(type);
  add_collectives(type);
  module.def("open_sessions", &open, "backend"_a = "", "num_ranks"_a = 0, "node_size"_a = 0,
             "timeout_s"_a = 300.0, "survives"_a = false, Free());
  module.def(
      "check_tensor_names",
      [](const std::vector<std::string>& trained, const std::vector<std::string>& others) {
        check_tensor_names(trained, others);
      },
      "trained"_a, "others"_a);
  module.def("backends", &backend_names);
  module.def("default_backend", [] { return std::string(default_backend()); });
}

}  // namespace gossamer::python
