#include "comm/tcp/transport.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/text.hpp"

namespace gossamer::tcp {
namespace {

using Clock = std::chrono::steady_clock;

/// Handlers that run in one turn of the worker.
constexpr int kMaxHandlers = 256;
constexpr auto kGreetingLimit = std::chrono::seconds(10);
constexpr auto kConnectPause = std::chrono::milliseconds(200);
/// Between two looks at the clock.
constexpr double kTick = 0.01;
/// A longer gap between two turns means that this process was stopped.
constexpr double kLongestTick = 0.5;
/// How long a diagnosis waits for news that explains it.
constexpr auto kNewsPatience = std::chrono::milliseconds(700);
constexpr auto kPartingPatience = std::chrono::seconds(2);
constexpr auto kLastWordsPatience = std::chrono::milliseconds(500);

/// The codes of base/error.hpp that a rank can end with.
bool is_failure(ExitCode code) {
  switch (code) {
    case ExitCode::kCheckFailed:
    case ExitCode::kConfig:
    case ExitCode::kData:
    case ExitCode::kCheckpoint:
    case ExitCode::kInternal:
    case ExitCode::kPeerLost:
    case ExitCode::kPreempted:
    case ExitCode::kNonFinite:
    case ExitCode::kInterrupted:
    case ExitCode::kTerminated:
      return true;
    case ExitCode::kDone:
      break;
  }
  return false;
}

/// Shorter than the time limit of an operation, so that a new connection can still carry it.
double unacknowledged_s(double timeout_s) { return std::clamp(timeout_s / 4.0, 1.0, 30.0); }

double beat_s(double timeout_s) { return std::clamp(timeout_s / 8.0, 0.005, 2.0); }

}  // namespace

Transport::Transport(std::shared_ptr<SocketBell> bell, std::unique_ptr<Listener> listener,
                     Config config)
    : bell_(std::move(bell)),
      listener_(std::move(listener)),
      config_(std::move(config)),
      links_(config_.peers.size()) {
  if (!listener_) return;
  listener_->start(config_.tls.get(), config_.logger,
                   {.judge = [this](const Frame& theirs) { return judge(theirs); },
                    .welcome = [this](ByteStream stream,
                                      const Frame& theirs) { adopt(std::move(stream), theirs); }});
}

Transport::~Transport() { close(); }

Link::Hooks Transport::hooks_of(int peer) {
  return {
      .moved = [this] { bell_->ring(); },
      .news = [this, peer](const Frame& frame,
                           const std::string& text) { hear(peer, frame, text); },
      .stepped =
          [this, peer](std::int64_t num_steps) { config_.attendance->tell_steps(peer, num_steps); },
      .lost = [this, peer](const std::string& reason) { lose(peer, reason); },
      .connect = [this, peer](int index) { connect(peer, index); },
      .broken = [this, peer](int index) { connect_again(peer, index); }};
}

Link& Transport::link(int peer) {
  auto& link = links_.at(static_cast<std::size_t>(peer));
  if (link) return *link;
  link = std::make_unique<Link>(
      Link::Config{.epoch = config_.epoch,
                   .num_streams = config_.num_streams,
                   .connects = config_.rank > peer,
                   .memory = config_.peers[static_cast<std::size_t>(peer)].memory,
                   .unacknowledged_s = unacknowledged_s(config_.timeout_s)},
      hooks_of(peer));
  return *link;
}

void Transport::connect(int peer, int index) {
  auto socket = std::make_shared<asio::ip::tcp::socket>(bell_->io());
  socket->async_connect(config_.peers[static_cast<std::size_t>(peer)].endpoint,
                        [this, peer, index, socket](const asio::error_code& error) {
                          if (is_leaving_) return;
                          try {
                            if (!error) return introduce(peer, index, std::move(*socket));
                            refusals_[peer] = error.message();
                          } catch (const std::exception& failure) {
                            refusals_[peer] = failure.what();
                          }
                          connect_again(peer, index);
                        });
}

void Transport::connect_again(int peer, int index) {
  if (is_leaving_ || failure_) return;
  auto timer = std::make_shared<asio::steady_timer>(bell_->io(), kConnectPause);
  timer->async_wait([this, peer, index, timer](const asio::error_code& error) {
    if (error || is_leaving_ || failure_) return;
    // Where a peer ends, its data connections may be the first to tell.
    const auto& link = links_.at(static_cast<std::size_t>(peer));
    if (link && (link->has_left() || (link->is_open() && link->has_ended()))) return;
    connect(peer, index);
  });
}

void Transport::introduce(int peer, int index, asio::ip::tcp::socket socket) {
  const auto judge = [peer, index](const Frame& theirs) {
    if (theirs.key.number != static_cast<std::uint64_t>(peer) ||
        theirs.key.part != static_cast<std::uint32_t>(index)) {
      throw FrameError(concat("rank ", theirs.key.number, " answers in place of rank ", peer));
    }
    return Frame{.kind = FrameKind::kHello};
  };
  const auto greeting = std::make_shared<Greeting>(
      bell_->io(), ByteStream(std::move(socket), config_.tls.get(), Role::kConnects),
      Role::kConnects, hello(peer, index, nullptr),
      Greeting::Hooks{.judge = judge,
                      .welcome = [this](ByteStream stream,
                                        const Frame& theirs) { adopt(std::move(stream), theirs); },
                      .refuse =
                          [this, peer, index](const std::string& reason) {
                            refusals_[peer] = reason;
                            connect_again(peer, index);
                          }});
  greeting->start(kGreetingLimit);
}

Frame Transport::hello(int peer, int index, const Frame* theirs) {
  Frame ours{.kind = FrameKind::kHello,
             .reads_memory = link(peer).messages().reads_memory(),
             .epoch = config_.epoch,
             .key = {.number = static_cast<std::uint64_t>(config_.rank),
                     .part = static_cast<std::uint32_t>(index)},
             .address = config_.run};
  link(peer).meet(index, theirs, ours);
  return ours;
}

Frame Transport::judge(const Frame& theirs) {
  if (is_leaving_) throw FrameError("this rank leaves");
  if (theirs.address != config_.run) throw FrameError("it belongs to another run");
  if (theirs.epoch != config_.epoch) {
    throw FrameError(
        concat("it comes from epoch ", theirs.epoch, ", and this one is ", config_.epoch));
  }
  const std::uint64_t peer = theirs.key.number;
  if (peer >= config_.peers.size() || peer <= static_cast<std::uint64_t>(config_.rank)) {
    throw FrameError(concat("rank ", peer, " does not connect to rank ", config_.rank));
  }
  if (theirs.key.part > static_cast<std::uint32_t>(StreamCount::kMax)) {
    throw FrameError(concat("there is no connection ", theirs.key.part));
  }
  return hello(static_cast<int>(peer), static_cast<int>(theirs.key.part), &theirs);
}

void Transport::adopt(ByteStream stream, const Frame& hello) {
  const auto peer = static_cast<int>(hello.key.number);
  Link& their_link = link(peer);
  // Who comes late hears the failures, too.
  if (hello.key.part == 0 && !their_link.is_open()) {
    for (const News& news : failures_) send_news(their_link, news);
    if (is_leaving_) their_link.end_writing();
  }
  const std::string broken = their_link.broken();
  their_link.adopt(std::move(stream), hello);
  if (hello.key.part > 0 && !broken.empty()) {
    config_.logger.info(concat("a data connection with rank ", peer, " had broken (",
                               visible(broken), "); a new one goes on where it has stopped"));
  }
}

void Transport::service() {
  for (int i = 0; i < kMaxHandlers && bell_->io().poll_one() > 0; ++i) {
  }
  count_time();
  bool has_moved = false;
  for (const auto& link : links_) {
    if (link && link->fetch()) has_moved = true;
  }
  if (has_moved) bell_->ring();
  heed_members();
  if (failure_) std::rethrow_exception(failure_);
}

void Transport::heed_members() {
  if (failure_ || !config_.is_disturbed || !config_.is_disturbed()) return;
  failure_ = std::make_exception_ptr(PeerLost(
      {.rank = config_.rank, .label = {.what = "communication"}}, "the members of the run change"));
}

void Transport::count_time() {
  const auto now = Clock::now();
  const double elapsed_s = std::chrono::duration<double>(now - last_tick_).count();
  if (elapsed_s < kTick) return;
  last_tick_ = now;
  for (const auto& link : links_) {
    if (!link) continue;
    link->tick(std::min(elapsed_s, kLongestTick), beat_s(config_.timeout_s), config_.timeout_s,
               config_.attendance->num_steps(config_.rank));
  }
}

void Transport::hear(int from, const Frame& frame, const std::string& text) {
  if (frame.key.use > static_cast<std::uint8_t>(NewsKind::kLeaving) ||
      frame.key.number >= links_.size()) {
    throw FrameError("news that nobody understands");
  }
  const News news{.kind = static_cast<NewsKind>(frame.key.use),
                  .about = static_cast<int>(frame.key.number),
                  .code = static_cast<ExitCode>(frame.key.part),
                  .text = visible(text)};
  if (!is_failure(news.code)) throw FrameError("news with an exit code that no failure has");
  if (news.about == config_.rank || !spread(news, from)) return;
  switch (news.kind) {
    case NewsKind::kLeaving:
      return config_.attendance->leave(news.about);
    case NewsKind::kLost:
      return fail(news, concat(news.text, "; rank ", from, " has told this"));
    case NewsKind::kFailed:
      return fail(news, concat("that rank has failed: ", news.text));
  }
}

bool Transport::spread(const News& news, int except) {
  if (!heard_.emplace(news.kind, news.about).second) return false;
  if (news.kind != NewsKind::kLeaving) failures_.push_back(news);
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (static_cast<int>(peer) == except || static_cast<int>(peer) == news.about) continue;
    if (links_[peer] && links_[peer]->is_open() && !links_[peer]->has_ended()) {
      send_news(*links_[peer], news);
    }
  }
  return true;
}

