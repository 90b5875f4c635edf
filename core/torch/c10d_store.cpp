#include "core/torch/c10d_store.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Logging.h>
#include <fcntl.h>
#include <sys/file.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "base/error.hpp"
#include "base/file_descriptor.hpp"
#include "base/fork.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<std::uint8_t>;

Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }
std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

/// c10d takes 0 for no limit, and counts some limits in an int.
milliseconds as_c10d_takes(milliseconds limit) {
  return std::clamp<milliseconds>(limit, milliseconds(1), std::chrono::hours(24));
}

CommError meeting_error(std::string_view what) { return {{.label = {.what = "start"}}, what}; }

/// The message without the stack that LibTorch adds, on one line.
std::string reason_of(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text =
      torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return visible_line(text.substr(0, text.find('\n')));
}

/// c10d writes lines of its own, with a stack, for what the CommError says already. A user who
/// sets TORCH_CPP_LOG_LEVEL sees them.
void silence_c10d() {
  constexpr int kFatal = 3;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = kFatal;
}

class C10dStore : public Store {
 public:
  using Inner = c10::intrusive_ptr<c10d::Store>;

  /// `where` describes the place in messages, and `advice` says what to check there. `reopen` makes
  /// the store anew after a call that has failed, where that helps.
  C10dStore(Inner store, std::string where, std::string advice,
            std::function<Inner()> reopen = nullptr)
      : store_(std::move(store)),
        where_(std::move(where)),
        advice_(std::move(advice)),
        reopen_(std::move(reopen)) {}

  void set(const std::string& key, std::string_view value) override {
    reaching([&] { inner().set(key, bytes_of(value)); });
  }

  std::string get(const std::string& key, milliseconds limit) override {
    const auto begin = std::chrono::steady_clock::now();
    try {
      inner().setTimeout(as_c10d_takes(limit));
      return text_of(inner().get(key));
    } catch (const std::exception& error) {
      if (!is_over(begin, limit)) throw_unreachable(error);
      throw meeting_error(concat("nobody has set ", key, " in ", where_, " within ",
                                 shortest(static_cast<double>(limit.count()) / 1000.0), " s"));
    }
  }

  std::string compare_and_set(const std::string& key, std::string_view expected,
                              std::string_view desired) override {
    return reaching([&]() -> std::string {
      const std::string now =
          text_of(inner().compareSet(key, bytes_of(expected), bytes_of(desired)));
      // c10d answers with `expected` for a key that has not been set.
      const bool may_be_missing = !expected.empty() && now == expected;
      return may_be_missing && !inner().check({key}) ? "" : now;
    });
  }

  bool wait_for_all(const Keys& keys, milliseconds limit) override {
    if (limit <= milliseconds(0)) return reaching([&] { return inner().check(keys.list()); });
    const auto begin = std::chrono::steady_clock::now();
    try {
      inner().wait(keys.list(), as_c10d_takes(limit));
      return true;
    } catch (const std::exception& error) {
      if (!is_over(begin, limit)) throw_unreachable(error);
      return false;
    }
  }

  std::vector<std::string> get_all(const Keys& keys) override {
    // A file is asked at no price.
    if (!inner().hasExtendedApi()) return Store::get_all(keys);
    return reaching([&] {
      std::vector<std::string> values;
      for (const Bytes& value : inner().multiGet(keys.list())) values.push_back(text_of(value));
      return values;
    });
  }

  std::int64_t draw_ticket(const std::string& key) override {
    return reaching([&] { return inner().add(key, 1) - 1; });
  }

 private:
  /// Whether a wait that began then has taken its whole time. Clocks differ a little.
  static bool is_over(std::chrono::steady_clock::time_point begin, milliseconds limit) {
    return std::chrono::steady_clock::now() - begin >= limit * 9 / 10;
  }

  c10d::Store& inner() {
    if (!store_) store_ = reopen_();
    return *store_;
  }

  [[noreturn]] void throw_unreachable(const std::exception& error) {
    const std::string what =
        concat(where_, " cannot be reached (", reason_of(error), "): ", advice_);
    if (!reopen_) throw meeting_error(what);
    // A client of LibTorch whose connection has ended fails for ever.
    store_.reset();
    throw StoreError({.label = {.what = "start"}}, what);
  }

