#include "comm/tcp/mesh.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/file_limit.hpp"
#include "base/text.hpp"
#include "base/thread.hpp"
#include "comm/hmac.hpp"
#include "comm/tcp/greeting.hpp"
#include "comm/tcp/listener.hpp"
#include "comm/tcp/rank_record.hpp"
#include "comm/tcp/text_connection.hpp"

namespace gossamer::tcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kAttemptPause = std::chrono::milliseconds(50);
/// A longer gap between two looks at the clock, as a part of the silence, means that this process
/// was stopped.
constexpr double kLongestLook = 0.25;

using TextConnectionPtr = std::shared_ptr<TextConnection>;

class TcpMesh : public membership::Mesh {
 public:
  explicit TcpMesh(MeshConfig config)
      : config_(std::move(config)),
        listener_(io_, config_.address),
        timer_(io_),
        address_(
            with_cohort(mesh_address({config_.address, listener_.port()}, to_hex(random_bytes(4))),
                        config_.cohort)),
        number_(address_number(address_)) {}

  ~TcpMesh() override { TcpMesh::close(); }

  [[nodiscard]] const std::string& address() const override { return address_; }

  void start(Hooks hooks) override {
    hooks_ = std::move(hooks);
    listener_.start(config_.tls.get(), config_.logger,
                    {.judge = [this](const Frame& theirs) { return judge(theirs); },
                     .welcome =
                         [this](ByteStream stream, const Frame& theirs) {
                           welcome(std::move(stream), theirs.key.number);
                         }});
    last_tick_ = Clock::now();
    tick_later();
    thread_ = start_thread([this] { io_.run(); });
  }

  void watch(const std::string& address) override {
    asio::post(io_, [this, address] { peer(address); });
  }
  void send(const std::string& to, std::string text) override {
    asio::post(io_, [this, to, text = std::move(text)] {
      Peer* const target = peer(to);
      if (target == nullptr) return;
      target->out ? target->out->send(text) : target->waiting.push_back(text);
    });
  }
  void drop(const std::string& address) override {
    asio::post(io_, [this, address] { end(address); });
  }
  void close() override {
    if (!thread_.joinable()) return;
    // After what was posted before.
    asio::post(io_, [this] {
      is_closed_ = true;
      listener_.close();
      for (auto& [address, peer] : peers_) peer.close();
      for (const TextConnectionPtr& stranger : strangers_) stranger->close();
      io_.stop();
    });
    thread_.join();
  }

 private:
  struct Peer {
    /// What this process sends goes out; what it reads comes in. Null: not yet there.
    TextConnectionPtr out;
    TextConnectionPtr in;
    /// Texts that wait for `out`.
    std::vector<std::string> waiting;
    /// Seconds in which one of the two has been missing.
    double missing_s = 0.0;
    /// Both have been there.
    bool has_met = false;
    /// Its address has come over `in`.
    bool is_named = false;
    /// Why the last attempt to connect has failed.
    std::string problem;

    void close() const {
      if (out) out->close();
      if (in) in->close();
    }
  };

  /// To the process with this number.
  [[nodiscard]] Frame hello(std::uint64_t to) const {
    return {.kind = FrameKind::kHello,
            .key = {.number = number_},
            .offset = to,
            .address = config_.run};
  }
  /// Looks at the hello of the process at the other end.
  [[nodiscard]] Frame judge(const Frame& theirs) const {
    if (theirs.address != config_.run) throw FrameError("it belongs to another run");
    if (theirs.offset != number_) throw FrameError("it looks for another process");
    // The end that connects repeats what is refused before the greeting is over.
    if (!names_.contains(theirs.key.number) && strangers_.size() >= Listener::kMaxGuests) {
      throw FrameError("too many connections have not said their address");
    }
    return hello(theirs.key.number);
  }

  /// Null: lost, or this process.
  Peer* peer(const std::string& address) {
    if (is_closed_ || lost_.contains(address) || address == address_) return nullptr;
    const auto [place, is_new] = peers_.try_emplace(address);
    if (is_new) {
      names_[address_number(address)] = address;
      try {
        connect(address, mesh_endpoint(address));
      } catch (const FrameError& error) {
        lose(address, error.what());
        return nullptr;
      }
    }
    return &place->second;
  }

  [[nodiscard]] bool is_wanted(const std::string& address) const {
    return !is_closed_ && peers_.contains(address);
  }

  void connect(const std::string& address, const asio::ip::tcp::endpoint& endpoint) {
    auto socket = std::make_shared<asio::ip::tcp::socket>(io_);
    socket->async_connect(endpoint,
                          [this, address, endpoint, socket](const asio::error_code& error) {
                            if (!is_wanted(address)) return;
                            // Its port was open before anybody knew it.
                            if (error == asio::error::connection_refused)
                              return lose(address, "it has ended");
                            if (error) {
                              note_problem(address, error);
                              return connect_again(address, endpoint);
                            }
                            introduce(address, endpoint, std::move(*socket));
                          });
  }

