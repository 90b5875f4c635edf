#pragma once
// The record of a run's epoch in a Store.
//
// Protocol: begin() on all members of the first epoch. Then look() and propose(), which no member
// needs while no process dies or joins. So the store may be away in between, but it must keep
// its memory: a proposal that is late could otherwise begin a second line of epochs. A store that
// has forgotten is refused.
//
// The record carries an HMAC-SHA256 of its key and its text, made with the run's secret. An
// attacker who changes the store without the secret can name no member, but can put an old record
// back. That stops the run, or under bad luck begins a second line of epochs.
//
// Errors: CommError when the store cannot be reached or has no record yet. RecordError when the
// record is lost or not signed, and when it is older than a proposal's epoch: asking again is vain.
// Thread safety: as the Store's.

#include <chrono>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "comm/elastic/agreement.hpp"
#include "comm/store.hpp"

namespace gossamer::membership {

class RecordError : public CommError {
 public:
  using CommError::CommError;
};

class EpochRecord {
 public:
  /// `run` tells runs apart that use one store. `secret` is shared by all members; empty: records
  /// are not signed.
  EpochRecord(std::shared_ptr<Store> store, const std::string& run, std::string secret);

  /// Puts the first epoch into the store unless a member has done so, and returns the latest. All
  /// members give the same.
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
};

}  // namespace gossamer::membership
