// What etcd's store has beside the contract of stores, which test/core/torch/c10d_store_test.cpp
// asks of all kinds.

#include "comm/start/etcd_store.hpp"

#include "test/base/thrown.hpp"
#include "test/comm/start/etcd_server.hpp"

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/start/etcd_address.hpp"

namespace gossamer::etcd_test {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 60s;
/// Nobody listens there.
const std::string kNobody = "http://127.0.0.1:1";

class EtcdStores : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = EtcdServer::missing(); !reason.empty()) GTEST_SKIP() << reason;
    server_ = std::make_unique<EtcdServer>();
  }

  std::unique_ptr<EtcdServer> server_;
};

TEST_F(EtcdStores, GoOnWithAnotherMember) {
  const auto store = open_etcd_store({kNobody, server_->address()}, 0ms);
  store->set("key", "value");
  EXPECT_EQ(store->get("key", 0ms), "value");
  EXPECT_EQ(store->compare_and_set("key", "value", "next"), "next");
}

TEST_F(EtcdStores, WaitForOneThatComesBackAndKnowsWhatItKnew) {
  const auto store = server_->open();
  store->set("key", "value");
  server_->kill();
  auto change = std::async(std::launch::async,
                           [&] { return store->compare_and_set("key", "value", "next"); });
  std::this_thread::sleep_for(300ms);
  server_->start();
  EXPECT_EQ(change.get(), "next");
  server_->kill();
  auto value = std::async(std::launch::async, [&] { return store->get("key", kPatience); });
  server_->start();
  EXPECT_EQ(value.get(), "next");
}

TEST_F(EtcdStores, TakeAChangeForMadeWhoseAnswerWasLost) {
  const auto store = server_->open();
  EXPECT_EQ(store->compare_and_set("key", "", "first"), "first");
  EXPECT_EQ(store->compare_and_set("key", "", "first"), "first");
  EXPECT_EQ(store->compare_and_set("key", "first", "second"), "second");
  EXPECT_EQ(store->compare_and_set("key", "first", "second"), "second");
}

TEST_F(EtcdStores, CallWhileTheyWait) {
  struct Enough {};
  int calls = 0;
  const auto store = open_etcd_store({server_->address()}, kPatience, [&calls] {
    if (++calls == 2) throw Enough{};
  });
  EXPECT_THROW(store->get("never", kPatience), Enough);
  server_->kill();
  calls = 0;
  EXPECT_THROW(store->set("key", "value"), Enough);
}

TEST_F(EtcdStores, AreClearedOfOneRunAlone) {
  const auto store = server_->open();
  for (const char* const key : {"run/taken/0", "run/epoch", "run2/epoch", "run-2/epoch", "run"}) {
    store->set(key, "value");
  }
  remove_from_etcd({server_->address()}, "run", kPatience);
  for (const char* const key : {"run/taken/0", "run/epoch"}) {
    EXPECT_EQ(store->compare_and_set(key, "other", "new"), "") << key;
  }
  for (const char* const key : {"run2/epoch", "run-2/epoch", "run"}) {
    EXPECT_EQ(store->get(key, 0ms), "value") << key;
  }
}

TEST_F(EtcdStores, SayWhatIsNoStoreOfClients) {
  const auto store = open_etcd_store({server_->peer_address()}, kPatience);
  const std::string what = what_of<CommError>([&] { store->set("key", "value"); });
  EXPECT_CONTAINS(what, "status 404, which is no answer of etcd");
  const std::string large(2'000'000, 'x');
  const std::string too_large = what_of<CommError>([&] { server_->open()->set("key", large); });
  EXPECT_CONTAINS(too_large, "request is too large");
}

TEST(EtcdStore, SaysWhoDoesNotAnswerWithoutThePassword) {
  if (const std::string reason = EtcdServer::missing(); !reason.empty()) GTEST_SKIP() << reason;
  const auto store = open_etcd_store({"http://name:word@127.0.0.1:1", "http://[::1]:1"}, 100ms);
  const std::string what = what_of<CommError>([&] { store->set("key", "value"); });
  EXPECT_CONTAINS(what, "etcd at http://127.0.0.1:1,http://[::1]:1 cannot be reached");
  EXPECT_FALSE(contains(what, "word")) << what;
}

TEST(EtcdAddress, IsOneOfAList) {
  const auto read = [](const std::string& text) { return read_etcd_addresses(text, "w", "k"); };
  using List = std::vector<std::string>;
  EXPECT_EQ(read("http://n1:2379"), List{"http://n1:2379"});
  EXPECT_EQ(read("https://a:b@n1/,http://[fe80::1]:5"),
            (List{"https://a:b@n1", "http://[fe80::1]:5"}));
  for (const char* const text : {"", ",", "n1:2379", "http://", "http://:5", "ftp://n1",
                                 "http://n1,,http://n2", "http://n1/path", "http://a:b@"}) {
    const std::string what = what_of<ConfigError>([&] { read(text); });
    EXPECT_CONTAINS(what, "allowed: etcd: and the addresses") << text << ": " << what;
  }
  const std::string what = what_of<ConfigError>([&] { read("http://name:word@n1/path"); });
  EXPECT_CONTAINS(what, "w: k: is etcd:http://n1/path, allowed");
}

}  // namespace
}  // namespace gossamer::etcd_test