void Transport::send_news(Link& link, const News& news) {
  link.send_news({.key = {.use = static_cast<std::uint8_t>(news.kind),
                          .number = static_cast<std::uint64_t>(news.about),
                          .part = static_cast<std::uint32_t>(news.code)}},
                 news.text);
}

void Transport::abandon(const std::exception_ptr& error) {
  config_.memory_mark.erase();
  // What another rank has told, or the end of its connections, goes round already.
  if (!failure_) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      spread({.kind = NewsKind::kFailed,
              .about = config_.rank,
              .code = exit_code_of(known),
              .text = known.what()},
             -1);
      failure_ = error;
    } catch (...) {
      failure_ = error;
    }
  }
  for (const auto& link : links_) {
    if (link) link->abandon();
  }
}

void Transport::fail(const News& news, const std::string& text, bool is_own) {
  if (is_leaving_) return;
  // After a failure of this rank's own, that one counts, also where two ranks fail at the same
  // time.
  if (failure_) return;
  if (news.kind == NewsKind::kFailed) has_heard_of_failure_ = true;
  const CommError::Context context{.rank = config_.rank,
                                   .peers = {news.about},
                                   .label = {.what = "communication"},
                                   .code = news.code};
  failure_ = config_.is_disturbed ? std::make_exception_ptr(PeerLost(context, text, is_own))
                                  : std::make_exception_ptr(CommError(context, text));
  bell_->ring();
}

