#include "comm/tcp/address.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/tcp/asio.hpp"

namespace gossamer::tcp {
namespace {

struct Interface {
  std::string name;
  asio::ip::address address;
};

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (entry->ifa_addr->sa_family == AF_INET) {
      const auto* socket = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      found.push_back({entry->ifa_name, asio::ip::address_v4(ntohl(socket->sin_addr.s_addr))});
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* socket = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      asio::ip::address_v6::bytes_type bytes;
      std::copy_n(socket->sin6_addr.s6_addr, bytes.size(), bytes.begin());
      found.push_back({entry->ifa_name, asio::ip::address_v6(bytes, socket->sin6_scope_id)});
    }
  }
  return found;
}

std::vector<std::string> texts_of(const std::vector<Interface>& all) {
  std::vector<std::string> texts;
  for (const Interface& interface : all) {
    texts.push_back(concat(interface.name, " ", interface.address.to_string()));
  }
  return texts;
}

std::string address_of_interface(const std::string& name) {
  asio::error_code no_address;
  const auto given = asio::ip::make_address(name, no_address);
  std::vector<Interface> fitting;
  const std::vector<Interface> all = interfaces();
  for (const Interface& interface : all) {
    const bool fits = no_address ? interface.name == name : interface.address == given;
    if (fits) fitting.push_back(interface);
  }
  // IPv4, then addresses that hold beyond the next router, then the others.
  const auto kind = [](const Interface& interface) {
    if (interface.address.is_v4()) return 0;
    return interface.address.to_v6().is_link_local() ? 2 : 1;
  };
  std::ranges::stable_sort(fitting, {}, kind);
  if (!fitting.empty()) return fitting.front().address.to_string();
  throw ConfigError(concat("comm.interface: this host has no interface or address ", name,
                           ", allowed: ", join(texts_of(all), ", ")));
}

}  // namespace

std::string address_towards(const std::string& host) {
  asio::io_context io;
  asio::error_code error;
  const auto found = asio::ip::udp::resolver(io).resolve(host, "9", error);
  if (error || found.empty()) {
    throw ConfigError(
        concat("the host ", host, " of the rendezvous is not known here: ", error.message()));
  }
  std::vector<asio::ip::udp::endpoint> places;
  for (const auto& entry : found) places.push_back(entry.endpoint());
  // A name may have addresses of both families. All hosts should announce one of the same family,
  // and more hosts have IPv4 than IPv6.
  std::ranges::stable_partition(
      places, [](const asio::ip::udp::endpoint& place) { return place.address().is_v4(); });
  for (const asio::ip::udp::endpoint& place : places) {
    asio::ip::udp::socket socket(io);
    socket.open(place.protocol(), error);
    if (!error) socket.connect(place, error);
    if (!error) return socket.local_endpoint().address().to_string();
  }
  throw ConfigError(concat("no way leads from this host to ", host, ": ", error.message()));
}

std::string own_address(const MeetingOptions& options) {
  if (!options.interface.empty()) return address_of_interface(options.interface);
  if (!options.store_host.empty()) return address_towards(options.store_host);
  return asio::ip::address_v4::loopback().to_string();
}

}  // namespace gossamer::tcp
