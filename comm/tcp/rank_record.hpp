#pragma once
// The record by which a rank of the backend `tcp` introduces itself, in the store or over a mesh:
// its host, and the address where it listens.
//
// Thread safety: functions without state. Errors: CommError for texts that are no record.

#include <cstdint>
#include <string>
#include <vector>

#include "comm/options.hpp"
#include "comm/rendezvous/meeting.hpp"
#include "comm/tcp/asio.hpp"

namespace gossamer::tcp {

struct RankRecord {
  /// memory_domain() of its host.
  std::string host = {};
  asio::ip::tcp::endpoint endpoint = {};
  /// MemoryMark::text().
  std::string memory = {};
  /// The rank was dealt by arrival.
  bool is_dealt = false;

  [[nodiscard]] std::string text() const;
  static RankRecord of(const std::string& text, int rank);
};

/// Processes have the same text exactly if they run on one host, as far as sharing memory goes: one
/// boot of one kernel, and one view of processes and networks. One word.
std::string memory_domain();

/// A number for a name; different for different names.
std::uint64_t run_number(const std::string& run);

struct MetRanks {
  /// The records in the order of the ranks.
  std::vector<RankRecord> records;
  /// The place of this process among the records.
  int rank = 0;
};

/// Takes a rank, tells the others `own` in the store, and waits for them (meet_in_store()). Ranks
/// that were dealt by arrival are renumbered host by host, so that the ranks of a host are
/// consecutive, as topologies of nodes want it. Throws CommError, and ConfigError for addresses
/// that others may not reach, or cannot.
MetRanks meet_ranks(const MeetingOptions& meeting, const RankRecord& own);

/// Throws ConfigError unless only this machine may connect to a rank that asks for no secret.
void require_closed(const MeetingOptions& meeting, const asio::ip::address& address);

}  // namespace gossamer::tcp
