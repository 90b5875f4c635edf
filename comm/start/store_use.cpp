#include "comm/start/store_use.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/start/store_socket.hpp"

namespace gossamer {
namespace {

using std::chrono::milliseconds;

// For names that a cluster is about to give out, and not so long that a wrong one goes unnoticed.
constexpr auto kNameless = std::chrono::seconds(30);

std::string key_of(const MeetingOptions& meeting, int rank) {
  return concat(meeting.run, "/met/", rank);
}

}  // namespace

void complete(Start& start) {
  MeetingOptions& meeting = start.meeting;
  if (start.is_alone()) return;
  // listen_at() says what is wrong with a name that stays unknown.
  if (start.folder.empty() && !start.has_store) {
    const auto limit = milliseconds(static_cast<std::int64_t>(meeting.timeout_s * 1000.0));
    wait_for_name(start.place.host, std::min<milliseconds>(limit, kNameless));
  }
  // The way to the store shows which address others reach. A file shows none, and neither does a
  // store on this machine whose name stands for the loopback address here.
  const bool is_local = !meeting.store_host.empty() && leads_to_loopback(meeting.store_host);
  if (meeting.interface.empty() && (is_local || !start.folder.empty() || start.has_store)) {
    meeting.interface = outward_address();
  }
}

std::string store_file(const Start& start) {
  return concat(start.folder, "/gossamer-", start.meeting.run);
}

void remove_store(const Start& start) {
  if (start.folder.empty()) return;
  std::error_code in_vain;
  std::filesystem::remove(store_file(start), in_vain);
}

void say_met(const MeetingOptions& meeting, int rank) {
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

void end_meeting(const Start& start, int rank, bool serves) {
  if (!start.meeting.store) return;
  say_met(start.meeting, rank);
  // This rank's world exists. Others may still be reading.
  const bool removes = !start.folder.empty() && rank == 0;
  if ((serves || removes) && wait_until_all_met(start.meeting, kFarewell) && removes) {
    remove_store(start);
  }
}

}  // namespace gossamer
