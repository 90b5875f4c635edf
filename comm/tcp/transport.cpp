#include "comm/tcp/transport.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"

namespace gossamer::tcp {
namespace {

using Clock = std::chrono::steady_clock;

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

double beat_s(double timeout_s) { return std::clamp(timeout_s / 8.0, 0.02, 2.0); }

}  // namespace

Transport::Transport(std::shared_ptr<SocketBell> bell, std::unique_ptr<Listener> listener,
                     Config config)
    : bell_(std::move(bell)),
      listener_(std::move(listener)),
      config_(std::move(config)),
      links_(config_.peers.size()) {
  if (!listener_) return;
  listener_->start(
      config_.tls.get(), config_.timeout_s,
      {.judge = [this](const Frame& theirs) { return judge(theirs); },
       .welcome = [this](ByteStream stream,
                         const Frame& theirs) { welcome(std::move(stream), theirs); }});
}

Transport::~Transport() {
  is_leaving_ = true;
  if (listener_) listener_->close();
}

Link::Hooks Transport::hooks_of(int peer) {
  return {.moved = [this] { bell_->ring(); },
          .news = [this, peer](const Frame& frame,
                               const std::string& text) { hear(peer, frame, text); },
          .lost = [this, peer](const std::string& reason) { lose(peer, reason); },
          .connect = [this, peer](int index) { connect(peer, index); }};
}

Link& Transport::link(int peer) {
  auto& link = links_.at(static_cast<std::size_t>(peer));
  if (link) return *link;
  link = std::make_unique<Link>(
      Link::Config{.epoch = config_.epoch,
                   .num_streams = config_.num_streams,
                   .connects = config_.rank > peer,
                   .memory = config_.peers[static_cast<std::size_t>(peer)].memory},
      hooks_of(peer));
  return *link;
}

void Transport::connect(int peer, int index) {
  auto socket = std::make_shared<asio::ip::tcp::socket>(bell_->io());
  socket->async_connect(config_.peers[static_cast<std::size_t>(peer)].endpoint,
                        [this, peer, index, socket](const asio::error_code& error) {
                          if (is_leaving_) return;
                          if (!error) return introduce(peer, index, std::move(*socket));
                          refusals_[peer] = error.message();
                          connect_again(peer, index);
                        });
}

void Transport::connect_again(int peer, int index) {
  if (is_leaving_ || failure_) return;
  auto timer = std::make_shared<asio::steady_timer>(bell_->io(), kConnectPause);
  timer->async_wait([this, peer, index, timer](const asio::error_code& error) {
    if (!error && !is_leaving_) connect(peer, index);
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
      bell_->io(),
      ByteStream(std::move(socket), config_.tls.get(), Role::kConnects, config_.timeout_s),
      Role::kConnects, hello(peer, index),
      Greeting::Hooks{.judge = judge,
                      .welcome =
                          [this, peer](ByteStream stream, const Frame& theirs) {
                            if (!is_leaving_) link(peer).adopt(std::move(stream), theirs);
                          },
                      .refuse =
                          [this, peer, index](const std::string& reason) {
                            refusals_[peer] = reason;
                            connect_again(peer, index);
                          }});
  greeting->start(kGreetingLimit);
}

Frame Transport::hello(int peer, int index) {
  return {.kind = FrameKind::kHello,
          .reads_memory = link(peer).reads_memory(),
          .epoch = config_.epoch,
          .key = {.number = static_cast<std::uint64_t>(config_.rank),
                  .part = static_cast<std::uint32_t>(index)},
          .address = config_.run};
}

Frame Transport::judge(const Frame& theirs) {
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
  if (link(static_cast<int>(peer)).has_connection(static_cast<int>(theirs.key.part))) {
    throw FrameError(concat("rank ", peer, " is connected already"));
  }
  return hello(static_cast<int>(peer), static_cast<int>(theirs.key.part));
}

void Transport::welcome(ByteStream stream, const Frame& theirs) {
  Link& their_link = link(static_cast<int>(theirs.key.number));
  const int index = static_cast<int>(theirs.key.part);
  if (is_leaving_ || their_link.has_connection(index)) return;
  their_link.adopt(std::move(stream), theirs);
}

void Transport::service() {
  bell_->io().poll();
  if (bell_->io().stopped()) bell_->io().restart();
  count_time();
  bool has_moved = false;
  for (const auto& link : links_) {
    if (link && link->fetch_messages()) has_moved = true;
  }
  if (has_moved) bell_->ring();
  if (failure_) std::rethrow_exception(failure_);
}

void Transport::count_time() {
  const auto now = Clock::now();
  const double elapsed_s = std::chrono::duration<double>(now - last_tick_).count();
  if (elapsed_s < kTick) return;
  last_tick_ = now;
  for (const auto& link : links_) {
    if (!link) continue;
    link->tick(std::min(elapsed_s, kLongestTick), beat_s(config_.timeout_s), config_.timeout_s);
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
                  .text = text};
  if (news.about == config_.rank || !spread(news, from)) return;
  switch (news.kind) {
    case NewsKind::kLeaving:
      return config_.attendance->leave(news.about);
    case NewsKind::kLost:
      return fail(news, concat(text, "; rank ", from, " has told this"));
    case NewsKind::kFailed:
      return fail(news, concat("that rank has failed: ", text));
  }
}

bool Transport::spread(const News& news, int except) {
  if (!heard_.emplace(news.kind, news.about).second) return false;
  const Frame frame{.key = {.use = static_cast<std::uint8_t>(news.kind),
                            .number = static_cast<std::uint64_t>(news.about),
                            .part = static_cast<std::uint32_t>(news.code)}};
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (static_cast<int>(peer) == except || static_cast<int>(peer) == news.about) continue;
    if (links_[peer] && links_[peer]->is_open() && !links_[peer]->has_ended()) {
      links_[peer]->send_news(frame, news.text);
    }
  }
  return true;
}

void Transport::fail(const News& news, const std::string& text) {
  if (is_leaving_) return;
  if (news.kind == NewsKind::kFailed) has_heard_of_failure_ = true;
  if (failure_) return;
  failure_ = std::make_exception_ptr(CommError({.rank = config_.rank,
                                                .peers = {news.about},
                                                .label = {.what = "communication"},
                                                .code = news.code},
                                               text));
  bell_->ring();
}

void Transport::lose(int peer, const std::string& reason) {
  if (is_leaving_ || failure_) return;
  const News news{.kind = NewsKind::kLost,
                  .about = peer,
                  .text = concat("rank ", config_.rank, " has lost it: ", reason)};
  if (!spread(news, peer)) return;
  fail(news, concat("that rank is lost: ", reason));
}

ProgressWorker::Diagnosis Transport::diagnose(const std::vector<int>& peers) {
  run_until([this] { return failure_ != nullptr; }, kNewsPatience);
  if (failure_) std::rethrow_exception(failure_);
  std::vector<int> silent;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (!links_[peer] || links_[peer]->has_left()) continue;
    if (links_[peer]->silent_s() > 4.0 * beat_s(config_.timeout_s) + 0.1) {
      silent.push_back(static_cast<int>(peer));
    }
  }
  if (!silent.empty()) return {silent, "no sign of life (stopped, or its host is gone)"};
  std::vector<int> unreached;
  for (const int peer : peers) {
    const auto& link = links_.at(static_cast<std::size_t>(peer));
    if (link && !link->is_open()) unreached.push_back(peer);
  }
  if (!unreached.empty()) {
    const auto refusal = refusals_.find(unreached.front());
    return {unreached,
            concat("no connection has come about",
                   refusal == refusals_.end() ? "" : concat(" (", visible(refusal->second), ")"),
                   ": a firewall stands between the hosts, or a rank announces an address that "
                   "others cannot reach (comm.interface)")};
  }
  return {peers,
          "all ranks are alive, but the named peers have not come to this point, or wait for "
          "another rank themselves; if that is normal (a long evaluation, a slow disk), set a "
          "larger comm.timeout_s"};
}

