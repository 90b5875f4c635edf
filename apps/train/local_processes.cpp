#include "apps/train/local_processes.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include <pthread.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "core/torch/c10d_store.hpp"

namespace gossamer::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(10);
// Ranks that have been told to stop have agreed on their end, and nothing is wrong with them.
constexpr auto kPatienceAfterStop = std::chrono::seconds(60);

/// Texts as the system takes them: pointers, and a null behind them.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> arguments_of_this_process() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

/// The environment of this process, with `variables` in place of those of the same names.
std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> lines;
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string_view text = *line;
    const std::string_view name = text.substr(0, text.find('='));
    const bool is_replaced =
        std::ranges::any_of(variables, [name](const auto& one) { return one.first == name; });
    if (!is_replaced) lines.emplace_back(text);
  }
  for (const auto& [name, value] : variables) lines.push_back(concat(name, "=", value));
  return lines;
}

/// Attributes of a process: the signals that it blocks.
class Attributes {
 public:
  explicit Attributes(const sigset_t& blocked) {
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes_, &blocked);
  }
  ~Attributes() { posix_spawnattr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  [[nodiscard]] const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_{};
};

/// Ends this process at once if the parent has ended already.
void end_with_parent(int parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(static_cast<int>(ExitCode::kPeerLost));
}

}  // namespace

LocalProcesses::LocalProcesses(int count, const std::function<Variables(int rank)>& variables,
                               bool survives)
    : survives_(survives) {
  sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD}) {
    sigaddset(&signals_, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals_, &blocked_before_);
  // The parent of this process may ignore SIGCHLD, and exit codes would then be lost.
  signal(SIGCHLD, SIG_DFL);
  try {
    for (int rank = 0; rank < count; ++rank) start(rank, variables(rank));
  } catch (...) {
    clear_away();
    throw;
  }
}

LocalProcesses::~LocalProcesses() { clear_away(); }

void LocalProcesses::clear_away() {
  pass_on(SIGKILL);
  for (const Process& process : running_) waitpid(process.pid, nullptr, 0);
  pthread_sigmask(SIG_SETMASK, &blocked_before_, nullptr);
}

void LocalProcesses::start(int rank, const Variables& variables) {
  const Attributes attributes(blocked_before_);
  std::vector<std::string> arguments = arguments_of_this_process();
  std::vector<std::string> environment = environment_with(variables);
  // By its own name, which ps shows.
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), nullptr, attributes.get(),
                                pointers_to(arguments).data(), pointers_to(environment).data());
  if (error != 0) {
    throw std::system_error(error, std::generic_category(),
                            concat("the process of rank ", rank, " cannot be started"));
  }
  running_.push_back({rank, pid});
}

int LocalProcesses::wait() {
  constexpr timespec kTurn{.tv_sec = 0, .tv_nsec = 100'000'000};
  while (!running_.empty()) {
    const int signal = sigtimedwait(&signals_, nullptr, &kTurn);
    if (signal > 0 && signal != SIGCHLD) {
      if (stopped_by_ == 0) stopped_by_ = signal;
      pass_on(signal);
    }
    collect();
    // The signal has come to a rank that does not listen yet, and would have ended the run of one
    // that does.
    if (stopped_by_ != 0 && passed_on_ == 0) pass_on(stopped_by_);
    const bool must_end =
        !survives_ && first_failure_.code != 0 && Clock::now() >= end_of_patience_;
    if (must_end && passed_on_ != SIGKILL && !running_.empty()) kill_late();
  }
  return survives_ && is_done_ ? 0 : first_failure_.code;
}

std::string LocalProcesses::end_before_begin() const {
  if (stopped_by_ == 0 || !first_failure_.is_by_signal) return "";
  return concat("stopped by signal ", stopped_by_, " (", strsignal(stopped_by_),
                ") before the ranks began to train");
}

void LocalProcesses::kill_late() {
  std::vector<int> late;
  for (const Process& process : running_) late.push_back(process.rank);
  const std::string what = stopped_by_ == 0
                               ? concat("rank ", first_failure_.rank, " has failed")
                               : concat("rank ", first_failure_.rank, " has ended after signal ",
                                        stopped_by_, " (", strsignal(stopped_by_), ")");
  Logger(LogLevel::kError, "")
      .error(concat(what, ", and ", patience().count(),
                    " s later these ranks have not ended; they are killed: ", join(late, ", ")));
  pass_on(SIGKILL);
}

std::chrono::seconds LocalProcesses::patience() const {
  return stopped_by_ == 0 ? kPatience : kPatienceAfterStop;
}

void LocalProcesses::pass_on(int signal) {
  passed_on_ = signal;
  for (const Process& process : running_) kill(process.pid, signal);
}

void LocalProcesses::collect() {
  std::vector<Failure> failures;
  std::erase_if(running_, [&](const Process& process) {
    int status = 0;
    if (waitpid(process.pid, &status, WNOHANG) != process.pid) return false;
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const int code = signal > 0 ? 128 + signal : WEXITSTATUS(status);
    if (code != 0) failures.push_back({process.rank, code, signal > 0});
    is_done_ = is_done_ || code == 0;
    const bool asks_to_stop = signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
    if (asks_to_stop && stopped_by_ == 0) stopped_by_ = signal;
    if (signal > 0 && signal != passed_on_) {
      // A process that is killed has said nothing itself.
      Logger(LogLevel::kError, "")
          .error(concat("signal ", signal, " (", strsignal(signal), ") has ended rank ",
                        process.rank));
    }
    return true;
  });
  if (failures.empty() || first_failure_.code != 0) return;
  // Several may have ended since the last look. One that has lost a peer was not the first.
  const auto is_cause = [](const Failure& failure) {
    return failure.code != static_cast<int>(ExitCode::kPeerLost);
  };
  const auto cause = std::ranges::find_if(failures, is_cause);
  first_failure_ = cause == failures.end() ? failures.front() : *cause;
  end_of_patience_ = Clock::now() + patience();
}

std::optional<int> run_processes(const Start& start, bool listens) {
  if (start.parent > 0) end_with_parent(start.parent);
  if (start.num_processes == 0) return std::nullopt;
  // The clients of a socket that listens wait for the store, which has threads.
  std::optional<StoreSocket> socket = listen_at(start.place);
  if (!socket) throw std::logic_error("the loopback address has no free port");
  const StorePlace place = socket->place;
  LocalProcesses processes(
      start.num_processes,
      [&](int rank) { return variables_of_rank(start, rank, place, getpid()); }, start.survives);
  const std::shared_ptr<Store> store = serve_tcp_store(std::move(*socket));
  const int code = processes.wait();
  const std::string end = processes.end_before_begin();
  if (listens && code != 0 && !end.empty()) Logger(LogLevel::kError, "").error(end);
  return code;
}

}  // namespace gossamer::apps