  void note_problem(const std::string& address, const asio::error_code& error) {
    const std::string hint = file_limit_hint(error.value());
    std::string& problem = peers_.at(address).problem;
    std::string now = concat(error.message(), hint);
    if (!hint.empty() && problem != now) {
      config_.logger.error(concat("no connection with ", address, ": ", now));
    }
    problem = std::move(now);
  }

  void connect_again(const std::string& address, const asio::ip::tcp::endpoint& endpoint) {
    auto timer = std::make_shared<asio::steady_timer>(io_, kAttemptPause);
    timer->async_wait([this, address, endpoint, timer](const asio::error_code& error) {
      if (!error && is_wanted(address)) connect(address, endpoint);
    });
  }

  void introduce(const std::string& address, const asio::ip::tcp::endpoint& endpoint,
                 asio::ip::tcp::socket socket) {
    const auto again = [this, address, endpoint](const std::string& reason) {
      if (!is_wanted(address)) return;
      config_.logger.debug(concat("no connection with ", address, ": ", reason));
      peers_.at(address).problem = reason;
      connect_again(address, endpoint);
    };
    try {
      const auto greeting = std::make_shared<Greeting>(
          io_, ByteStream(std::move(socket), config_.tls.get(), Role::kConnects), Role::kConnects,
          hello(address_number(address)),
          Greeting::Hooks{
              .judge =
                  [this, address](const Frame& theirs) {
                    if (theirs.key.number != address_number(address)) {
                      throw FrameError("another process answers");
                    }
                    return judge(theirs);
                  },
              .welcome = [this, address](ByteStream stream,
                                         const Frame&) { send_over(address, std::move(stream)); },
              .refuse = again});
      greeting->start(patience());
    } catch (const std::exception& error) {
      again(error.what());
    }
  }

  /// The connection to a peer is there.
  void send_over(const std::string& address, ByteStream stream) {
    if (!is_wanted(address)) return;
    Peer& target = peers_.at(address);
    target.out = std::make_shared<TextConnection>(std::move(stream), hooks_of(address));
    const TextConnectionPtr out = target.out;
    out->start();
    out->send(address_);
    for (const std::string& text : std::exchange(target.waiting, {})) out->send(text);
    note_meeting(address);
  }

  /// Both connections with a peer may be there now.
  void note_meeting(const std::string& address) {
    Peer& peer = peers_.at(address);
    if (peer.has_met || !peer.in || !peer.out || !peer.is_named) return;
    peer.has_met = true;
    if (hooks_.met) hooks_.met(address);
  }

  /// The process with this number has connected.
  void welcome(ByteStream stream, std::uint64_t number) {
    const auto known = names_.find(number);
    if (known == names_.end()) return take_stranger(std::move(stream), number);
    Peer* const peer = this->peer(known->second);
    // The process is lost, or is connected already, and a stranger pretends to be it.
    if (peer == nullptr || peer->in) return stream.close();
    peer->in = std::make_shared<TextConnection>(std::move(stream), TextConnection::Hooks{});
    const TextConnectionPtr in = peer->in;
    in->belong_to(hooks_of(known->second));
    in->start();
  }

  /// A process of which this one has not heard has connected, and says next who it is.
  void take_stranger(ByteStream stream, std::uint64_t number) {
    // Several greetings may end at once.
    if (strangers_.size() >= Listener::kMaxGuests) forget_oldest_stranger();
    const auto slot = std::make_shared<std::weak_ptr<TextConnection>>();
    auto stranger = std::make_shared<TextConnection>(
        std::move(stream),
        TextConnection::Hooks{
            .heard = [this, slot, number](const std::string& text) { meet(*slot, number, text); },
            .ended = [this, slot](const std::string&) { strangers_.erase(slot->lock()); }});
    *slot = stranger;
    strangers_.insert(stranger);
    stranger->start();
  }

  void forget_oldest_stranger() {
    const auto oldest = std::ranges::max_element(
        strangers_, {}, [](const TextConnectionPtr& one) { return one->silent_s; });
    (*oldest)->close();
    strangers_.erase(oldest);
  }

  /// A stranger says its address.
  void meet(const std::weak_ptr<TextConnection>& stranger, std::uint64_t number,
            const std::string& address) {
    const TextConnectionPtr connection = stranger.lock();
    strangers_.erase(connection);
    Peer* const found = address_number(address) == number ? peer(address) : nullptr;
    if (found == nullptr || found->in) {
      // The process is lost, or a stranger pretends to be it.
      connection->close();
      return;
    }
    connection->belong_to(hooks_of(address));
    found->in = connection;
    found->is_named = true;
    note_meeting(address);
  }

  /// A peer has said something.
  void hear(const std::string& address, std::string text) {
    if (!is_wanted(address)) return;
    Peer& peer = peers_.at(address);
    if (peer.is_named) return hooks_.heard(address, std::move(text));
    peer.is_named = true;
    // Its hello has said the number of this address, so it can be no other one.
    if (text != address) return lose(address, "it says another address than its hello");
    note_meeting(address);
  }