void Transport::tell_leaving() { spread({.kind = NewsKind::kLeaving, .about = config_.rank}, -1); }

void Transport::tell_failure(ExitCode code, std::string_view reason) {
  is_leaving_ = true;
  for (const auto& link : links_) {
    if (link) link->close_data();
  }
  spread(
      {.kind = NewsKind::kFailed, .about = config_.rank, .code = code, .text = std::string(reason)},
      -1);
  for (const auto& link : links_) {
    if (link) link->end_writing();
  }
  run_until(
      [this] {
        return std::ranges::all_of(links_,
                                   [](const auto& link) { return !link || link->has_ended(); });
      },
      kLastWordsPatience);
}

void Transport::part() {
  is_leaving_ = true;
  say_goodbye();
}

void Transport::say_goodbye() {
  for (const auto& link : links_) {
    if (!link || !link->is_open()) continue;
    link->send_goodbye();
    link->end_writing();
  }
  run_until(
      [this] {
        return std::ranges::all_of(links_,
                                   [](const auto& link) { return !link || link->has_ended(); });
      },
      kPartingPatience);
}

template <class IsOver>
void Transport::run_until(const IsOver& is_over, std::chrono::milliseconds longest) {
  const auto end = Clock::now() + longest;
  while (!is_over() && Clock::now() < end) {
    bell_->io().run_one_for(std::chrono::milliseconds(10));
    if (bell_->io().stopped()) bell_->io().restart();
    count_time();
  }
}

}  // namespace gossamer::tcp
