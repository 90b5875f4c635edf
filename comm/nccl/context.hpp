#pragma once
// The common part of the NCCL communicators of one rank: the library, the watchdog, and the way in
// which they end.
//
// Two locks: `api_mutex_` is for the library, which takes one call at a time; `mutex_` is for what
// the watchdog and the rank both read. The first may be held while the second is taken.
//
// Thread safety: the rank's thread calls it; the watchdog is a thread of its own.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "base/thread.hpp"
#include "comm/nccl/api.hpp"
#include "comm/nccl/communicator.hpp"

namespace gossamer {

class NcclContext {
 public:
  NcclContext(NcclApi& api, Communicator& host, std::shared_ptr<Stream> stream,
              const NcclOptions& options)
      : api_(api),
        host_(host),
        stream_(std::move(stream)),
        rank_(own_world_rank(host)),
        goes_on_(host.is_elastic()),
        options_(options),
        watchdog_(start_thread([this] { watch(); })) {}
  ~NcclContext() {
    end_watch();
    api_.abort(comms_);
  }
  NcclContext(const NcclContext&) = delete;
  NcclContext& operator=(const NcclContext&) = delete;

  [[nodiscard]] const std::shared_ptr<Stream>& stream() { return stream_; }

  [[nodiscard]] bool closed() const { return closed_; }

  /// Whether training goes on when an operation fails (Communicator::is_elastic()). Waits then
  /// block the host, because the device would go on with the blocks of an aborted operation.
  [[nodiscard]] bool goes_on() const { return goes_on_; }

  /// Throws if operations of a communicator have failed, also if the library alone knows it yet.
  void confirm(NcclApi::Comm comm, const OpLabel& label) {
    if (closed_) return require();
    guarded(label, {}, [&] { static_cast<void>(api_.progress(comm)); });
  }

  /// check() for the rank's thread. Where training goes on, the operations are over when it throws,
  /// so the code that catches the error may write the blocks.
  void require() {
    try {
      check();
    } catch (const PeerLost&) {
      {
        // This lock is free once the operations are aborted.
        const std::lock_guard lock(api_mutex_);
      }
      stream_->synchronize();
      throw;
    }
  }

  /// Aborts all communicators, unless close() has ended them. The watchdog no longer asks the
  /// host's communicator.
  void give_up() {
    end_watch();
    if (!closed_) fail({rank_, {}, {.what = "end of NCCL"}}, "its communicators are gone");
  }

