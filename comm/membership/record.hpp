#pragma once
// The record of a run's epoch in a Store.
//
// Protocol: begin() on all members of the first epoch. Then look() and propose(), which no member
// needs while nobody dies and nobody joins. The store may lose its memory in between: whoever
// proposes puts the record back. A member of an earlier epoch that did so could begin a second line
// of epochs. It cannot, because it needs reports of more than half of that epoch's members, and
// more than half of these have gone on. So a store that has forgotten is refused where the quorum
// is a number (Quorum::least).
//
// The record carries an HMAC-SHA256 of its key and its text, made with the run's secret. Whoever
// changes the store without the secret can stop a run, and put an earlier record back, but can name
// no member.
//
// Errors: CommError when the store cannot be reached, when the record is not signed, and when it is
// older than the caller's. Thread safety: as the Store's.

#include <chrono>
#include <memory>
#include <string>

#include "comm/membership/agreement.hpp"
#include "comm/store.hpp"

namespace gossamer::membership {

class EpochRecord {
 public:
  /// `run` tells runs apart that use one store. `secret` is shared by all members; empty: records
  /// are not signed.
  EpochRecord(std::shared_ptr<Store> store, const std::string& run, std::string secret,
              Quorum quorum);

  /// Puts the first epoch into the store unless a member has done so. All members give the same.
  Epoch begin(const Epoch& first);
  /// The epoch that is in the store. Waits up to `limit` for one.
  Epoch look(std::chrono::milliseconds limit);
  /// The epoch that is in the store after this attempt.
  Epoch propose(const Propose& proposal);

 private:
  [[nodiscard]] std::string written(const Epoch& epoch) const;
  [[nodiscard]] Epoch read(const std::string& record) const;

  std::shared_ptr<Store> store_;
  std::string key_;
  std::string secret_;
  Quorum quorum_;
};

}  // namespace gossamer::membership
