#include "apps/train/start_store.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/backends.hpp"
#include "comm/rendezvous/run_name.hpp"
#include "comm/start/store_use.hpp"
#include "core/torch/c10d_store.hpp"

namespace gossamer::apps {
namespace {

using std::chrono::milliseconds;

/// So long a wait needs no explanation.
constexpr auto kQuietTime = std::chrono::seconds(10);

/// Runs the body in the world of tcp. `serves`: other ranks need this process for the store.
int launch_met(const Start& start, LaunchOptions options, bool serves, const RankBody& body) {
  options.meeting = start.meeting;
  options.fault.joins = start.joins;
  return launch("tcp", options, [&](Communicator& communicator, const World& world) {
    if (communicator.is_elastic() && serves) {
      Logger(LogLevel::kWarning, concat("rank ", world.rank))
          .warning(concat("this process serves the place where ranks meet: if it dies, the next "
                          "death ends the run. To prevent it, start gossamer rendezvous ",
                          to_string(start.place),
                          " before the ranks, or meet in etcd or in a folder"));
    }
    // Ranks that may be lost need the store as long as they run.
    if (!communicator.is_elastic()) end_meeting(start, world.rank, serves);
    const int code = body(communicator, world);
    if (communicator.is_elastic() && world.rank == 0) remove_store(start);
    return code;
  });
}

}  // namespace

int launch_as(Start start, const LaunchConfig& config, const RankBody& body) {
  if (!start.is_rank) return launch(config.backend, config.options, body);
  bool serves = false;
  try {
    start.meeting.logger =
        Logger(config.options.log_level,
               start.meeting.rank < 0 ? "" : concat("rank ", start.meeting.rank));
    serves = open_store(start);
    name_attempt(start.meeting);
    return launch_met(start, config.options, serves, body);
  } catch (const std::exception& error) {
    const int rank = start.meeting.rank;
    Logger(LogLevel::kError, rank < 0 ? "" : concat("rank ", rank)).error(error.what());
    // Ranks that have come a little later wait a little longer, and then say who is missing.
    if (serves) wait_until_all_met(start.meeting, kFarewell);
    return static_cast<int>(exit_code_of(error));
  }
}

bool open_store(Start& start) {
  MeetingOptions& meeting = start.meeting;
  if (start.is_alone()) return false;
  complete(start);
  if (meeting.store) return false;
  if (start.store == StoreKind::kFile) {
    meeting.store = open_file_store(store_file(start));
    return false;
  }
  std::optional<StoreSocket> socket =
      start.may_serve ? listen_at(start.place) : std::optional<StoreSocket>();
  if (socket) {
    meeting.store = serve_tcp_store(std::move(*socket));
    return true;
  }
  const auto limit = milliseconds(static_cast<std::int64_t>(meeting.timeout_s * 1000.0));
  const auto quiet = std::min<milliseconds>(limit, kQuietTime);
  try {
    meeting.store = connect_tcp_store(start.place, quiet);
  } catch (const CommError&) {
    if (quiet == limit) throw;
    meeting.logger.info(concat("waits for the process that serves the store at ",
                               to_string(start.place), ", which has not started yet"));
    meeting.store = connect_tcp_store(start.place, limit);
  }
  return false;
}

}  // namespace gossamer::apps