  template <class Work>
  auto reaching(const Work& work) -> decltype(work()) {
    try {
      return work();
    } catch (const std::exception& error) {
      throw_unreachable(error);
    }
  }

  /// Null: the last call has failed.
  Inner store_;
  std::string where_;
  std::string advice_;
  std::function<Inner()> reopen_;
};

C10dStore::Inner connect(const StorePlace& place, const c10d::TCPStoreOptions& options,
                         milliseconds silence) {
  auto client = c10::make_intrusive<c10d::TCPStore>(place.host, options);
  limit_silence(place.port, silence);
  return client;
}

std::shared_ptr<Store> open_tcp_store(const StorePlace& place, const c10d::TCPStoreOptions& options,
                                      std::string_view advice) {
  const std::string where = concat("the store at ", to_string(place));
  silence_c10d();
  std::function<C10dStore::Inner()> reopen;
  if (!options.isServer) {
    reopen = [place, again = options, limit = options.timeout]() mutable -> C10dStore::Inner {
      // A caller that has asked once asks again.
      again.timeout = std::min<milliseconds>(again.timeout, std::chrono::seconds(2));
      return connect(place, again, limit);
    };
  }
  try {
    return std::make_shared<C10dStore>(
        connect(place, options, options.timeout), where,
        concat("has the process ended that serves it? It does so on ", place.host),
        std::move(reopen));
  } catch (const std::exception& error) {
    throw meeting_error(concat(where, " ", advice, " (", reason_of(error), ")"));
  }
}

/// Without a lock, two ranks could write the store's file at once and lose what one has said.
void check_locks(const std::string& path, const std::string& where, const LockFunction& lock) {
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  // What is wrong with the file itself, c10d says.
  if (!file.is_open()) return;
  const LockAttempt attempt = try_lock(file.get(), LOCK_SH, lock);
  if (attempt.result != LockAttempt::Result::kUnsupported) return;
  throw meeting_error(concat(where, " cannot be used: its file system has no locks (",
                             attempt.reason,
                             "), and ranks that meet in a file need them. Take a folder of another "
                             "file system, or meet at an address (HOST:PORT) or in etcd"));
}

}  // namespace

std::shared_ptr<Store> serve_tcp_store(StoreSocket socket) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(socket.place.port);
  options.isServer = true;
  options.waitWorkers = false;
  // The server closes it. In a child of fork() it would keep the port taken.
  const int listener = socket.file.release();
  options.masterListenFd = listener;
  struct Served {
    std::shared_ptr<Store> store;
    ClosedInChildren listener;
  };
  const auto served = std::make_shared<Served>(
      open_tcp_store(socket.place, options, "cannot be served"), ClosedInChildren(listener));
  return {served, served->store.get()};
}

std::shared_ptr<Store> connect_tcp_store(const StorePlace& place, milliseconds limit) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.port);
  options.waitWorkers = false;
  options.timeout = as_c10d_takes(limit);
  return open_tcp_store(
      place, options,
      concat("does not answer within ", shortest(static_cast<double>(limit.count()) / 1000.0),
             " s: check that a process of this run has started on ", place.host,
             ", that the port is right, and that no firewall is between"));
}

std::shared_ptr<Store> open_file_store(const std::string& path, const LockFunction& lock) {
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  const std::string where = concat("the store ", path);
  const std::string advice =
      concat("check that ", folder.string(), " is a folder that all machines share and that this ",
             "user may write");
  // c10d waits for minutes for a folder that does not exist.
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    throw meeting_error(concat(where, " cannot be written: ", advice));
  }
  check_locks(path, where, lock);
  try {
    // The last of a known number of processes would remove the file, but none does where the last
    // two go at once.
    constexpr int kUnknownNumber = -1;
    return std::make_shared<C10dStore>(c10::make_intrusive<c10d::FileStore>(path, kUnknownNumber),
                                       where, advice);
  } catch (const std::exception& error) {
    throw meeting_error(concat(where, " cannot be opened (", reason_of(error), "): ", advice));
  }
}

}  // namespace gossamer