void Transport::lose(int peer, const std::string& reason) {
  if (is_leaving_ || failure_) return;
  const News news{.kind = NewsKind::kLost,
                  .about = peer,
                  .text = concat("rank ", config_.rank, " has lost it: ", reason)};
  if (!spread(news, peer)) return;
  fail(news, concat("that rank is lost: ", reason), /*is_own=*/true);
}

double Transport::idle_s(const std::vector<int>& peers) const {
  double least = std::numeric_limits<double>::infinity();
  for (const int peer : peers) {
    const auto& link = links_.at(static_cast<std::size_t>(peer));
    if (link) least = std::min(least, link->idle_s());
  }
  return least;
}

std::string Transport::hint(const std::vector<int>& peers) const {
  for (const int peer : peers) {
    const auto& link = links_.at(static_cast<std::size_t>(peer));
    const auto use = link ? link->messages().other_use_of_peer() : std::nullopt;
    if (!use) continue;
    return concat(
        "rank ", peer, " waits for this rank in ",
        *use == MessageUse::kExchange ? "an exchange" : "a sum, a broadcast or an average",
        " that this rank has not begun: probably one of the two has left out a batch, or "
        "has made a call that the other has not");
  }
  return "";
}

ProgressWorker::Diagnosis Transport::diagnose(const std::vector<int>& peers,
                                              const std::string& so_far) {
  run_until([this] { return failure_ != nullptr; }, kNewsPatience);
  if (failure_) std::rethrow_exception(failure_);
  auto [diagnosis, is_own] = reason_of_wait(peers);
  if (!config_.is_disturbed) return diagnosis;
  failure_ = std::make_exception_ptr(
      PeerLost({.rank = config_.rank, .peers = diagnosis.peers, .label = {.what = "communication"}},
               concat(so_far, ": ", diagnosis.text), is_own));
  std::rethrow_exception(failure_);
}

