#include "comm/worker/progress_worker.hpp"

#include <algorithm>
#include <ctime>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <pthread.h>

#include "base/text.hpp"
#include "base/thread.hpp"

namespace gossamer {
namespace {

using Clock = std::chrono::steady_clock;

// A turn that took longer than this was not waiting but stopped (SIGSTOP, a suspended machine).
constexpr double kLongestTurn = 0.5;

/// Counts one more, until it goes, also where a wait throws.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

std::string text_of(const Progress& progress) {
  if (progress.total == 0) return "";
  return concat(", ", progress.moved, " of its ", progress.total, " bytes have moved");
}

}  // namespace

ProgressWorker::ProgressWorker(Config config)
    : config_(std::move(config)),
      bell_(config_.bell ? config_.bell : std::make_shared<Doorbell>()),
      pulse_(std::make_shared<WorkerPulse>(config_.rank, config_.timeout_s + config_.margin_s,
                                           config_.while_waiting)),
      warnings_{.patience_s = config_.patience_s},
      thread_(start_thread([this] { run(); })) {}

ProgressWorker::~ProgressWorker() { stop(); }

void ProgressWorker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  bell_->ring();
  if (!thread_.joinable()) return;
  thread_.join();
  fail_everything(std::make_exception_ptr(
      CommError({.rank = config_.rank, .label = {.what = "communication"}}, "it has ended")));
}

Request ProgressWorker::submit(std::unique_ptr<Operation> operation, OpContext context,
                               const void* channel) {
  auto state = std::make_shared<RequestState>(pulse_, context.label);
  context.trace.submitted();
  {
    const std::lock_guard lock(mutex_);
    if (failure_) {
      state->fail(failure_);
      return Request(std::move(state));
    }
    submitted_.push_back({.completion = Completion(state),
                          .context = std::move(context),
                          .channel = channel,
                          .operation = std::move(operation)});
    ++in_flight_;
  }
  bell_->ring();
  return Request(std::move(state));
}

