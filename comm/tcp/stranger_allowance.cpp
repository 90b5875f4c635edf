#include "comm/tcp/stranger_allowance.hpp"

#include <algorithm>

namespace gossamer::tcp {

bool StrangerAllowance::take(const std::string& address, Time now) {
  if (accounts_.size() >= kMaxAccounts && now - last_look_ >= kLookPause) forget_full(now);
  const bool is_known = accounts_.contains(address);
  Account& account = accounts_[is_known || accounts_.size() < kMaxAccounts ? address : ""];
  refill(account, now);
  if (account.left < 1.0) {
    num_refused_ = std::min(num_refused_ + 1, kFewRefusals);
    return false;
  }
  account.left -= 1.0;
  num_refused_ = 0;
  return true;
}

void StrangerAllowance::give_back(const std::string& address) {
  const auto found = accounts_.find(address);
  if (found != accounts_.end()) found->second.left = std::min(found->second.left + 1.0, kAtOnce);
}

void StrangerAllowance::forget_full(Time now) {
  last_look_ = now;
  for (auto& [address, account] : accounts_) refill(account, now);
  std::erase_if(accounts_, [](const auto& entry) { return entry.second.left >= kAtOnce; });
}

void StrangerAllowance::refill(Account& account, Time now) {
  if (account.last != Time()) {
    const double passed_s = std::chrono::duration<double>(now - account.last).count();
    account.left = std::min(account.left + kPerSecond * passed_s, kAtOnce);
  }
  account.last = now;
}

}  // namespace gossamer::tcp
