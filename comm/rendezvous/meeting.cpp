#include "comm/rendezvous/meeting.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr OpLabel kLabel = {.what = "start"};

Clock::time_point end_of(const MeetingOptions& options) {
  return Clock::now() + milliseconds(static_cast<std::int64_t>(1e3 * options.timeout_s));
}

std::string record_key(const MeetingOptions& options, int rank) {
  return concat(options.run, "/record/", rank);
}

std::string name_of_record(const MeetingOptions& options, int rank) {
  return concat("record ", record_key(options, rank));
}

std::string verified(const MeetingOptions& options, int rank, std::string_view record) {
  if (auto text = opened(options.secret, name_of_record(options, rank), record)) return *text;
  throw CommError({.peers = {rank}, .label = kLabel},
                  concat("the record that stands in the store for that rank ",
                         why_not_opened(options.secret, name_of_record(options, rank), record)));
}

/// Whether `rank` now belongs to the process that calls itself `name`.
bool take(const MeetingOptions& options, int rank, const std::string& name) {
  return options.store->compare_and_set(concat(options.run, "/taken/", rank), "", name) == name;
}

/// As take_rank(), for a process that calls itself `name`. `before`: the rank that it had before
/// the connection with the store ended, or a negative number.
int take_rank_as(const MeetingOptions& options, const std::string& name, int before) {
  if (options.rank >= 0) {
    if (take(options, options.rank, name)) return options.rank;
    throw CommError({.peers = {options.rank}, .label = kLabel},
                    concat("another process of this run is rank ", options.rank,
                           " already; give every process its own --rank, or none; or the store has "
                           "the ranks of an earlier run of this name: ",
                           leftover_advice(options)));
  }
  if (before >= 0 && take(options, before, name)) return before;
  const std::int64_t ticket = options.store->draw_ticket(options.run + "/tickets");
  const auto first = static_cast<int>(std::max<std::int64_t>(ticket, 0) % options.size);
  for (int i = 0; i < options.size; ++i) {
    const int rank = (first + i) % options.size;
    if (take(options, rank, name)) return rank;
  }
  throw CommError({.label = kLabel},
                  concat("the run has ", options.size,
                         " ranks already; start as many processes as --world-size says; or the "
                         "store has the ranks of an earlier run of this name: ",
                         leftover_advice(options)));
}

/// A record that is no rank's is a better reason than the ranks that are missing. Looks at a
/// bounded number of records.
void check_some_records(const MeetingOptions& options, const std::vector<int>& missing) {
  constexpr milliseconds kShort{1'000};
  int most = 8;
  for (int rank = 0; rank < options.size && most > 0; ++rank) {
    if (std::ranges::binary_search(missing, rank)) continue;
    --most;
    verified(options, rank, options.store->get(record_key(options, rank), kShort));
  }
}

/// Waits until all ranks have left their records. Throws CommError when the time is over.
void await_records(const MeetingOptions& options, int rank, const Store::Keys& keys,
                   Clock::time_point end) {
  constexpr milliseconds kSlice{1'000};
  WaitingNotice notice(options);
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now());
    const auto limit = std::clamp<milliseconds>(left, milliseconds(0), kSlice);
    if (options.store->wait_for_all(keys, limit)) return;
    const bool is_over = Clock::now() >= end;
    if (!is_over && !notice.is_due()) continue;
    const std::vector<int> missing = missing_keys(*options.store, keys);
    if (missing.empty()) continue;
    if (!is_over) {
      notice.tell(missing);
      continue;
    }
    check_some_records(options, missing);
    throw_not_come(options, rank, missing);
  }
}

}  // namespace

std::string leftover_advice(const MeetingOptions& options) {
  return concat("give this run another --run-id",
                options.clean_up.empty() ? "" : concat(", or ", options.clean_up));
}

int take_rank(const MeetingOptions& options) {
  return take_rank_as(options, to_hex(random_bytes(16)), -1);
}

std::vector<std::string> exchange_records(const MeetingOptions& options, int rank,
                                          const std::string& record) {
  const auto end = end_of(options);
  options.store->set(record_key(options, rank),
                     sealed(options.secret, name_of_record(options, rank), record));
  const Store::Keys keys{.prefix = options.run + "/record/", .end = options.size};
  await_records(options, rank, keys, end);
  std::vector<std::string> records = options.store->get_all(keys);
  for (int other = 0; other < options.size; ++other) {
    std::string& found = records.at(static_cast<std::size_t>(other));
    found = verified(options, other, found);
  }
  return records;
}

Met meet_in_store(const MeetingOptions& options, const std::string& record) {
  constexpr milliseconds kPause{100};
  const auto end = end_of(options);
  const std::string name = to_hex(random_bytes(16));
  bool has_told = false;
  for (Met met{.rank = -1};; std::this_thread::sleep_for(kPause)) {
    try {
      met.rank = take_rank_as(options, name, met.rank);
      met.records = exchange_records(options, met.rank, record);
      return met;
    } catch (const StoreError& error) {
      // The name of an attempt is known in one store alone.
      if (options.has_attempts || Clock::now() >= end) throw;
      if (!std::exchange(has_told, true)) {
        options.logger.warning(concat(error.reason(), "; tries again"));
      }
    }
  }
}

std::vector<int> missing_keys(Store& store, const Store::Keys& keys) {
  int questions = 64;
  std::vector<int> missing;
  // Halves of the keys, the first one last.
  std::vector<Store::Keys> parts{keys};
  while (!parts.empty() && questions-- > 0) {
    const Store::Keys part = parts.back();
    parts.pop_back();
    if (part.first >= part.end || store.wait_for_all(part, milliseconds(0))) continue;
    if (part.end - part.first == 1) {
      missing.push_back(part.first);
      continue;
    }
    const int middle = part.first + (part.end - part.first) / 2;
    parts.push_back({part.prefix, middle, part.end});
    parts.push_back({part.prefix, part.first, middle});
  }
  return missing;
}

void throw_not_come(const MeetingOptions& options, int rank, const std::vector<int>& missing) {
  throw CommError({.rank = rank, .peers = missing, .label = kLabel},
                  concat("they have not come within ", shortest(options.timeout_s),
                         " s (comm.timeout_s); the run waits for ", options.size, " ranks"));
}

void WaitingNotice::tell(const std::vector<int>& missing) {
  constexpr std::size_t kMost = 16;
  const std::vector<int> first(
      missing.begin(),
      missing.begin() + static_cast<std::ptrdiff_t>(std::min(missing.size(), kMost)));
  options_.logger.info(concat("waits for ", missing.size() == 1 ? "rank " : "ranks ",
                              join(first, ", "), missing.size() > kMost ? ", ..." : "", " of ",
                              options_.size, ", which have not come yet"));
  next_ = Clock::now() + kLater;
}

}  // namespace gossamer
