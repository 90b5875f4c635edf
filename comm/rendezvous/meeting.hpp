#pragma once
// How processes that no launcher has connected find one another: each takes a rank, and leaves a
// record in a Store that says where it can be reached.
//
// Protocol: meet_in_store(). All ranks give the same size, run and secret. A record carries an
// HMAC-SHA256 of its key and its text, made with the run's secret. Without the secret no process
// can add a rank, or move a record to another rank or run, because both stand in the key. The
// number of questions to the store does not grow with the number of ranks, where the store answers
// for several keys at once. A rank that waits for long says for which ranks.
//
// Errors: CommError. It names the ranks that have not come, and records that carry no valid
// signature. Thread safety: as the Store's.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/options.hpp"
#include "comm/store.hpp"

namespace gossamer {

/// Advice for messages: how to remove the records of an earlier run.
std::string leftover_advice(const MeetingOptions& options);

/// The rank of this process: the given one, or the next that is free.
int take_rank(const MeetingOptions& options);

/// Leaves `record` for `rank`, and returns the records of all ranks, in rank order.
std::vector<std::string> exchange_records(const MeetingOptions& options, int rank,
                                          const std::string& record);

struct Met {
  int rank = 0;
  /// The announcements of all ranks, in rank order.
  std::vector<std::string> records = {};
};

/// take_rank() and exchange_records(). Begins anew when the connection with the store ends: it may
/// have been the store of an earlier meeting, which a process was about to close.
Met meet_in_store(const MeetingOptions& options, const std::string& record);

/// The keys among these that have no value; of many, the first ones that a bounded number of
/// questions finds.
std::vector<int> missing_keys(Store& store, const Store::Keys& keys);

/// `options` as seen by one that has waited for some ranks until the time was over.
[[noreturn]] void throw_not_come(const MeetingOptions& options, int rank,
                                 const std::vector<int>& missing);

/// Says now and then for whom a rank waits.
class WaitingNotice {
 public:
  explicit WaitingNotice(const MeetingOptions& options) : options_(options) {}
  /// Whether it is time to say so.
  [[nodiscard]] bool is_due() const { return std::chrono::steady_clock::now() >= next_; }
  void tell(const std::vector<int>& missing);

 private:
  static constexpr auto kFirst = std::chrono::seconds(10);
  static constexpr auto kLater = std::chrono::seconds(60);

  const MeetingOptions& options_;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kFirst;
};

}  // namespace gossamer
