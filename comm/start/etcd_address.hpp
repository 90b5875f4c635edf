#pragma once
// The addresses of etcd's members, as options and variables have them:
// `http://host1:2379,https://host2:2379`. They may hold a password for a proxy in front of etcd
// (`http://name:password@host`), and no message repeats it.
//
// Thread safe. Errors: ConfigError.

#include <string>
#include <string_view>
#include <vector>

namespace gossamer {

/// Reads the list. A ConfigError for an invalid text names `where` and `key`.
std::vector<std::string> read_etcd_addresses(const std::string& text, std::string_view where,
                                             std::string_view key);

/// An address, or a list of them, for messages: nothing stands in front of the host that could be a
/// password.
std::string without_password(const std::string& address);

}  // namespace gossamer
