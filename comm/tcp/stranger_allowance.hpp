#pragma once
// How many connections an address may begin that come to nothing: so many at once, and then so many
// a second. A connection that introduces itself rightly costs nothing in the end, so ranks are
// never short of it.
//
// Thread safety: one thread.

#include <chrono>
#include <cstddef>
#include <map>
#include <string>

namespace gossamer::tcp {

class StrangerAllowance {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// The connections that one address may begin at once, and per second. The ranks of one host may
  /// begin some hundred at a time.
  static constexpr double kAtOnce = 1024.0;
  static constexpr double kPerSecond = 20.0;

  /// Whether a connection from `address` may introduce itself.
  bool take(const std::string& address, Time now);
  /// A connection from `address` has introduced itself.
  void give_back(const std::string& address);
  /// The last connections were refused.
  [[nodiscard]] bool is_flooded() const { return num_refused_ >= kFewRefusals; }

 private:
  struct Account {
    double left = kAtOnce;
    Time last = {};
  };
  void forget_full(Time now);
  static void refill(Account& account, Time now);

  static constexpr int kFewRefusals = 16;
  /// Strangers may have many addresses; beyond these they share an account.
  static constexpr std::size_t kMaxAccounts = 4096;

  static constexpr auto kLookPause = std::chrono::seconds(1);

  std::map<std::string, Account> accounts_;
  /// When it has last looked for accounts that need not be remembered.
  Time last_look_ = {};
  /// The number of strangers that were refused in a row.
  int num_refused_ = 0;
};

}  // namespace gossamer::tcp