  TextConnection::Hooks hooks_of(const std::string& address) {
    return {.heard = [this, address](std::string text) { hear(address, std::move(text)); },
            // Later, because the caller may be going through all peers.
            .ended =
                [this, address](const std::string& reason) {
                  asio::post(io_, [this, address, reason] { lose(address, reason); });
                }};
  }

  void lose(const std::string& address, const std::string& reason) {
    if (is_closed_) return;
    const std::string direction = missing_direction(address);
    if (end(address)) hooks_.lost(address, concat(reason, direction));
  }

  /// Of two processes that were never connected in both directions: what is missing.
  [[nodiscard]] std::string missing_direction(const std::string& address) const {
    const auto place = peers_.find(address);
    if (place == peers_.end() || place->second.has_met) return "";
    const Peer& peer = place->second;
    if (peer.out) return concat("; it has not connected to this process at ", address_);
    return concat("; this process has not connected to it",
                  peer.problem.empty() ? "" : concat(": ", peer.problem));
  }

  /// Returns whether it was there.
  bool end(const std::string& address) {
    if (!lost_.insert(address).second) return false;
    const auto place = peers_.find(address);
    if (place == peers_.end()) return true;
    place->second.close();
    peers_.erase(place);
    names_.erase(address_number(address));
    return true;
  }

  [[nodiscard]] std::chrono::milliseconds patience() const {
    return std::chrono::milliseconds(
        std::max<std::int64_t>(1, static_cast<std::int64_t>(1e3 * config_.silence_s)));
  }
  [[nodiscard]] double beat_s() const { return std::clamp(config_.silence_s / 8.0, 0.005, 2.0); }

  void tick_later() {
    timer_.expires_after(std::chrono::microseconds(static_cast<std::int64_t>(2.5e5 * beat_s())));
    timer_.async_wait([this](const asio::error_code& error) {
      if (error || is_closed_) return;
      tick();
      tick_later();
    });
  }

  void tick() {
    const auto now = Clock::now();
    const double elapsed_s =
        std::min(std::chrono::duration<double>(now - std::exchange(last_tick_, now)).count(),
                 kLongestLook * config_.silence_s);
    std::vector<std::pair<std::string, std::string>> gone;
    for (auto& [address, peer] : peers_) {
      if (peer.out && (peer.out->quiet_s += elapsed_s) >= beat_s()) peer.out->send({});
      peer.missing_s = peer.has_met ? 0.0 : peer.missing_s + elapsed_s;
      const double silent_s = peer.in ? peer.in->silent_s += elapsed_s : 0.0;
      if (silent_s > config_.silence_s) {
        gone.emplace_back(address,
                          concat("no sign of life for ", shortest(config_.silence_s), " s"));
      } else if (peer.missing_s > config_.meeting_s) {
        gone.emplace_back(address,
                          concat("no connection within ", shortest(config_.meeting_s), " s"));
      }
    }
    for (const auto& [address, reason] : gone) lose(address, reason);
    std::vector<TextConnectionPtr> late;
    for (const TextConnectionPtr& stranger : strangers_) {
      if ((stranger->silent_s += elapsed_s) > config_.silence_s) late.push_back(stranger);
    }
    for (const TextConnectionPtr& stranger : late) {
      stranger->close();
      strangers_.erase(stranger);
    }
  }

  MeshConfig config_;
  asio::io_context io_{1};
  Listener listener_;
  asio::steady_timer timer_;
  std::string address_;
  std::uint64_t number_;
  Hooks hooks_;
  /// By address. All of it belongs to the thread.
  std::map<std::string, Peer> peers_;
  /// Their addresses, by address_number().
  std::map<std::uint64_t, std::string> names_;
  /// Processes that have connected and not yet said who they are.
  std::set<TextConnectionPtr> strangers_;
  /// Processes that are lost, or were dropped.
  std::set<std::string> lost_;
  Clock::time_point last_tick_;
  bool is_closed_ = false;
  std::thread thread_;
};

}  // namespace

std::string mesh_address(const asio::ip::tcp::endpoint& endpoint, const std::string& word) {
  return concat(endpoint.address().to_string(), " ", endpoint.port(), " ", word);
}

std::uint64_t address_number(const std::string& address) { return run_number(address); }

asio::ip::tcp::endpoint mesh_endpoint(const std::string& address) {
  std::istringstream words(address);
  std::string host;
  std::string word;
  std::uint16_t port = 0;
  asio::error_code error;
  if (words >> host >> port >> word) {
    const auto known = asio::ip::make_address(host, error);
    if (!error) return {known, port};
  }
  throw FrameError(concat("this is no address of a process: ", visible_line(address)));
}

std::unique_ptr<membership::Mesh> make_mesh(MeshConfig config) {
  return std::make_unique<TcpMesh>(std::move(config));
}

}  // namespace gossamer::tcp
