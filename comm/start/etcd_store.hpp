#pragma once
// A store in etcd, for runs that must not have a single point of failure. Of three members of etcd
// one may be gone, and a restarted member still has its records.
//
// Protocol: as Store's, over the JSON gateway of etcd 3.4 and newer. The keys stand below
// `gossamer/`, and stay in etcd until remove_from_etcd(). A request goes to one member, and if that
// member does not answer to the next member, until the time is over. Reads and changes are
// linearizable (etcd's default), so all members give the same answer. The certificate of an
// https:// address must be one that the system trusts. A name and a password in an address go along
// as HTTP's basic authentication. Proxies of the environment are not used.
//
// Thread safety: as Store's. Errors: CommError, and ConfigError where the program was built without
// libcurl.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/store.hpp"

namespace gossamer {

/// A client of the members at `addresses` (etcd_address.hpp). It connects when it is asked. set()
/// and compare_and_set() try for `patience`. `while_waiting` is called between two attempts, and
/// may throw.
std::shared_ptr<Store> open_etcd_store(const std::vector<std::string>& addresses,
                                       std::chrono::milliseconds patience,
                                       const std::function<void()>& while_waiting = {});

/// Removes all keys of a run (MeetingOptions::run). Tries for `patience`.
void remove_from_etcd(const std::vector<std::string>& addresses, const std::string& run,
                      std::chrono::milliseconds patience);

}  // namespace gossamer
