#include "comm/start/etcd_address.hpp"

#include <sstream>

#include "base/error.hpp"
#include "base/text.hpp"

namespace gossamer {
namespace {

constexpr std::string_view kSchemeEnd = "://";

/// An address of HTTP with a host.
bool is_web_address(const std::string& address) {
  const std::size_t scheme_end = address.find(kSchemeEnd);
  if (scheme_end == std::string::npos) return false;
  const std::string scheme = address.substr(0, scheme_end);
  const std::string host = without_password(address).substr(scheme_end + kSchemeEnd.size());
  return (scheme == "http" || scheme == "https") && !host.empty() && host.front() != ':' &&
         host.find_first_of("/?# ") == std::string::npos;
}

}  // namespace

std::vector<std::string> read_etcd_addresses(const std::string& text, std::string_view where,
                                             std::string_view key) {
  std::vector<std::string> addresses;
  std::istringstream list(text);
  for (std::string address; std::getline(list, address, ',');) {
    while (address.ends_with('/')) address.pop_back();
    if (!is_web_address(address)) {
      addresses.clear();
      break;
    }
    addresses.push_back(address);
  }
  if (!addresses.empty()) return addresses;
  throw ConfigError(where, key,
                    concat("is etcd:", visible_line(without_password(text)),
                           ", allowed: etcd: and the addresses of etcd's members with commas "
                           "between them, as in etcd:http://host1:2379,http://host2:2379"));
}

std::string without_password(const std::string& address) {
  const std::size_t host = address.rfind('@');
  if (host == std::string::npos) return address;
  const std::size_t scheme_end = address.find(kSchemeEnd);
  const bool has_scheme = scheme_end < host;
  return concat(has_scheme ? address.substr(0, scheme_end + kSchemeEnd.size()) : "",
                address.substr(host + 1));
}

}  // namespace gossamer
