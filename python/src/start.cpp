#include "comm/start/start.hpp"

#include "python/src/module.hpp"
#include "python/src/session.hpp"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/rendezvous/run_name.hpp"
#include "comm/start/secret.hpp"
#include "comm/start/store_socket.hpp"
#include "comm/start/store_use.hpp"
#include "comm/store.hpp"

namespace gossamer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// A store that Python implements: set(key, value), get(key, limit_s) and
/// compare_and_set(key, expected, desired). Keys are str, values are bytes. A store that answers
/// for several keys at once also has wait_for_all(keys, limit_s), get_all(keys) and
/// draw_ticket(key), as gossamer::Store's. Errors of Python count as an unreachable store, and as
/// one that may be back (StoreError) where its attribute `reopens` is true; those that end the
/// program pass.
class PyStore : public Store {
 public:
  explicit PyStore(nb::object store) : store_(std::move(store)) {}
  ~PyStore() override {
    const nb::gil_scoped_acquire gil;
    store_.reset();
  }

  void set(const std::string& key, std::string_view value) override {
    calling([&] { store_.attr("set")(key, bytes_of(value)); });
  }
  std::string get(const std::string& key, std::chrono::milliseconds limit) override {
    return calling([&] {
      const std::chrono::duration<double> limit_s = limit;
      return text_of(store_.attr("get")(key, limit_s.count()));
    });
  }
  std::string compare_and_set(const std::string& key, std::string_view expected,
                              std::string_view desired) override {
    return calling([&] {
      return text_of(store_.attr("compare_and_set")(key, bytes_of(expected), bytes_of(desired)));
    });
  }
  bool wait_for_all(const Keys& keys, std::chrono::milliseconds limit) override {
    if (!has("wait_for_all")) return Store::wait_for_all(keys, limit);
    return calling([&] {
      const std::chrono::duration<double> limit_s = limit;
      return nb::cast<bool>(store_.attr("wait_for_all")(keys.list(), limit_s.count()));
    });
  }
  std::vector<std::string> get_all(const Keys& keys) override {
    if (!has("get_all")) return Store::get_all(keys);
    return calling([&] {
      std::vector<std::string> values;
      for (const nb::handle value : store_.attr("get_all")(keys.list())) {
        values.push_back(text_of(nb::borrow(value)));
      }
      return values;
    });
  }
  std::int64_t draw_ticket(const std::string& key) override {
    if (!has("draw_ticket")) return 0;
    return calling([&] { return nb::cast<std::int64_t>(store_.attr("draw_ticket")(key)); });
  }

 private:
  static nb::bytes bytes_of(std::string_view text) { return nb::bytes(text.data(), text.size()); }
  static std::string text_of(const nb::object& value) {
    const auto bytes = nb::cast<nb::bytes>(value);
    return {bytes.c_str(), bytes.size()};
  }

  [[nodiscard]] bool has(const char* name) const {
    const nb::gil_scoped_acquire gil;
    return nb::hasattr(store_, name);
  }

  template <class Call>
  auto calling(const Call& call) const -> decltype(call()) {
    const nb::gil_scoped_acquire gil;
    try {
      return call();
    } catch (const nb::python_error& error) {
      // KeyboardInterrupt and SystemExit are no errors of the store.
      if (!error.matches(PyExc_Exception)) throw;
      const bool is_over = error.matches(PyExc_TimeoutError);
      if (!is_over && nb::hasattr(store_, "reopens") && nb::cast<bool>(store_.attr("reopens"))) {
        throw StoreError({.label = {.what = "start"}}, first_line_of(error));
      }
      throw CommError({.label = {.what = "start"}}, first_line_of(error));
    } catch (const std::bad_cast&) {
      throw CommError({.label = {.what = "start"}},
                      "the store's get() and compare_and_set() must return bytes");
    }
  }

  /// Errors of PyTorch have a stack below it.
  static std::string first_line_of(const nb::python_error& error) {
    const auto text = nb::cast<std::string>(nb::str(error.value()));
    const auto name = nb::cast<std::string>(nb::str(error.type().attr("__name__")));
    return text.empty() ? name : visible_line(text.substr(0, text.find('\n')));
  }

  nb::object store_;
};

struct Settings {
  std::string backend;
  double timeout_s = 0.0;
  std::string rendezvous;
  int world_size = 0;
  int rank = -1;
  std::string run_id;
  bool has_store = false;
  std::string secret;
  std::string security;
  std::string interface;
  int num_streams = 0;
  bool shares_memory = true;
  /// Where a run goes on that this process joins; empty: it joins none.
  std::string join;
  bool survives = false;
  std::int64_t min_ranks = 0;
  double silence_s = FaultOptions{}.silence_s;
  /// How often this process has met others before. A store may still have the records of then.
  int num_meetings = 0;
  /// Ranks that are one node; 0: the ranks of a host.
  int node_size = 0;
  /// Where the ranks of a node are members only together: the node's name, and the place in it.
  std::string cohort;
  int place = 0;
};