  /// Throws the error that has ended this rank's communication, if one has.
  void check() {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

  /// The communicator that `make` returns, when it can be used.
  template <class Make>
  NcclApi::Comm adopt(const OpLabel& label, const Make& make) {
    NcclApi::Comm comm = nullptr;
    guarded(label, {}, [&] { comm = make(api_); });
    own(comm);
    complete(comm, label, {});
    return comm;
  }

  /// The part of a communicator that split() gives this rank; null: none.
  NcclApi::Comm split(NcclApi::Comm comm, int color, int key) {
    const OpLabel label{.what = "split"};
    // Stays where it is whatever happens: the library may write it late.
    NcclApi::Comm& part = parts_.emplace_back(nullptr);
    guarded(label, {}, [&] { api_.split(comm, color, key, &part); });
    complete(comm, label, {});
    if (color < 0) return nullptr;
    own(part);
    complete(part, label, {});
    return part;
  }

  /// Gives an operation to the stream, and waits until the library has done so.
  template <class Call>
  void operate(NcclApi::Comm comm, const OpLabel& label, const std::vector<int>& peers,
               const Call& call) {
    guarded(label, peers, [&] { call(api_); });
    complete(comm, label, peers);
  }

  /// Collective: ends all communicators in good order. Throws CommError; they are aborted then.
  void close() {
    const OpLabel label{.what = "end of NCCL"};
    std::vector<NcclApi::Comm> comms;
    {
      const std::lock_guard lock(mutex_);
      comms = comms_;
    }
    guarded(label, {}, [&] {
      for (const NcclApi::Comm comm : comms) api_.finalize(comm);
    });
    for (const NcclApi::Comm comm : comms) complete(comm, label, {});
    guarded(label, {}, [&] {
      {
        // From here on neither the watchdog nor the destructor touches them.
        const std::lock_guard lock(mutex_);
        comms_.clear();
      }
      for (const NcclApi::Comm comm : comms) api_.destroy(comm);
    });
    closed_ = true;
  }

  struct Pending {
    EventPtr begins;
    EventPtr ends;
    OpLabel label;
    std::vector<int> peers;
    std::optional<std::chrono::steady_clock::time_point> began = std::nullopt;
  };

  void add(Pending pending) {
    const std::lock_guard lock(mutex_);
    pending_.push_back(std::move(pending));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kWatchPause = std::chrono::milliseconds(20);
  static constexpr auto kCallPause = std::chrono::microseconds(100);
  // Most calls take less: a sleep for each bucket would be felt in small models.
  static constexpr auto kShortCall = std::chrono::milliseconds(1);

  void end_watch() {
    if (!watchdog_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    watchdog_.join();
  }

  void own(NcclApi::Comm comm) {
    const std::lock_guard lock(mutex_);
    comms_.push_back(comm);
  }

  /// Makes one call of the library. Errors end the rank's communication.
  template <class Call>
  void guarded(const OpLabel& label, const std::vector<int>& peers, const Call& call) {
    if (closed_) throw std::logic_error("NCCL: a communicator is used after its close()");
    try {
      const std::lock_guard lock(api_mutex_);
      // Under the lock: the watchdog may be about to abort what the call is for.
      check();
      call();
    } catch (const CommError& error) {
      fail({rank_, peers, label}, error.reason());
      require();
    }
  }

  /// Waits until the calls on a communicator have had their effect.
  void complete(NcclApi::Comm comm, const OpLabel& label, const std::vector<int>& peers) {
    const auto begin = Clock::now();
    bool over = false;
    while (true) {
      guarded(label, peers, [&] { over = api_.progress(comm); });
      if (over) return;
      const auto waited = Clock::now() - begin;
      if (std::chrono::duration<double>(waited).count() > options_.timeout_s) {
        fail({rank_, peers, label}, too_late());
      }
      if (waited < kShortCall) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kCallPause);
      }
    }
  }

  [[nodiscard]] std::string too_late() const {
    return concat("no end after ", shortest(options_.timeout_s),
                  " s (comm.timeout_s); NCCL does not tell how much of it has moved");
  }

  void fail(const CommError::Context& context, std::string_view reason) {
    // From here on the library is called only to end operations, and a thread that hears of the
    // failure can wait for the end.
    const std::lock_guard api_lock(api_mutex_);
    std::vector<NcclApi::Comm> comms;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = goes_on_ ? std::make_exception_ptr(PeerLost(context, reason))
                          : std::make_exception_ptr(CommError(context, reason));
      comms.swap(comms_);
    }
    api_.abort(comms);
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      wake_.wait_for(lock, kWatchPause, [this] { return stopping_; });
      if (stopping_ || failure_) continue;
      lock.unlock();
      look();
      lock.lock();
    }
  }

  void look() {
    Pending oldest;
    try {
      stream_->enter();
      if (const std::optional<Pending> late = forget_ended(oldest)) {
        return fail({rank_, late->peers, late->label}, too_late());
      }
      look_for_errors();
      host_.check();
    } catch (const CommError& error) {
      // What the host's communicator says names its own peers.
      const std::vector<int>& named = error.context().peers;
      fail({rank_, named.empty() ? oldest.peers : named, oldest.label}, error.reason());
    } catch (const std::exception& error) {
      fail({rank_, oldest.peers, oldest.label}, error.what());
    }
  }

  /// Looks for errors that NCCL itself has noticed, such as a lost peer or a network that is down.
  void look_for_errors() {
    const std::lock_guard api_lock(api_mutex_);
    std::vector<NcclApi::Comm> comms;
    {
      const std::lock_guard lock(mutex_);
      comms = comms_;
    }
    for (const NcclApi::Comm comm : comms) static_cast<void>(api_.progress(comm));
  }

  /// Drops the operations that are over. Returns the oldest operation if it has taken too long;
  /// `oldest` is the operation behind which the others wait.
  std::optional<Pending> forget_ended(Pending& oldest) {
    const std::lock_guard lock(mutex_);
    while (!pending_.empty() && pending_.front().ends->done()) pending_.pop_front();
    if (pending_.empty()) return std::nullopt;
    Pending& first = pending_.front();
    oldest = first;
    if (!first.began) {
      // Before that the operation waits for this rank's own computing.
      if (first.begins->done()) first.began = Clock::now();
      return std::nullopt;
    }
    const double waited = std::chrono::duration<double>(Clock::now() - *first.began).count();
    if (waited <= options_.timeout_s) return std::nullopt;
    return first;
  }

  NcclApi& api_;
  Communicator& host_;
  std::shared_ptr<Stream> stream_;
  int rank_;
  bool goes_on_;
  NcclOptions options_;
  std::deque<NcclApi::Comm> parts_;  // the rank's own; a deque keeps them in place
  bool closed_ = false;              // the rank's own
  std::mutex api_mutex_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<NcclApi::Comm> comms_;  // guarded by mutex_
  std::deque<Pending> pending_;       // guarded by mutex_; in the order of the stream
  std::exception_ptr failure_;        // guarded by mutex_
  bool stopping_ = false;             // guarded by mutex_
  std::thread watchdog_;
};

}  // namespace gossamer