Transport::Wait Transport::reason_of_wait(const std::vector<int>& peers) {
  std::vector<int> silent;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (!links_[peer] || links_[peer]->has_left()) continue;
    if (links_[peer]->silent_s() > 4.0 * beat_s(config_.timeout_s) + 0.1) {
      silent.push_back(static_cast<int>(peer));
    }
  }
  if (!silent.empty()) return {{silent, "no sign of life (stopped, or its host is gone)"}, true};
  for (const int peer : peers) {
    const auto& link = links_.at(static_cast<std::size_t>(peer));
    if (!link || !link->is_open() || link->broken().empty()) continue;
    return {{{peer},
             concat("a data connection has broken (", visible(link->broken()),
                    "), and no new one comes about: a firewall stands between the hosts, or one of "
                    "them has no free file descriptor")},
            true};
  }
  std::vector<int> unreached;
  for (const int peer : peers) {
    const auto& link = links_.at(static_cast<std::size_t>(peer));
    // The higher rank connects, so this one knows nothing of a higher one that is late.
    if (link && !link->is_open() && refusals_.contains(peer)) unreached.push_back(peer);
  }
  if (!unreached.empty()) {
    return {{unreached,
             concat("no connection has come about (", visible(refusals_.at(unreached.front())),
                    "): a firewall stands between the hosts, or a rank announces an address that "
                    "others cannot reach (comm.interface)")},
            true};
  }
  std::string known = config_.attendance->behind(peers);
  if (known.empty()) known = hint(peers);
  return {
      {peers, known.empty() ? std::string(ProgressWorker::kAllAlive) : known, /*are_alive=*/true},
      false};
}

void Transport::tell_leaving() { spread({.kind = NewsKind::kLeaving, .about = config_.rank}, -1); }

void Transport::tell_failure(ExitCode code, std::string_view reason) {
  is_leaving_ = true;
  config_.memory_mark.erase();
  for (const auto& link : links_) {
    if (link) link->abandon();
  }
  spread(
      {.kind = NewsKind::kFailed, .about = config_.rank, .code = code, .text = std::string(reason)},
      -1);
  end_all(kLastWordsPatience);
}

void Transport::part() {
  is_leaving_ = true;
  for (const auto& link : links_) {
    if (link && link->is_open()) link->send_goodbye();
  }
  end_all(kPartingPatience);
  close();
}

void Transport::end_all(std::chrono::milliseconds longest) {
  for (const auto& link : links_) {
    if (link) link->end_writing();
  }
  const auto have_ended = [this] {
    return std::ranges::all_of(links_, [](const auto& link) { return !link || link->has_ended(); });
  };
  run_until(have_ended, longest);
}

void Transport::part_early() {
  is_leaving_ = true;
  for (const auto& link : links_) {
    if (link && link->is_open()) link->send_goodbye();
  }
  close();
}

void Transport::close() {
  is_leaving_ = true;
  config_.memory_mark.erase();
  if (listener_) listener_->close();
  for (const auto& link : links_) {
    if (link) link->close();
  }
}

template <class IsOver>
void Transport::run_until(const IsOver& is_over, std::chrono::milliseconds longest) {
  const auto end = Clock::now() + longest;
  while (!is_over() && Clock::now() < end) {
    bell_->io().run_one_for(std::chrono::milliseconds(10));
    count_time();
  }
}

}  // namespace gossamer::tcp
