#include "comm/meeting.hpp"

#include <algorithm>
#include <string_view>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr OpLabel kLabel = {.what = "start"};
/// For records that should be there already.
constexpr milliseconds kShortLimit{50};

std::string record_key(const MeetingOptions& options, int rank) {
  return concat(options.run, "/record/", rank);
}

std::string name_of_record(const MeetingOptions& options, int rank) {
  return concat("record ", record_key(options, rank));
}

std::string verified(const MeetingOptions& options, int rank, std::string_view record) {
  if (auto text = opened(options.secret, name_of_record(options, rank), record)) return *text;
  throw CommError({.peers = {rank}, .label = kLabel},
                  "the record that stands in the store for that rank is not signed with this "
                  "rank's secret; give all ranks the same GOSSAMER_SECRET");
}

/// Whether `rank` now belongs to the process that calls itself `name`.
bool take(const MeetingOptions& options, int rank, const std::string& name) {
  return options.store->compare_and_set(concat(options.run, "/taken/", rank), "", name) == name;
}

/// The record of a rank, or an empty text when it does not come in time; `why` then has the reason.
std::string find_record(const MeetingOptions& options, int rank, milliseconds limit,
                        std::string& why) {
  try {
    return options.store->get(record_key(options, rank), limit);
  } catch (const CommError& error) {
    why = error.reason();
    return "";
  }
}

}  // namespace

int take_rank(const MeetingOptions& options) {
  const std::string name = to_hex(random_bytes(16));
  if (options.rank >= 0) {
    if (take(options, options.rank, name)) return options.rank;
    throw CommError({.peers = {options.rank}, .label = kLabel},
                    concat("another process of this run is rank ", options.rank,
                           " already; give every process its own --rank, or none"));
  }
  for (int rank = 0; rank < options.size; ++rank) {
    if (take(options, rank, name)) return rank;
  }
  throw CommError({.label = kLabel},
                  concat("the run has ", options.size,
                         " ranks already; start as many processes as --world-size says"));
}

std::vector<std::string> exchange_records(const MeetingOptions& options, int rank,
                                          const std::string& record) {
  options.store->set(record_key(options, rank),
                     sealed(options.secret, name_of_record(options, rank), record));
  const auto end = Clock::now() + milliseconds(static_cast<std::int64_t>(1e3 * options.timeout_s));
  std::vector<std::string> records;
  std::vector<int> missing;
  std::string why;
  for (int other = 0; other < options.size; ++other) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    const std::string found = find_record(options, other, std::max(left, kShortLimit), why);
    if (found.empty()) {
      missing.push_back(other);
      records.emplace_back();
    } else {
      records.push_back(verified(options, other, found));
    }
  }
  if (missing.empty()) return records;
  throw CommError({.rank = rank, .peers = missing, .label = kLabel},
                  concat("they have not come within ", shortest(options.timeout_s),
                         " s (comm.timeout_s); the run waits for ", options.size,
                         " ranks (the store: ", why, ")"));
}

}  // namespace gossamer
