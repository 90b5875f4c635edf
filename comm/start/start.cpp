#include "comm/start/start.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <unistd.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/start/etcd_address.hpp"
#include "comm/start/node_list.hpp"
#include "comm/start/secret.hpp"

namespace gossamer {
namespace {

constexpr int kMaxPort = 65'535;
constexpr std::string_view kCommandLine = "command line";
constexpr std::string_view kFileScheme = "file:";
constexpr std::string_view kEtcdScheme = "etcd:";
constexpr std::string_view kThisMachine = "127.0.0.1";

[[noreturn]] void refuse(std::string_view option, std::string_view what) {
  throw ConfigError(kCommandLine, option, what);
}

bool is_run_id(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '.' || letter == '_' || letter == '-';
  });
}

class Planner {
 public:
  Planner(StartOptions options, const LaunchConfig& launch, const Environment& environment,
          bool under_mpi)
      : options_(std::move(options)),
        launch_(launch),
        environment_(environment),
        under_mpi_(under_mpi),
        wants_tcp_(!launch.is_auto && launch.backend == "tcp") {}

  Start plan() {
    if (!options_.join.empty()) return with_secret(join());
    if (options_.num_processes > 0) {
      return text("GOSSAMER_PARENT").empty() ? with_secret(processes()) : with_secret(child());
    }
    const bool given = !options_.rendezvous.empty() || options_.has_store;
    if (!given && (options_.world_size > 0 || options_.rank >= 0 || !options_.run_id.empty())) {
      refuse(options_.world_size > 0 ? "--world-size"
             : options_.rank >= 0    ? "--rank"
                                     : "--run-id",
             "is given without --rendezvous, allowed: together with --rendezvous");
    }
    take_variables();
    if (options_.has_store) return with_secret(own_store());
    if (!options_.rendezvous.empty()) return with_secret(rendezvous());
    return with_secret(by_launcher());
  }

 private:
  [[nodiscard]] std::string text(const char* name) const {
    const char* const value = environment_(name);
    return value == nullptr ? "" : value;
  }
  [[nodiscard]] int number(const char* name, int min, int max) const {
    int value = 0;
    if (!parse_whole(text(name), value) || value < min || value > max) {
      throw ConfigError("environment", name,
                        concat("is ", visible_line(text(name)), ", allowed: ", min, " to ", max));
    }
    return value;
  }

  /// The variables in place of options that are not given.
  void take_variables() {
    is_variable_ = options_.rendezvous.empty();
    if (is_variable_) options_.rendezvous = text("GOSSAMER_RENDEZVOUS");
    if (options_.rendezvous.empty()) return;
    if (options_.world_size == 0 && !text("GOSSAMER_WORLD_SIZE").empty()) {
      options_.world_size = number("GOSSAMER_WORLD_SIZE", 1, kMaxRanks);
    }
    if (options_.rank < 0 && !text("GOSSAMER_RANK").empty()) {
      options_.rank = number("GOSSAMER_RANK", 0, kMaxRanks - 1);
    }
    if (options_.run_id.empty()) options_.run_id = text("GOSSAMER_RUN_ID");
  }

  void check_backend(std::string_view option) const {
    if (launch_.options.num_ranks > 0) {
      refuse("--ranks", concat("starts threads of one process, and ", option,
                               " has processes, allowed: one of the two"));
    }
    if (!launch_.is_auto && !wants_tcp_) {
      refuse(option, concat("is for the backend tcp, and the backend ", launch_.backend,
                            " is asked for, allowed: auto or tcp"));
    }
  }

  [[nodiscard]] Start processes() const {
    check_backend("--processes");
    if (!options_.rendezvous.empty() || options_.world_size > 0 || options_.rank >= 0 ||
        !options_.run_id.empty() || !text("GOSSAMER_RENDEZVOUS").empty()) {
      refuse("--processes",
             "starts all ranks of the run on this machine, allowed: without --rendezvous, "
             "--world-size, --rank, --run-id and GOSSAMER_RENDEZVOUS");
    }
    if (under_mpi_ || (is_slurm_task() && number("SLURM_STEP_NUM_TASKS", 1, kMaxRanks) > 1) ||
        (has_addresses() && number("WORLD_SIZE", 1, kMaxRanks) > 1)) {
      refuse("--processes",
             concat("is for a program that no launcher has started, and each of the launcher's "
                    "processes would start ",
                    options_.num_processes, " ranks, allowed: without mpirun, srun and torchrun"));
    }
    Start start;
    start.num_processes = options_.num_processes;
    start.place = {std::string(kThisMachine), 0};
    start.meeting.size = options_.num_processes;
    start.meeting.run = concat("processes-", getpid());
    return start;
  }