/// Seconds; a day.
constexpr double kLongestTimeout = 86'400.0;
/// Seconds, as in the program's fault.silence_s.
constexpr double kShortestSilence = 0.1;
constexpr double kLongestSilence = 3'600.0;

void check_secret_of(const Settings& settings) {
  if (settings.secret.empty()) return;
  try {
    check_secret(settings.secret);
  } catch (const ConfigError& error) {
    throw ConfigError("initialize_dist", "secret", error.what());
  }
  if (settings.security == "none") {
    throw ConfigError("initialize_dist", "secret",
                      "is given, and security=\"none\" uses none, allowed: one of the two");
  }
}

/// A start, and what happens when ranks are lost.
struct PlannedStart : Start {
  FaultOptions fault;
  int node_size = 0;
};

FaultOptions read_fault(const Settings& settings) {
  if (!settings.join.empty() && !settings.survives) {
    throw ConfigError("initialize_dist", "join",
                      "needs a run that takes ranks in, allowed: with survive=True");
  }
  if (settings.min_ranks < 0) {
    throw ConfigError("initialize_dist", "min_ranks",
                      concat("is ", settings.min_ranks, ", allowed: 0 or more"));
  }
  if (!(settings.silence_s >= kShortestSilence && settings.silence_s <= kLongestSilence)) {
    throw ConfigError("initialize_dist", "silence_s",
                      concat("is ", settings.silence_s, ", allowed: ", kShortestSilence, " to ",
                             kLongestSilence));
  }
  return {.survives = settings.survives,
          .min_ranks = settings.min_ranks,
          .silence_s = settings.silence_s,
          .trains = settings.cohort.empty()
                        ? std::string()
                        : concat("ranks in a node that shards: ", settings.node_size),
          .cohort = settings.cohort.empty() ? Cohort()
                                            : Cohort{.name = settings.cohort,
                                                     .place = settings.place,
                                                     .size = settings.node_size}};
}

PlannedStart plan(const Settings& settings) {
  const bool is_secured = settings.security == "secret";
  if (!is_secured && settings.security != "none") {
    throw ConfigError("initialize_dist", "security",
                      "is \"" + settings.security + "\", allowed: \"secret\", \"none\"");
  }
  if (!(settings.timeout_s > 0.0 && settings.timeout_s <= kLongestTimeout)) {
    throw ConfigError(
        "initialize_dist", "timeout_s",
        concat("is ", settings.timeout_s, ", allowed: more than 0, at most ", kLongestTimeout));
  }
  check_secret_of(settings);
  LaunchConfig launch{.backend = settings.backend,
                      .is_auto = settings.backend.empty(),
                      .is_secured = is_secured,
                      .options = {.timeout_s = settings.timeout_s, .fault = read_fault(settings)},
                      .shares_memory = settings.shares_memory};
  if (launch.is_auto) launch.backend = default_backend();
  launch.options.meeting.secret = settings.secret;
  launch.options.meeting.interface = settings.interface;
  launch.options.meeting.num_streams = settings.num_streams;
  PlannedStart start{plan_own_start({.rendezvous = settings.rendezvous,
                                     .world_size = settings.world_size,
                                     .rank = settings.rank,
                                     .run_id = settings.run_id,
                                     .join = settings.join,
                                     .has_store = settings.has_store},
                                    launch),
                     launch.options.fault, settings.node_size};
  start.fault.joins = start.joins;
  if (settings.survives && !start.is_rank) {
    throw ConfigError("initialize_dist", "survive",
                      "needs ranks that are processes joined by TCP, allowed: under python -m "
                      "gossamer.launch, or with a rendezvous or a store");
  }
  if (!start.is_rank && launch.backend == "mpi" && !settings.secret.empty()) {
    throw ConfigError("initialize_dist", "secret",
                      "is given, and MPI, which connects these ranks, does not encrypt, allowed: "
                      "the backend \"tcp\", or no secret");
  }
  if (settings.num_meetings > 0 && !start.meeting.has_attempts) {
    start.meeting.run += concat("-again-", settings.num_meetings);
  }
  if (start.is_rank) {
    const nb::gil_scoped_release free;
    complete(start, waiting_options(settings.timeout_s).while_waiting);
  }
  return start;
}

