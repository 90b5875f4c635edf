#include "comm/start/store_use.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/start/etcd_store.hpp"
#include "comm/start/store_socket.hpp"

namespace gossamer {
namespace {

using std::chrono::milliseconds;

// For names that a cluster is about to give out, and for members of etcd that are about to start or
// elect. Not so long that a wrong address goes unnoticed.
constexpr auto kUnreachable = std::chrono::seconds(30);

std::string met_prefix(const MeetingOptions& meeting) { return concat(meeting.run, "/met/"); }

std::string clean_up_of(const Start& start) {
  switch (start.store) {
    case StoreKind::kServed:
      return concat("end the process that serves the store at ", to_string(start.place));
    case StoreKind::kFile:
      return concat("remove the file ", store_file(start));
    case StoreKind::kEtcd:
      return concat("remove the keys gossamer/", start.meeting.run, "/ from etcd");
    case StoreKind::kOwn:
      break;
  }
  return "";
}

}  // namespace

void complete(Start& start, const std::function<void()>& while_waiting) {
  MeetingOptions& meeting = start.meeting;
  if (start.is_alone()) return;
  const auto timeout = milliseconds(static_cast<std::int64_t>(meeting.timeout_s * 1000.0));
  const auto limit = std::min<milliseconds>(timeout, kUnreachable);
  const bool is_served = start.store == StoreKind::kServed;
  // listen_at() says what is wrong with a name that stays unknown.
  if (is_served) wait_for_name(start.place.host, limit);
  meeting.clean_up = clean_up_of(start);
  if (start.store == StoreKind::kEtcd) {
    meeting.store = open_etcd_store(start.etcd, limit, while_waiting);
  }
  // The way to a place shows which address others reach. Other stores show none, and neither does a
  // place on this machine whose name stands for the loopback address here.
  const bool is_local = !meeting.store_host.empty() && leads_to_loopback(meeting.store_host);
  if (meeting.interface.empty() && (is_local || !is_served)) meeting.interface = outward_address();
}

std::string store_file(const Start& start) {
  return concat(start.folder, "/gossamer-", start.meeting.run);
}

void remove_store(const Start& start) {
  if (start.store == StoreKind::kFile) {
    std::error_code in_vain;
    std::filesystem::remove(store_file(start), in_vain);
  }
  if (start.store != StoreKind::kEtcd) return;
  try {
    remove_from_etcd(start.etcd, start.meeting.run, kFarewell);
  } catch (const CommError&) {
    // The run has what it needs. A later run of this name says that it finds the keys.
  }
}

void say_met(const MeetingOptions& meeting, int rank) {
  try {
    meeting.store->set(concat(met_prefix(meeting), rank), "yes");
  } catch (const CommError&) {
    // A server that has ended waits for no rank, and the backend says why it has ended.
  }
}

bool wait_until_all_met(const MeetingOptions& meeting, milliseconds limit) {
  try {
    return meeting.store->wait_for_all({.prefix = met_prefix(meeting), .end = meeting.size}, limit);
  } catch (const CommError&) {
    return false;
  }
}

void end_meeting(const Start& start, int rank, bool serves) {
  if (!start.meeting.store) return;
  say_met(start.meeting, rank);
  // This rank's world exists. Others may still be reading.
  const bool removes =
      (start.store == StoreKind::kFile || start.store == StoreKind::kEtcd) && rank == 0;
  if ((serves || removes) && wait_until_all_met(start.meeting, kFarewell) && removes) {
    remove_store(start);
  }
}

}  // namespace gossamer