  /// A process that a parent with --processes has started.
  [[nodiscard]] Start child() const {
    Start start;
    start.is_rank = true;
    start.parent = number("GOSSAMER_PARENT", 1, kMaxNumber);
    start.place = read_place(text("GOSSAMER_RENDEZVOUS"), "environment", "GOSSAMER_RENDEZVOUS");
    start.meeting.size = number("GOSSAMER_WORLD_SIZE", 1, kMaxRanks);
    start.meeting.rank = number("GOSSAMER_RANK", 0, start.meeting.size - 1);
    start.meeting.run = text("GOSSAMER_RUN_ID");
    return start;
  }

  [[nodiscard]] Start rendezvous() const {
    check_backend("--rendezvous");
    if (options_.rendezvous == "slurm") return asked_for_slurm();
    if (under_mpi_ && !is_slurm_task()) {
      refuse("--rendezvous",
             "is for processes that MPI does not connect, and mpirun or mpiexec has started this "
             "one, allowed: either without the other");
    }
    Start start = as_given();
    start.may_serve =
        take_place(options_.rendezvous, ", file:FOLDER, etcd:http://HOST:PORT, or slurm",
                   is_variable_ ? Origin{"environment", "GOSSAMER_RENDEZVOUS"}
                                : Origin{kCommandLine, "--rendezvous"},
                   start);
    return start;
  }

  /// The place that a text comes from.
  struct Origin {
    std::string_view where;
    std::string_view key;
  };

  /// Takes the place of the store from a text. `others`: as in read_place(). Returns true for one
  /// that a process serves.
  static bool take_place(const std::string& text, std::string_view others, const Origin& origin,
                         Start& start) {
    if (text.starts_with(kEtcdScheme)) {
      start.store = StoreKind::kEtcd;
      start.etcd = read_etcd_addresses(text.substr(kEtcdScheme.size()), origin.where, origin.key);
      return false;
    }
    const bool has_scheme = text.starts_with(kFileScheme);
    if (has_scheme || text.find('/') != std::string::npos) {
      start.store = StoreKind::kFile;
      start.folder = text.substr(has_scheme ? kFileScheme.size() : 0);
      if (start.folder.empty()) start.folder = ".";
      return false;
    }
    start.place = read_place(text, origin.where, origin.key, others);
    if (!is_loopback(start.place.host)) start.meeting.store_host = start.place.host;
    return true;
  }

  /// A process that joins a run.
  [[nodiscard]] Start join() {
    check_backend("--join");
    if (options_.num_processes > 0 || !options_.rendezvous.empty() || options_.world_size > 0 ||
        options_.rank >= 0) {
      refuse("--join",
             "adds one rank to a run that goes on, allowed: without --processes, --rendezvous, "
             "--world-size and --rank");
    }
    if (!launch_.options.fault.survives) {
      refuse("--join", "needs a run that takes ranks in, allowed: with fault.mode: survive");
    }
    if (options_.run_id.empty()) options_.run_id = text("GOSSAMER_RUN_ID");
    check_run_id();
    Start start;
    start.is_rank = true;
    start.joins = true;
    // There are others. The run knows how many.
    start.meeting.size = 2;
    if (!options_.run_id.empty()) start.meeting.run = options_.run_id;
    take_place(options_.join, ", file:FOLDER, or etcd:http://HOST:PORT", {kCommandLine, "--join"},
               start);
    return start;
  }

  void check_run_id() const {
    if (is_run_id(options_.run_id)) return;
    refuse("--run-id", concat("is ", visible_line(options_.run_id),
                              ", allowed: letters, digits, points, - and _"));
  }

  /// Size, rank and run as the options say.
  [[nodiscard]] Start as_given() const {
    if (options_.world_size == 0) {
      refuse("--world-size", "is missing, allowed: the number of ranks on all hosts together");
    }
    if (options_.rank >= options_.world_size) {
      refuse("--rank", concat("is ", options_.rank, ", allowed: 0 to ", options_.world_size - 1));
    }
    check_run_id();
    Start start;
    start.is_rank = true;
    start.meeting.size = options_.world_size;
    start.meeting.rank = options_.rank;
    if (!options_.run_id.empty()) start.meeting.run = options_.run_id;
    return start;
  }

  [[nodiscard]] Start own_store() const {
    check_backend("a store");
    Start start = as_given();
    start.store = StoreKind::kOwn;
    return start;
  }

