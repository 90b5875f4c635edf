#pragma once
// All connections of one rank: finds peers, opens connections when the first message needs them,
// and watches over the peers.
//
// Of two ranks, the higher rank connects to the lower rank. It tries again after a failure, until
// the time limit of a message ends the run.
//
// News (a rank has failed, is lost, or leaves) goes from rank to rank over the connections that
// exist. A rank that hears something for the first time tells it to all its peers. The backend's
// first operation connects each rank with the ranks that are 1, 2, 4, ... places away. So news
// reaches all ranks soon, and every rank has peers that notice its end. The first failure counts,
// and service() throws it.
//
// Protocol: the progress worker calls service() in every turn, and the operations post messages.
// When the worker fails it calls abandon(), and no block is touched any more. When it has stopped,
// part() or tell_failure() ends the connections in good order.
//
// Thread safety: one thread at a time: first the worker, then who has stopped it.
// Errors: CommError.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "comm/tcp/bell.hpp"
#include "comm/tcp/link.hpp"
#include "comm/tcp/listener.hpp"
#include "comm/worker/attendance.hpp"
#include "comm/worker/progress_worker.hpp"

namespace gossamer::tcp {

class Transport {
 public:
  /// Where a rank is.
  struct Peer {
    asio::ip::tcp::endpoint endpoint;
    /// The memory of the rank; empty where it cannot be reached.
    ProcessMemory memory = {};
  };
  struct Config {
    int rank = 0;
    /// The places of the ranks, one for every rank.
    std::vector<Peer> peers = {};
    /// Connections of other runs and epochs are refused.
    std::uint64_t run = 0;
    std::uint32_t epoch = 0;
    /// Null: connections are plain.
    std::unique_ptr<const TlsContext> tls = {};
    /// Link::Config.
    int num_streams = 0;
    double timeout_s = 300.0;
    std::shared_ptr<Attendance> attendance = {};
    Logger logger = {};
    /// The mark by which the peers on this host find this process.
    MemoryMark memory_mark = {};
    /// Where a run goes on without failed ranks: tells whether the members change, and failures of
    /// other ranks become a PeerLost. Null: all ranks end together.
    std::function<bool()> is_disturbed = {};
  };

  /// `listener` is null in a world of one rank.
  Transport(std::shared_ptr<SocketBell> bell, std::unique_ptr<Listener> listener, Config config);
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport();

  [[nodiscard]] const std::shared_ptr<SocketBell>& bell() const { return bell_; }

  /// The connections with a world rank, for the messages of operations.
  Link& link(int peer);
  /// Moves everything on. Throws the first failure.
  void service();
  /// Waits a moment for the news of a failure, and throws it. Otherwise returns a diagnosis that
  /// names the silent ranks, or `peers`. Where a run goes on without failed ranks, throws a
  /// PeerLost instead, whose text begins with `so_far`.
  ProgressWorker::Diagnosis diagnose(const std::vector<int>& peers, const std::string& so_far);
  /// Seconds since anything but a sign of life has moved between this rank and one of `peers`.
  [[nodiscard]] double idle_s(const std::vector<int>& peers) const;
  /// A sentence about a peer with which this rank waits crosswise (other_use_of_peer()); empty:
  /// there is none among `peers`.
  [[nodiscard]] std::string hint(const std::vector<int>& peers) const;
  void tell_leaving();
  /// The worker has failed: tells the others why, unless they know, and forgets all messages.
  void abandon(const std::exception_ptr& error);

  /// When the worker has stopped: tells the others that this rank ends with `code`, and why.
  void tell_failure(ExitCode code, std::string_view reason);
  /// When the worker has stopped and all ranks have come to their end: closes all connections, and
  /// waits a moment for the others to do so.
  void part();
  /// When the worker has stopped: closes all connections, whose end is no loss for the others.
  void part_early();
  /// Closes all connections.
  void close();
  /// Whether another rank has reported its failure before this rank's worker failed. Any thread may
  /// call it.
  [[nodiscard]] bool has_heard_of_failure() const { return has_heard_of_failure_; }

 private:
  struct Wait {
    ProgressWorker::Diagnosis diagnosis;
    /// The connections of this rank are the reason.
    bool is_own = false;
  };
  /// Why ranks keep this one waiting.
  Wait reason_of_wait(const std::vector<int>& peers);

  enum class NewsKind : std::uint8_t { kFailed, kLost, kLeaving };
  struct News {
    NewsKind kind = NewsKind::kFailed;
    /// The rank that has failed, is lost, or leaves.
    int about = 0;
    ExitCode code = ExitCode::kPeerLost;
    std::string text = {};
  };

  Link::Hooks hooks_of(int peer);
  void connect(int peer, int index);
  void connect_again(int peer, int index);
  void introduce(int peer, int index, asio::ip::tcp::socket socket);
  /// `theirs`: the hello that it answers; null: it comes first.
  Frame hello(int peer, int index, const Frame* theirs);
  /// Looks at the hello of a rank that connects; the answer to it.
  Frame judge(const Frame& theirs);
  void adopt(ByteStream stream, const Frame& hello);

  void hear(int from, const Frame& frame, const std::string& text);
  /// Sends the news to peers that may not know it yet. Returns whether it is news to this rank.
  bool spread(const News& news, int except);
  static void send_news(Link& link, const News& news);
  /// `is_own`: this rank itself has lost the other rank.
  void fail(const News& news, const std::string& text, bool is_own = false);
  /// Fails when the members of the run change.
  void heed_members();
  void lose(int peer, const std::string& reason);
  void count_time();
  /// Writes nothing more to the peers, and waits for their end.
  void end_all(std::chrono::milliseconds longest);
  /// Runs the connections until `is_over` or for `longest`.
  template <class IsOver>
  void run_until(const IsOver& is_over, std::chrono::milliseconds longest);

  std::shared_ptr<SocketBell> bell_;
  std::unique_ptr<Listener> listener_;
  Config config_;
  /// The links by rank; null until the first message.
  std::vector<std::unique_ptr<Link>> links_;
  std::set<std::tuple<NewsKind, int>> heard_;
  /// The news for links that are made later.
  std::vector<News> failures_;
  /// Why the last attempt to connect to a rank has failed.
  std::map<int, std::string> refusals_;
  std::exception_ptr failure_;
  std::atomic<bool> has_heard_of_failure_ = false;
  /// From now on the end of a connection is no failure.
  bool is_leaving_ = false;
  std::chrono::steady_clock::time_point last_tick_ = std::chrono::steady_clock::now();
};

}  // namespace gossamer::tcp