void ProgressWorker::drain() {
  const Counted draining(num_draining_);
  std::unique_lock lock(mutex_);
  pulse_->wait(lock, drained_, {.what = "communication"}, [this] { return in_flight_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

void ProgressWorker::check() {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

double ProgressWorker::cpu_s() {
  clockid_t clock{};
  timespec used{};
  if (pthread_getcpuclockid(thread_.native_handle(), &clock) != 0 ||
      clock_gettime(clock, &used) != 0) {
    throw std::logic_error("ProgressWorker: the processor time of the worker cannot be read");
  }
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

void ProgressWorker::run() {
  auto last = Clock::now();
  bool failed = false;
  while (take_submitted()) {
    pulse_->beat();
    bool progressed = false;
    // After a failure nothing may touch the wire: what was being received could land in memory
    // whose owner has gone since.
    if (!failed) {
      try {
        const bool started = start_submitted();
        if (!active_.empty()) bell_->expect();
        progressed = test_active();
        if (config_.service) config_.service();
        const auto now = Clock::now();
        watch(std::min(std::chrono::duration<double>(now - last).count(), kLongestTurn),
              started || progressed);
        last = now;
      } catch (...) {
        failed = true;
        if (config_.failed) config_.failed(std::current_exception());
        fail_everything(std::current_exception());
      }
    }
    pause(progressed);
  }
}

bool ProgressWorker::take_submitted() {
  const std::lock_guard lock(mutex_);
  std::ranges::move(submitted_, std::back_inserter(starting_));
  submitted_.clear();
  return !stopping_;
}

template <class Step>
auto ProgressWorker::explained(const Active& entry, const Step& step) {
  const auto explain = [this, &entry](CommError::Context context) {
    context.rank = config_.rank;
    context.label = entry.context.label;
    if (context.peers.empty() && entry.operation) context.peers = entry.operation->waiting_for();
    return context;
  };
  try {
    return step();
  } catch (const PeerLost& error) {
    if (error.context().rank >= 0) throw;
    throw PeerLost(explain(error.context()), error.reason(), error.is_own());
  } catch (const CommError& error) {
    if (error.context().rank >= 0) throw;
    throw CommError(explain(error.context()), error.reason());
  } catch (const DeviceError& error) {
    throw DeviceError(CommError(explain({}), error.what()).what());
  }
}

bool ProgressWorker::start_submitted() {
  bool started = false;
  // Channels in which something waits, and those in which something has not begun to prepare.
  std::vector<const void*> held_up;
  std::vector<const void*> unprepared;
  const auto holds = [](const std::vector<const void*>& channels, const void* channel) {
    return std::ranges::find(channels, channel) != channels.end();
  };
  // Whatever waits stays in the queue: a step that throws must not take it along.
  for (auto next = starting_.begin(); next != starting_.end();) {
    const bool ready =
        !holds(unprepared, next->channel) && explained(*next, [&next] { return is_ready(*next); });
    if (ready && !holds(held_up, next->channel) && !is_held_up(next->channel)) {
      active_.push_back(std::move(*next));
      next = starting_.erase(next);
      explained(active_.back(), [this] { start(active_.back()); });
      started = true;
      continue;
    }
    if (next->channel != nullptr) {
      held_up.push_back(next->channel);
      if (!ready && !next->under_way) unprepared.push_back(next->channel);
    }
    ++next;
  }
  return started;
}

void ProgressWorker::start(Active& entry) {
  OpTrace& trace = entry.context.trace;
  if (trace.records()) trace.started(entry.context.label, entry.operation->waiting_for());
  wait_for(entry, Wait::kPeers);
  entry.operation->start();
}

bool ProgressWorker::is_holding(const Active& entry) {
  return entry.operation && !entry.operation->lets_next_start();
}

bool ProgressWorker::is_held_up(const void* channel) const {
  return channel != nullptr && std::ranges::any_of(active_, [channel](const Active& entry) {
           return entry.channel == channel && is_holding(entry);
         });
}

bool ProgressWorker::is_ready(Active& entry) {
  OpContext& context = entry.context;
  if (context.after) {
    if (!context.after->done()) return false;
    std::exchange(context.after, nullptr)->check();
  }
  wait_for(entry, Wait::kDevice);
  if (context.ready && !context.ready->done()) return false;
  context.ready.reset();
  if (const auto prepare = std::exchange(context.prepare, nullptr)) entry.under_way = prepare();
  if (entry.under_way && !entry.under_way->done()) return false;
  entry.under_way.reset();
  wait_for(entry, Wait::kNone);
  return true;
}

bool ProgressWorker::test(Active& entry) {
  if (entry.operation) {
    if (!entry.operation->test()) return false;
    entry.operation.reset();
    if (const auto finish = std::exchange(entry.context.finish, nullptr)) {
      entry.under_way = finish();
    }
    wait_for(entry, Wait::kDevice);
  }
  return !entry.under_way || entry.under_way->done();
}

bool ProgressWorker::test_active() {
  std::size_t ended = 0;
  bool lets_others_start = false;
  for (Active& entry : active_) {
    const bool held = is_holding(entry);
    if (!explained(entry, [&entry] { return test(entry); })) {
      if (held && !is_holding(entry)) lets_others_start = true;
      continue;
    }
    entry.context.trace.over(entry.context.label);
    ended_.insert({entry.context.label.what, entry.context.label.bucket});
    // Owners may free memory; they must be gone before anybody learns that the operation is over.
    entry.context = {.label = entry.context.label};
    entry.under_way.reset();
    entry.completion.complete();
    ++ended;
  }
  if (ended == 0) return lets_others_start;
  std::erase_if(active_, [](const Active& entry) { return entry.completion.ended(); });
  {
    const std::lock_guard lock(mutex_);
    in_flight_ -= ended;
  }
  drained_.notify_all();
  return true;
}

void ProgressWorker::wait_for(Active& entry, Wait wait) {
  if (entry.wait == wait) return;
  entry.wait = wait;
  entry.waited_s = 0.0;
  entry.left_s.reset();
}

bool ProgressWorker::is_awaited(const Active& entry) const {
  if (entry.wait != Wait::kPeers) return entry.wait == Wait::kDevice;
  return !entry.operation->is_tagged() || entry.completion.is_awaited() || num_draining_ > 0;
}

void ProgressWorker::watch(double elapsed_s, bool progressed) {
  if (progressed) warnings_.has_noticed = warnings_.has_asked = false;
  const double limit_s = std::min({warnings_.patience_s, config_.notice_s, config_.timeout_s});
  const auto count = [&](Active& entry) {
    if (!is_awaited(entry)) return;
    if (progressed && entry.wait == Wait::kDevice) entry.waited_s = 0.0;
    entry.waited_s += elapsed_s;
    if (is_late(entry, limit_s)) {
      entry.waited_s > config_.timeout_s ? give_up(entry) : notice(entry);
    }
    if (entry.wait == Wait::kPeers) check_attendance(entry, elapsed_s);
  };
  std::ranges::for_each(active_, count);
  std::ranges::for_each(starting_, count);
}

bool ProgressWorker::is_late(Active& entry, double limit_s) const {
  if (entry.wait == Wait::kPeers) {
    const Progress progress = entry.operation->progress();
    if (progress != std::exchange(entry.progress, progress)) entry.waited_s = 0.0;
  }
  if (entry.waited_s <= limit_s) return false;
  if (entry.wait == Wait::kPeers && config_.idle_s) {
    entry.waited_s = std::min(entry.waited_s, config_.idle_s(entry.operation->linked_with()));
  }
  return entry.waited_s > limit_s;
}

void ProgressWorker::notice(const Active& late) {
  // A kernel may take as long as it wants, and a rank that has done its work waits for the others.
  if (warnings_.has_noticed || !has_limit_ || late.wait != Wait::kPeers) return;
  if (config_.ask && !std::exchange(warnings_.has_asked, true)) config_.ask();
  const std::vector<int> peers = late.operation->waiting_for();
  // The first answer may be of a rank that waits, too.
  const bool awaits_answers = warnings_.has_asked && !config_.attendance->knows_all();
  std::string known = awaits_answers ? "" : behind(peers);
  const double waited_s =
      known.empty() ? config_.notice_s : std::min(warnings_.patience_s, config_.notice_s);
  if (late.waited_s <= waited_s) return;
  warnings_.has_noticed = true;
  warnings_.patience_s = std::min(2.0 * warnings_.patience_s, config_.notice_s);
  if (known.empty() && config_.hint) known = config_.hint(peers);
  const CommError text(
      {.rank = config_.rank, .peers = peers, .label = late.context.label},
      concat("no progress for ", shortest(waited_s), " s", text_of(late.progress),
             "; the limit is ", shortest(config_.timeout_s), " s (comm.timeout_s): ",
             known.empty() ? "perhaps a rank has left out a batch or a call that the others make, "
                             "or is busy (a long evaluation, a slow disk)"
                           : known));
  config_.logger.warning(text.what());
}

void ProgressWorker::check_attendance(Active& entry, double elapsed_s) const {
  if (!config_.attendance || !config_.attendance->any_has_left()) return;
  const std::vector<int> peers = entry.operation->waiting_for();
  if (!config_.attendance->all_have_left(peers)) return entry.left_s.reset();
  // The time before it was seen does not count: the last thing that they sent may have come since.
  entry.left_s = entry.left_s ? *entry.left_s + elapsed_s : 0.0;
  if (*entry.left_s <= config_.grace_s) return;
  const CommError::Context context{
      .rank = config_.rank, .peers = peers, .label = entry.context.label};
  const std::string text = concat(peers.size() == 1 ? "that rank has" : "these ranks have",
                                  " left the run; all ranks make the same calls");
  if (config_.survives) throw PeerLost(context, text, /*is_own=*/true);
  const std::string known = behind(peers);
  throw CommError(context, known.empty() ? text : concat(text, "; ", known));
}

void ProgressWorker::give_up(Active& late) {
  const std::string limit =
      concat("no progress for ", shortest(config_.timeout_s), " s (comm.timeout_s)");
  if (late.wait == Wait::kDevice) {
    const CommError error({.rank = config_.rank, .label = late.context.label},
                          concat(limit,
                                 ": the work on this rank's device before or after it is not "
                                 "done; a kernel there hangs, or another program keeps it busy"));
    throw DeviceError(error.what());
  }
  const std::string so_far = limit + text_of(late.progress);
  const std::vector<int> peers = late.operation->waiting_for();
  const std::string known = behind(peers);
  Diagnosis diagnosis{peers, known.empty() ? "it has not come to this point" : known,
                      /*are_alive=*/true};
  const OpLabel& label = late.context.label;
  if (has_limit_) has_stalled_ = !ended_.contains({label.what, label.bucket});
  if (config_.diagnose) diagnosis = config_.diagnose(diagnosis.peers, so_far);
  if (!has_limit_ && diagnosis.are_alive) {
    late.waited_s = 0.0;
    return;
  }
  const CommError::Context context{
      .rank = config_.rank, .peers = diagnosis.peers, .label = late.context.label};
  const std::string text = concat(so_far, ": ", diagnosis.text);
  // Who is lost, others than this worker must find out.
  if (config_.survives) throw PeerLost(context, text);
  throw CommError(context, text);
}

void ProgressWorker::fail_everything(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
  for (const Active& entry : active_) abandoned_.push_back(entry.context.owner);
  const auto end = [this](Active& entry) {
    // First the operation, which may still be touching its blocks; then the threads that wait for
    // it.
    entry.operation.reset();
    entry.context = {};
    // It may have been over before another one failed, in the same turn.
    if (!entry.completion.ended()) entry.completion.fail(failure_);
  };
  std::ranges::for_each(active_, end);
  std::ranges::for_each(starting_, end);
  std::ranges::for_each(submitted_, end);
  active_.clear();
  starting_.clear();
  submitted_.clear();
  in_flight_ = 0;
  drained_.notify_all();
}

bool ProgressWorker::must_ask() const {
  const auto asks_peers = [](const Active& entry) {
    return entry.wait != Wait::kPeers || !entry.operation->is_woken();
  };
  // What a channel holds up moves when an operation under way does.
  const auto asks_events = [](const Active& entry) {
    return entry.context.after || entry.wait == Wait::kDevice;
  };
  return std::ranges::any_of(active_, asks_peers) || std::ranges::any_of(starting_, asks_events);
}

void ProgressWorker::pause(bool progressed) {
  if (!progressed) bell_->sleep(must_ask() ? config_.short_pause : config_.long_pause);
}

}  // namespace gossamer