  [[nodiscard]] Start asked_for_slurm() const {
    if (options_.world_size > 0 || options_.rank >= 0 || !options_.run_id.empty()) {
      refuse("--rendezvous",
             "slurm takes world size and ranks from srun, allowed: without --world-size, --rank "
             "and --run-id");
    }
    if (!is_slurm_task()) {
      refuse("--rendezvous",
             "is slurm, and this process is no task of srun, allowed: srun -n N gossamer ... "
             "--rendezvous slurm");
    }
    return slurm();
  }

  /// The start where no option says how.
  [[nodiscard]] Start by_launcher() const {
    if (!wants_tcp_ && !launch_.is_auto) return {};
    if (launch_.options.num_ranks > 0) {
      if (wants_tcp_) check_backend("the backend tcp");
      return {};
    }
    const bool is_torchrun = !text("TORCHELASTIC_RUN_ID").empty() && !is_open_mpi();
    if (has_addresses() && (is_torchrun || wants_tcp_ || !under_mpi_)) return torchrun();
    if (!wants_tcp_) return {};
    if (is_slurm_task()) return slurm();
    throw ConfigError(
        "The backend tcp needs to know where the ranks meet, allowed: --processes N; --rendezvous "
        "HOST:PORT, file:FOLDER or etcd:http://HOST:PORT, with --world-size N; torchrun; or srun");
  }

  [[nodiscard]] bool is_open_mpi() const { return !text("OMPI_COMM_WORLD_RANK").empty(); }

  /// The variables of torchrun, which other launchers set as well.
  [[nodiscard]] bool has_addresses() const {
    return std::ranges::all_of(
        std::initializer_list<const char*>{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
        [this](const char* name) { return !text(name).empty(); });
  }

  [[nodiscard]] Start torchrun() const {
    Start start;
    start.is_rank = true;
    start.place = {text("MASTER_ADDR"), number("MASTER_PORT", 1, kMaxPort)};
    start.meeting.size = number("WORLD_SIZE", 1, kMaxRanks);
    start.meeting.rank = number("RANK", 0, start.meeting.size - 1);
    // An attempt after a failure, or with other nodes, must not find the records of the earlier
    // one. The count of restarts (TORCHELASTIC_RESTART_COUNT) is that of each node.
    start.meeting.run = concat("torchrun-", text("TORCHELASTIC_RUN_ID"));
    start.meeting.has_attempts = true;
    start.may_serve = text("TORCHELASTIC_USE_AGENT_STORE") != "True";
    start.is_one_machine = text("LOCAL_WORLD_SIZE") == text("WORLD_SIZE");
    if (!start.is_one_machine && !is_loopback(start.place.host)) {
      start.meeting.store_host = start.place.host;
    }
    return start;
  }

  /// True if srun has started this process, and not a shell (srun --pty) or mpirun in it.
  [[nodiscard]] bool is_slurm_task() const {
    return !text("SLURM_STEP_ID").empty() && !text("SLURM_PROCID").empty() &&
           !text("SLURM_STEP_NUM_TASKS").empty() && text("SLURM_PTY_PORT").empty() &&
           !is_open_mpi();
  }

  [[nodiscard]] Start slurm() const {
    Start start;
    start.is_rank = true;
    start.meeting.size = number("SLURM_STEP_NUM_TASKS", 1, kMaxRanks);
    start.meeting.rank = number("SLURM_PROCID", 0, start.meeting.size - 1);
    const auto job = static_cast<std::int64_t>(number("SLURM_JOB_ID", 0, kMaxNumber));
    const std::string step = text("SLURM_STEP_ID");
    // A job that goes back into the queue keeps its number.
    start.meeting.run = concat("slurm-", job, "-", step, "-", text("SLURM_RESTART_COUNT"));
    int step_number = 0;
    parse_whole(step, step_number);
    // Steps of a job have ports beside each other, so jobs of neighbouring numbers lie apart.
    constexpr std::int64_t kPortsOfJob = 16;
    start.place.port =
        kFirstSlurmPort + static_cast<int>((job * kPortsOfJob + step_number) % kNumSlurmPorts);
    start.may_serve = true;
    if (text("SLURM_STEP_NUM_NODES") == "1") {
      start.place.host = kThisMachine;
      return start;
    }
    start.place.host = first_node(text("SLURM_STEP_NODELIST"));
    start.meeting.store_host = start.place.host;
    return start;
  }

  [[nodiscard]] Start with_secret(Start start) const {
    if (!start.is_rank && start.num_processes == 0) return start;
    start.survives = launch_.options.fault.survives;
    start.meeting.timeout_s = launch_.options.timeout_s;
    start.meeting.interface = launch_.options.meeting.interface;
    start.meeting.num_streams = launch_.options.meeting.num_streams;
    start.meeting.is_open = !launch_.is_secured;
    start.meeting.reads_memory = launch_.shares_memory;
    if (start.meeting.is_open) return start;
    start.meeting.secret = secret();
    if (!start.meeting.secret.empty()) return start;
    if (start.num_processes > 0) {
      start.meeting.secret = fresh_secret();
      return start;
    }
    const bool is_private = start.is_one_machine ||
                            (start.store == StoreKind::kServed && is_loopback(start.place.host));
    if (is_private || start.is_alone()) return start;
    throw ConfigError(
        "environment", "GOSSAMER_SECRET",
        concat("is not set, and others may reach ", name_of_store(start),
               ", where the ranks meet; type gossamer secret -o FILE (without the program: python "
               "-m gossamer --secret FILE), copy FILE to all hosts, and set GOSSAMER_SECRET_FILE "
               "to its path there (or the key comm.secret_file). In a network that you trust, "
               "comm.security=none does without, or --security none for a command without a "
               "configuration, or security=\"none\" in Python"));
  }

  static std::string name_of_store(const Start& start) {
    switch (start.store) {
      case StoreKind::kServed:
        return to_string(start.place);
      case StoreKind::kFile:
        return start.folder;
      case StoreKind::kEtcd:
        return "etcd";
      case StoreKind::kOwn:
        break;
    }
    return "the store";
  }

  /// Empty: none is given.
  [[nodiscard]] std::string secret() const {
    if (!launch_.options.meeting.secret.empty()) return launch_.options.meeting.secret;
    const std::string given = text("GOSSAMER_SECRET");
    const std::string path = text("GOSSAMER_SECRET_FILE");
    const char* const name = given.empty() ? "GOSSAMER_SECRET_FILE" : "GOSSAMER_SECRET";
    try {
      if (given.empty()) return path.empty() ? "" : read_secret_file(path);
      check_secret(given);
      return given;
    } catch (const ConfigError& error) {
      throw ConfigError("environment", name, error.what());
    }
  }

  static constexpr int kMaxRanks = 1'000'000;
  static constexpr int kMaxNumber = 2'000'000'000;

  StartOptions options_;
  /// The rendezvous is that of the environment.
  bool is_variable_ = false;
  const LaunchConfig& launch_;
  const Environment& environment_;
  bool under_mpi_;
  /// The configuration says so.
  bool wants_tcp_;
};

}  // namespace

