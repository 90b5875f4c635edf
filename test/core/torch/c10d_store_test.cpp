// The contract of stores (comm/store.hpp), asked of LibTorch's, of etcd's and of the one for tests.

#include "core/torch/c10d_store.hpp"

#include "test/apps/folder.hpp"
#include "test/base/thrown.hpp"
#include "test/comm/start/etcd_server.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/rendezvous/memory_store.hpp"

namespace gossamer::store_test {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;
const StorePlace kAnywhere{"127.0.0.1", 0};

/// A store, and further ways to the same one.
struct Place {
  virtual ~Place() = default;
  virtual std::shared_ptr<Store> open() = 0;
};

class TcpPlace : public Place {
 public:
  TcpPlace() : server_(serve_tcp_store(listen())) {}
  std::shared_ptr<Store> open() override { return connect_tcp_store(place_, kPatience); }

 private:
  StoreSocket listen() {
    StoreSocket socket = listen_at(kAnywhere).value();
    place_ = socket.place;
    return socket;
  }
  StorePlace place_;
  std::shared_ptr<Store> server_;
};

class FilePlace : public Place {
 public:
  std::shared_ptr<Store> open() override { return open_file_store(folder_.file("store")); }

 private:
  Folder folder_;
};

/// Of the tests of the backend tcp.
class MemoryPlace : public Place {
 public:
  std::shared_ptr<Store> open() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
};

class EtcdPlace : public Place {
 public:
  std::shared_ptr<Store> open() override { return server_.open(); }

 private:
  EtcdServer server_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Place>()> make;
};

class Stores : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const bool is_etcd = std::string(GetParam().name) == "Etcd";
    if (is_etcd && !EtcdServer::missing().empty()) GTEST_SKIP() << EtcdServer::missing();
    place_ = GetParam().make();
    store_ = place_->open();
  }

  std::unique_ptr<Place> place_;
  std::shared_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(
    All, Stores,
    testing::Values(Kind{"Memory", [] { return std::make_unique<MemoryPlace>(); }},
                    Kind{"Tcp", [] { return std::make_unique<TcpPlace>(); }},
                    Kind{"File", [] { return std::make_unique<FilePlace>(); }},
                    Kind{"Etcd", [] { return std::make_unique<EtcdPlace>(); }}),
    [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(Stores, ShowAValueToAll) {
  const std::string zeros("a\0b\0\n\xff", 6);
  store_->set("zeros", zeros);
  EXPECT_EQ(store_->get("zeros", kPatience), zeros);
  EXPECT_EQ(place_->open()->get("zeros", kPatience), zeros);
  store_->set("zeros", "new");
  EXPECT_EQ(place_->open()->get("zeros", kPatience), "new");
  const std::string large(1 << 20, 'x');
  store_->set("large", large);
  EXPECT_EQ(place_->open()->get("large", kPatience), large);
}

TEST_P(Stores, WaitForAValue) {
  std::jthread later([this] {
    std::this_thread::sleep_for(100ms);
    place_->open()->set("late", "value");
  });
  EXPECT_EQ(store_->get("late", kPatience), "value");
  // For as long as a configuration can say.
  EXPECT_EQ(store_->get("late", 1'000'000'000s), "value");
}

TEST_P(Stores, WaitNoLongerThanTheyMay) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string what = what_of<CommError>([&] { store_->get("never", 200ms); });
  EXPECT_TRUE(contains(what, "nobody has set never")) << what;
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 200ms);
  EXPECT_NE(what_of<CommError>([&] { store_->get("never", 0ms); }), "");
  // It works on.
  store_->set("key", "value");
  EXPECT_EQ(store_->get("key", kPatience), "value");
}

TEST_P(Stores, ChangeAValueInOneStep) {
  EXPECT_EQ(store_->compare_and_set("key", "other", "new"), "");
  EXPECT_EQ(store_->compare_and_set("key", "same", "same"), "");
  EXPECT_THROW(store_->get("key", 1ms), CommError);
  EXPECT_EQ(store_->compare_and_set("key", "", "first"), "first");
  EXPECT_EQ(store_->compare_and_set("key", "", "second"), "first");
  EXPECT_EQ(store_->compare_and_set("key", "other", "second"), "first");
  EXPECT_EQ(store_->compare_and_set("key", "first", "first"), "first");
  const std::string zeros("\0\0", 2);
  EXPECT_EQ(store_->compare_and_set("key", "first", zeros), zeros);
  EXPECT_EQ(store_->compare_and_set("key", zeros, "last"), "last");
  EXPECT_EQ(place_->open()->get("key", kPatience), "last");
}

TEST_P(Stores, LetOneOfSeveralSucceed) {
  constexpr int kThreads = 4;
  for (int turn = 0; turn < 5; ++turn) {
    std::atomic<int> winners = 0;
    std::atomic<int> ready = 0;
    std::vector<std::string> seen(kThreads);
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
          const std::shared_ptr<Store> own = place_->open();
          const std::string mine = concat("thread ", i);
          for (++ready; ready < kThreads;) std::this_thread::yield();
          const auto place = static_cast<std::size_t>(i);
          seen[place] = own->compare_and_set(concat("race ", turn), "", mine);
          if (seen[place] == mine) ++winners;
        });
      }
    }
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(seen, std::vector<std::string>(kThreads, seen.front()));
  }
}

