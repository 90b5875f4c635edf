#include "comm/start/store_socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/tcp/address.hpp"
#include "comm/tcp/byte_stream.hpp"

namespace gossamer {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, FreeAddresses>;

/// The addresses of a host; empty if there are none, and `error` says why.
AddressList look_up(const StorePlace& place, int flags, int& error) {
  addrinfo wanted{};
  wanted.ai_flags = flags;
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(place.port);
  error = getaddrinfo(place.host.c_str(), port.c_str(), &wanted, &found);
  return AddressList(error == 0 ? found : nullptr);
}

bool is_loopback_address(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in ipv4{};
    std::memcpy(&ipv4, address, sizeof(ipv4));
    return (ntohl(ipv4.sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  sockaddr_in6 ipv6{};
  std::memcpy(&ipv6, address, sizeof(ipv6));
  return IN6_IS_ADDR_LOOPBACK(&ipv6.sin6_addr);
}

/// The same port at all addresses of the family.
sockaddr_storage any_address(const addrinfo& info) {
  sockaddr_storage address{};
  std::memcpy(&address, info.ai_addr, info.ai_addrlen);
  if (info.ai_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_ANY);
  } else {
    reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_any;
  }
  return address;
}

int port_of(sockaddr_storage address) {
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

int own_port(int file) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(file, reinterpret_cast<sockaddr*>(&address), &size);
  return port_of(address);
}

/// The port at the other end of a connection; 0 for what is no connection of the internet.
int port_of_peer(int file) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  const int error = getpeername(file, reinterpret_cast<sockaddr*>(&address), &size);
  const bool is_known = address.ss_family == AF_INET || address.ss_family == AF_INET6;
  return error == 0 && is_known ? port_of(address) : 0;
}

/// Listens at one address. Returns 0 or an error number.
int try_to_listen(const addrinfo& info, bool everywhere, FileDescriptor& file) {
  file = FileDescriptor(socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!file.is_open()) return errno;
  // The connections of a run that has just ended keep the port for a minute.
  constexpr int kOn = 1;
  setsockopt(file.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof(kOn));
  // The connections that it takes are kept alive as well.
  tcp::keep_alive(file.get());
  const sockaddr_storage any = everywhere ? any_address(info) : sockaddr_storage{};
  const sockaddr* const address =
      everywhere ? reinterpret_cast<const sockaddr*>(&any) : info.ai_addr;
  if (bind(file.get(), address, info.ai_addrlen) != 0) return errno;
  // Two sockets may be bound to one port. One alone can listen.
  return listen(file.get(), SOMAXCONN) == 0 ? 0 : errno;
}

}  // namespace

std::string to_string(const StorePlace& place) {
  const bool is_ipv6 = place.host.find(':') != std::string::npos;
  return is_ipv6 ? concat("[", place.host, "]:", place.port) : concat(place.host, ":", place.port);
}

bool wait_for_name(const std::string& host, std::chrono::milliseconds limit) {
  constexpr auto kTurn = std::chrono::milliseconds(250);
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    int unknown = 0;
    look_up({host, 0}, 0, unknown);
    if (unknown == 0) return true;
    if (std::chrono::steady_clock::now() + kTurn > end) return false;
    std::this_thread::sleep_for(kTurn);
  }
}

std::optional<StoreSocket> listen_at(const StorePlace& place) {
  int unknown = 0;
  const AddressList addresses = look_up(place, 0, unknown);
  if (unknown != 0) {
    throw CommError({.label = {.what = "start"}},
                    concat("this machine does not know the host ", place.host, " (",
                           gai_strerror(unknown), "): check the name, or give its address"));
  }
  for (const addrinfo* info = addresses.get(); info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    const bool everywhere = is_loopback_address(info->ai_addr) && !is_loopback(place.host);
    FileDescriptor file;
    const int error = try_to_listen(*info, everywhere, file);
    if (error == 0) {
      const int port = own_port(file.get());
      return StoreSocket{std::move(file), {place.host, port}};
    }
    if (error == EADDRINUSE) return std::nullopt;
    // The address of another machine, or a family that this machine does not have.
    if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) continue;
    throw CommError({.label = {.what = "start"}},
                    concat("this process cannot listen at ", to_string(place), ": ",
                           std::generic_category().message(error),
                           "; check the port: those below 1024 are the system's"));
  }
  return std::nullopt;
}

void limit_silence(int port, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::seconds(10);
  const std::chrono::duration<double> seconds = std::min(limit, kLongest);
  std::error_code in_vain;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", in_vain)) {
    int file = -1;
    if (!parse_whole(entry.path().filename().string(), file)) continue;
    if (port_of_peer(file) == port) tcp::limit_silence(file, seconds.count());
  }
}

bool is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  int unknown = 0;
  const AddressList addresses = look_up({host, 0}, AI_NUMERICHOST, unknown);
  return addresses != nullptr && is_loopback_address(addresses->ai_addr);
}

bool leads_to_loopback(const std::string& host) {
  int unknown = 0;
  const AddressList addresses = look_up({host, 0}, 0, unknown);
  return addresses != nullptr && is_loopback_address(addresses->ai_addr);
}

std::string outward_address() {
  // Addresses that documents use (RFC 5737, RFC 3849); some hosts have IPv6 alone.
  for (const char* const outside : {"192.0.2.1", "2001:db8::1"}) {
    try {
      return tcp::address_towards(outside);
    } catch (const ConfigError&) {
      continue;
    }
  }
  return "";
}

}  // namespace gossamer