StorePlace read_place(const std::string& text, std::string_view where, std::string_view key,
                      std::string_view others) {
  const std::size_t colon = text.rfind(':');
  StorePlace place{text.substr(0, colon), 0};
  if (place.host.starts_with('[') && place.host.ends_with(']')) {
    place.host = place.host.substr(1, place.host.size() - 2);
  } else if (place.host.find(':') != std::string::npos) {
    place.host.clear();
  }
  if (colon == std::string::npos || place.host.empty() ||
      !parse_whole(std::string_view(text).substr(colon + 1), place.port) || place.port < 1 ||
      place.port > kMaxPort) {
    throw ConfigError(where, key,
                      concat("is ", visible_line(text),
                             ", allowed: HOST:PORT with a port from 1 to 65535, [ADDRESS]:PORT for "
                             "IPv6",
                             others));
  }
  return place;
}

Start plan_start(const StartOptions& options, const LaunchConfig& launch,
                 const Environment& environment, bool under_mpi) {
  return Planner(options, launch, environment, under_mpi).plan();
}

Start plan_own_start(const StartOptions& options, const LaunchConfig& launch,
                     const std::optional<ConfigError>& fault) {
  try {
    Start start = plan_start(
        options, launch, [](const char* name) -> const char* { return std::getenv(name); },
        under_mpi_launcher());
    if (start.num_processes == 0 || !fault) return start;
  } catch (const ConfigError&) {
    if (!fault) throw;
  }
  throw ConfigError(*fault);
}

Variables variables_of_rank(const Start& start, int rank, const StorePlace& place, int parent) {
  Variables variables = {{"GOSSAMER_PARENT", std::to_string(parent)},
                         {"GOSSAMER_RENDEZVOUS", to_string(place)},
                         {"GOSSAMER_WORLD_SIZE", std::to_string(start.num_processes)},
                         {"GOSSAMER_RANK", std::to_string(rank)},
                         {"GOSSAMER_RUN_ID", start.meeting.run}};
  if (!start.meeting.secret.empty()) {
    variables.emplace_back("GOSSAMER_SECRET", start.meeting.secret);
  }
  return variables;
}

}  // namespace gossamer