/// The socket, which the caller owns, and its port; nothing if another process serves the store.
std::optional<std::pair<int, int>> listen_for(const PlannedStart& start) {
  if (!start.may_serve) return std::nullopt;
  std::optional<StoreSocket> socket = listen_at(start.place);
  if (!socket) return std::nullopt;
  const int port = socket->place.port;
  return std::pair(socket->file.release(), port);
}

/// Meets the other ranks. Ranks that may be lost need the store as long as they run.
std::unique_ptr<Session> open_session(PlannedStart start, bool serves) {
  LaunchOptions options = waiting_options(start.meeting.timeout_s);
  start.meeting.logger =
      Logger(options.log_level, start.meeting.rank < 0 ? "" : concat("rank ", start.meeting.rank));
  Sessions sessions;
  try {
    name_attempt(start.meeting);
    options.meeting = start.meeting;
    options.fault = start.fault;
    options.node_size = start.node_size;
    sessions = open_sessions("tcp", options);
  } catch (const nb::python_error&) {
    throw;
  } catch (const std::exception&) {
    // Ranks that have come a little later wait a little longer, and then say who is missing.
    if (serves) wait_until_all_met(start.meeting, kFarewell);
    throw;
  }
  if (start.survives) return std::move(sessions.front());
  try {
    end_meeting(start, sessions.front()->world().rank, serves);
  } catch (const nb::python_error&) {
    sessions.front()->abort(ExitCode::kInterrupted, "interrupted");
    throw;
  }
  return std::move(sessions.front());
}

std::shared_ptr<PySession> open_met(PlannedStart& start, nb::object store, bool serves) {
  if (!store.is_none()) start.meeting.store = std::make_shared<PyStore>(std::move(store));
  const nb::gil_scoped_release free;
  const auto open = [start, serves] { return open_session(start, serves); };
  const double timeout_s = start.meeting.timeout_s;
  const auto session = start.joins ? std::make_shared<PySession>(open, timeout_s)
                                   : std::make_shared<PySession>(open(), timeout_s);
  if (!start.fault.cohort.name.empty()) session->set_place(start.fault.cohort.place);
  if (start.survives) {
    session->set_at_end([start] { remove_store(start); });
  }
  return session;
}

}  // namespace

void add_start(nb::module_& module) {
  nb::class_<Settings>(module, "StartSettings")
      .def(nb::init<>())
      .def_rw("backend", &Settings::backend)
      .def_rw("timeout_s", &Settings::timeout_s)
      .def_rw("rendezvous", &Settings::rendezvous)
      .def_rw("world_size", &Settings::world_size)
      .def_rw("rank", &Settings::rank)
      .def_rw("run_id", &Settings::run_id)
      .def_rw("has_store", &Settings::has_store)
      .def_rw("secret", &Settings::secret)
      .def_rw("security", &Settings::security)
      .def_rw("interface", &Settings::interface)
      .def_rw("num_streams", &Settings::num_streams)
      .def_rw("shares_memory", &Settings::shares_memory)
      .def_rw("join", &Settings::join)
      .def_rw("survives", &Settings::survives)
      .def_rw("min_ranks", &Settings::min_ranks)
      .def_rw("silence_s", &Settings::silence_s)
      .def_rw("num_meetings", &Settings::num_meetings)
      .def_rw("node_size", &Settings::node_size)
      .def_rw("cohort", &Settings::cohort)
      .def_rw("place", &Settings::place);
  nb::class_<PlannedStart>(module, "Start")
      .def_ro("is_rank", &PlannedStart::is_rank)
      .def_ro("survives", &PlannedStart::survives)
      .def_prop_ro(
          "needs_store",
          [](const PlannedStart& start) { return !start.is_alone() && !start.meeting.store; })
      .def_prop_ro("host", [](const PlannedStart& start) { return start.place.host; })
      .def_prop_ro("port", [](const PlannedStart& start) { return start.place.port; })
      .def_prop_ro("file",
                   [](const PlannedStart& start) {
                     return start.store == StoreKind::kFile ? store_file(start) : std::string();
                   })
      .def_prop_ro("place", [](const PlannedStart& start) { return to_string(start.place); })
      .def("listen", &listen_for)
      .def("open", &open_met, "store"_a.none(), "serves"_a);
  module.def("plan_start", &plan, "settings"_a);
  module.def(
      "limit_silence",
      [](int port, double seconds) {
        limit_silence(port, std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * seconds)));
      },
      "port"_a, "seconds"_a,
      "Have a store's calls fail when the host that serves `port` has been silent for so long.");
  module.def(
      "write_secret_file", [](const std::string& path) { write_secret_file(path, fresh_secret()); },
      "path"_a);
}

}  // namespace gossamer::python
