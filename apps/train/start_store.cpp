#include "apps/train/start_store.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/launch.hpp"
#include "core/torch/c10d_store.hpp"

namespace gossamer::apps {
namespace {

using std::chrono::milliseconds;

// For ranks that are slow, not for ranks that are lost.
constexpr auto kFarewell = std::chrono::seconds(10);
// For names that a cluster is about to give out, and not so long that a wrong one goes unnoticed.
constexpr auto kNameless = std::chrono::seconds(30);

std::string key_of(const MeetingOptions& meeting, int rank) {
  return concat(meeting.run, "/met/", rank);
}

std::string file_of(const Start& start) {
  return concat(start.folder, "/gossamer-", start.meeting.run);
}

/// Runs the body in the world of tcp. `serves`: other ranks need this process for the store.
int launch_met(const Start& start, LaunchOptions options, bool serves, const RankBody& body) {
  options.meeting = start.meeting;
  return launch("tcp", options, [&](Communicator& communicator, const World& world) {
    say_met(start.meeting, world.rank);
    // This rank's world exists. Others may still be reading.
    const bool removes = !start.folder.empty() && world.rank == 0;
    if ((serves || removes) && wait_until_all_met(start.meeting, kFarewell) && removes) {
      std::error_code in_vain;
      std::filesystem::remove(file_of(start), in_vain);
    }
    return body(communicator, world);
  });
}

}  // namespace

int launch_as(Start start, const LaunchConfig& config, const RankBody& body) {
  if (!start.is_rank) return launch(config.backend, config.options, body);
  bool serves = false;
  try {
    serves = open_store(start);
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
  if (meeting.size == 1) return false;
  const auto limit = milliseconds(static_cast<std::int64_t>(meeting.timeout_s * 1000.0));
  // listen_at() says what is wrong with a name that stays unknown.
  if (start.folder.empty())
    wait_for_name(start.place.host, std::min<milliseconds>(limit, kNameless));
  // The way to the store shows which address others reach. A file shows none, and neither does a
  // store on this machine whose name stands for the loopback address here.
  const bool is_local = !meeting.store_host.empty() && leads_to_loopback(meeting.store_host);
  if (meeting.interface.empty() && (is_local || !start.folder.empty())) {
    meeting.interface = outward_address();
  }
  if (!start.folder.empty()) {
    meeting.store = open_file_store(file_of(start));
    return false;
  }
  std::optional<StoreSocket> socket =
      start.may_serve ? listen_at(start.place) : std::optional<StoreSocket>();
  if (socket) {
    meeting.store = serve_tcp_store(std::move(*socket));
    return true;
  }
  meeting.store = connect_tcp_store(start.place, limit);
  return false;
}

void say_met(const MeetingOptions& meeting, int rank) {
  if (!meeting.store) return;
  try {
    meeting.store->set(key_of(meeting, rank), "yes");
  } catch (const CommError&) {
    // A server that has ended waits for nobody, and the backend says why it has.
  }
}

bool wait_until_all_met(const MeetingOptions& meeting, milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  try {
    for (int rank = 0; rank < meeting.size; ++rank) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
      meeting.store->get(key_of(meeting, rank), std::max(left, milliseconds(0)));
    }
    return true;
  } catch (const CommError&) {
    return false;
  }
}

}  // namespace gossamer::apps
