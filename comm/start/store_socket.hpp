#pragma once
// The socket at which a process serves a store to the ranks of a run (c10d_store.hpp). It exists
// before the store does, so the process that starts ranks knows the port before it has any thread.
//
// Thread safety: as any object's. Errors: CommError.

#include <chrono>
#include <optional>
#include <string>

#include "base/file_descriptor.hpp"

namespace gossamer {

/// Where a store is.
struct StorePlace {
  std::string host;
  int port = 0;
};

/// `HOST:PORT`, or `[HOST]:PORT` for an address of IPv6.
std::string to_string(const StorePlace& place);

/// A socket that listens.
struct StoreSocket {
  FileDescriptor file;
  /// Where clients find it; the port is the real one.
  StorePlace place;
};

/// Waits until this machine knows the host's name, and at most until `limit` has passed. The names
/// of hosts that have just started come late where a cluster gives them out. Returns whether the
/// name is known.
bool wait_for_name(const std::string& host, std::chrono::milliseconds limit);

/// Listens at `place`, for the port 0 at any free port. Listens at the address of the host alone.
/// Where this machine takes its own name for its loopback address, listens at all addresses, since
/// other machines look elsewhere. Nothing: the host is another machine, or a process listens there
/// already. Throws CommError when the name is unknown or the system refuses.
std::optional<StoreSocket> listen_at(const StorePlace& place);

/// Has the kernel end this process's connections with `port` when the host there has been silent
/// for `limit`, and for 10 seconds at most. For clients of a store that keep their sockets to
/// themselves. Without a limit a call would wait for 15 minutes for a host that has vanished.
void limit_silence(int port, std::chrono::milliseconds limit);

/// True for `localhost` and addresses that only this machine reaches.
bool is_loopback(const std::string& host);
/// True if this machine takes the name for a loopback address, as many do with their own.
bool leads_to_loopback(const std::string& host);

/// The address of this machine that messages to other networks leave from; empty if no network
/// leads there.
std::string outward_address();

}  // namespace gossamer