TEST(TcpStore, ListensAtOneAddressForOneProcess) {
  const std::optional<StoreSocket> first = listen_at(kAnywhere);
  ASSERT_TRUE(first);
  EXPECT_GT(first->place.port, 0);
  EXPECT_FALSE(listen_at(first->place));
  // Another loopback address of this machine is another place.
  EXPECT_TRUE(listen_at({"127.0.0.2", first->place.port}));
}

TEST(TcpStore, WaitsForTheNameOfAHost) {
  EXPECT_TRUE(wait_for_name("localhost", 0ms));
  EXPECT_TRUE(wait_for_name("127.0.0.1", 0ms));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(wait_for_name("no-such-host.invalid", 600ms));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 250ms);
}

TEST(TcpStore, IsServedByItsOwnMachineAlone) {
  // An address of documents (RFC 5737).
  EXPECT_FALSE(listen_at({"192.0.2.1", 0}));
  const std::string what = what_of<CommError>([] {
    (void)listen_at({"no-such-host.invalid", 29500});
  });
  EXPECT_TRUE(contains(what, "does not know the host no-such-host.invalid")) << what;
}

TEST(TcpStore, SaysWhereNobodyAnswers) {
  StorePlace place;
  { place = listen_at(kAnywhere).value().place; }
  const std::string what = what_of<CommError>([&] { connect_tcp_store(place, 300ms); });
  EXPECT_TRUE(contains(what, concat("127.0.0.1:", place.port, " does not answer within 0.3 s")))
      << what;
  EXPECT_TRUE(contains(what, "firewall")) << what;
}

TEST(TcpStore, SaysThatItsServerHasEnded) {
  StoreSocket socket = listen_at(kAnywhere).value();
  const StorePlace place = socket.place;
  std::shared_ptr<Store> server = serve_tcp_store(std::move(socket));
  const std::shared_ptr<Store> client = connect_tcp_store(place, kPatience);
  server.reset();
  const std::string what = what_of<CommError>([&] { client->get("key", kPatience); });
  EXPECT_TRUE(contains(what, concat("127.0.0.1:", place.port, " cannot be reached"))) << what;
}

TEST(TcpStore, IsFoundAgainWhenItsServerIsBack) {
  StoreSocket socket = listen_at(kAnywhere).value();
  const StorePlace place = socket.place;
  std::shared_ptr<Store> server = serve_tcp_store(std::move(socket));
  const std::shared_ptr<Store> client = connect_tcp_store(place, kPatience);
  client->set("key", "value");
  server.reset();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(client->compare_and_set("key", "value", "next"), CommError);
  }
  server = serve_tcp_store(listen_at(place).value());
  // It has forgotten.
  EXPECT_EQ(client->compare_and_set("key", "value", "next"), "");
  client->set("key", "other");
  EXPECT_EQ(server->get("key", kPatience), "other");
}

