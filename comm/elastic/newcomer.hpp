#pragma once
// The rules by which a process joins a run. Like Agreement, it is told what happens, and returns
// what to do. When it returns Adopt, the process is a member: an Agreement takes its place, which
// loses the members whose connection has ended, and then welcomes asking().
//
// Protocol: look at the store, ask a member, and wait for an epoch that has this process. If the
// connection with that member ends, look again: the epoch may be there, or another member is asked.
//
// Thread safety: one thread.

#include <cstddef>
#include <ostream>
#include <set>
#include <string>

#include "comm/elastic/agreement.hpp"

namespace gossamer::membership {

class Newcomer {
 public:
  /// `first`: the place of the member that it asks first, so that many processes spread out.
  explicit Newcomer(std::string address, std::size_t first = 0);

  [[nodiscard]] Actions begin() const { return {Look{}}; }
  /// The store has `latest`.
  [[nodiscard]] Actions find(const Epoch& latest);
  /// The connection with a process has ended.
  [[nodiscard]] Actions lose(const std::string& address);
  /// A member counts this process already.
  [[nodiscard]] static Actions hear(const Report& report) { return {Ask{report.from.address}}; }
  /// A member tells an epoch.
  [[nodiscard]] Actions learn(const Epoch& epoch) const;
  /// Another process takes this process for a member, and asks to join.
  void welcome(const std::string& newcomer) { asking_.insert(newcomer); }

  [[nodiscard]] const std::set<std::string>& asking() const { return asking_; }
  /// Writes all that it knows, for logs.
  friend std::ostream& operator<<(std::ostream& out, const Newcomer& newcomer);

 private:
  std::string address_;
  std::size_t first_;
  std::string asked_;
  std::set<std::string> lost_;
  std::set<std::string> asking_;
};

}  // namespace gossamer::membership