/// Has nothing arrive any more at the clients of the store at `place`, as if its host had vanished.
void silence(const StorePlace& place) {
  std::array<sock_filter, 1> nothing = {{{BPF_RET | BPF_K, 0, 0, 0}}};
  const sock_fprog program{static_cast<unsigned short>(nothing.size()), nothing.data()};
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (!parse_whole(entry.path().filename().string(), fd)) continue;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (ntohs(peer.sin_port) != place.port) continue;
    EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST(TcpStore, IsGivenUpWhenItsHostHasVanished) {
  StoreSocket socket = listen_at(kAnywhere).value();
  const StorePlace place = socket.place;
  const std::shared_ptr<Store> server = serve_tcp_store(std::move(socket));
  const std::shared_ptr<Store> client = connect_tcp_store(place, 2s);
  client->set("key", "value");
  silence(place);
  EXPECT_THROW(client->compare_and_set("key", "value", "next"), StoreError);
}

TEST(TcpStore, IsGivenUpWhenItsHostVanishesDuringAWait) {
  StoreSocket socket = listen_at(kAnywhere).value();
  const StorePlace place = socket.place;
  const std::shared_ptr<Store> server = serve_tcp_store(std::move(socket));
  const std::shared_ptr<Store> client = connect_tcp_store(place, 2s);
  std::jthread later([&place] {
    std::this_thread::sleep_for(100ms);
    silence(place);
  });
  EXPECT_THROW(client->wait_for_all({"never", 0, 1}, kPatience), StoreError);
}

TEST(FileStore, SaysWhatItHasWaitedFor) {
  const Folder folder;
  const std::string path = folder.file("store");
  const std::string what = what_of<CommError>([&] { open_file_store(path)->get("key", 200ms); });
  EXPECT_TRUE(contains(what, concat("nobody has set key in the store ", path, " within 0.2 s")))
      << what;
}

TEST(FileStore, WantsAFolder) {
  const std::string what = what_of<CommError>([] { open_file_store("/no/such/folder/store"); });
  EXPECT_TRUE(contains(what, "/no/such/folder is a folder")) << what;
}

TEST(FileStore, SaysThatAFileSystemHasNoLocks) {
  const Folder folder;
  const auto none = [](int, int) {
    errno = ENOLCK;
    return -1;
  };
  const std::string what = what_of<CommError>([&] { open_file_store(folder.file("store"), none); });
  EXPECT_TRUE(contains(what, "its file system has no locks (No locks available)")) << what;
  EXPECT_TRUE(contains(what, "meet at an address (HOST:PORT) or in etcd")) << what;
}

TEST(FileStore, LeavesItsFileToTheUser) {
  const Folder folder;
  const std::string path = folder.file("store");
  open_file_store(path)->set("key", "value");
  std::shared_ptr<Store> store = open_file_store(path);
  EXPECT_EQ(store->get("key", kPatience), "value");
  // A file that is gone stays so.
  ASSERT_TRUE(std::filesystem::remove(path));
  store.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Loopback, IsWhatOnlyThisMachineReaches) {
  for (const char* const host : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* const host : {"10.0.0.1", "::", "n1", "128.0.0.1", ""}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
  EXPECT_TRUE(leads_to_loopback("localhost"));
  EXPECT_FALSE(leads_to_loopback("192.0.2.1"));
  EXPECT_FALSE(leads_to_loopback("no-such-host.invalid"));
  EXPECT_EQ(to_string(StorePlace{"::1", 5}), "[::1]:5");
  EXPECT_EQ(to_string(StorePlace{"n1", 5}), "n1:5");
}

}  // namespace
}  // namespace gossamer::store_test
