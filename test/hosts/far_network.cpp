// far_network HOSTS BITS_PER_SECOND ROUND_TRIP_NS LOSS_PERCENT
//
// The network between the far hosts of scripts/hosts.sh. Makes the tun devices far0, far1, ... in
// its network namespace, one for each host, and returns. A process stays behind that carries the
// packets between them until someone kills it. A device may move into the namespace of its host,
// where host I has the address 10.77.0.(I+1). Needs the right to make tun devices. Packets that are
// not for one of these addresses are dropped.
//
// Exit code 1 and a message: the devices cannot be made, or the arguments are wrong.

#include "test/hosts/packet_schedule.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <iostream>
#include <optional>
#include <ratio>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/text.hpp"

namespace gossamer::hosts {
namespace {

/// A packet's longest size, whatever the devices' MTU is.
constexpr std::size_t kLongestPacket = 65536;
/// Packets that are due within this time share one wake-up.
using Tick = std::chrono::duration<std::int64_t, std::ratio<1, 10'000>>;
/// How many packets of a device are read before the other devices have their turn.
constexpr int kBatch = 64;

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

int checked(int result, const std::string& what) {
  if (result < 0) throw_errno(what);
  return result;
}

/// A file that is closed in the end.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }

  int value() const { return value_; }

 private:
  int value_;
};

Descriptor make_device(int host) {
  Descriptor device(checked(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun"));
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  const std::string name = concat("far", host);
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  checked(ioctl(device.value(), TUNSETIFF, &request), concat("tun device ", name));
  return device;
}

/// The host that an IPv4 packet is for.
std::optional<int> receiver(std::span<const std::byte> packet, int num_hosts) {
  constexpr std::size_t kHeader = 20;
  constexpr std::size_t kDestination = 16;
  if (packet.size() < kHeader || packet[0] >> 4 != std::byte{4}) return std::nullopt;
  const auto address = packet.subspan(kDestination, 4);
  if (address[0] != std::byte{10} || address[1] != std::byte{77} || address[2] != std::byte{0})
    return std::nullopt;
  const int host = std::to_integer<int>(address[3]) - 1;
  if (host < 0 || host >= num_hosts) return std::nullopt;
  return host;
}

class FarNetwork {
 public:
  /// Throws std::system_error where the devices cannot be made.
  explicit FarNetwork(const NetworkSettings& settings)
      : num_hosts_(settings.num_hosts),
        poll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
        schedule_(settings) {
    for (int host = 0; host < num_hosts_; ++host) {
      const Descriptor& device = devices_.emplace_back(make_device(host));
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u32 = static_cast<std::uint32_t>(host);
      checked(epoll_ctl(poll_.value(), EPOLL_CTL_ADD, device.value(), &event), "epoll_ctl");
    }
  }

  /// Carries packets. Throws std::system_error when a device is gone.
  [[noreturn]] void run() {
    while (true) {
      for (const int host : wait()) read_packets(host);
      schedule_.advance(std::chrono::steady_clock::now(), [this](int host, const Packet& packet) {
        // A write fails where the host's link is down. The packet is then lost, as on a real link.
        [[maybe_unused]] const auto written =
            write(devices_[static_cast<std::size_t>(host)].value(), packet.data(), packet.size());
      });
    }
  }

 private:
  /// Sleeps until hosts have sent something, or a packet is due. Returns those hosts.
  std::vector<int> wait() {
    timespec timeout{};
    std::optional<Time> next = schedule_.next();
    if (next) {
      using std::chrono::nanoseconds;
      next = std::chrono::ceil<Tick>(*next);
      const nanoseconds left =
          std::max(nanoseconds(*next - std::chrono::steady_clock::now()), nanoseconds(0));
      const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
      timeout.tv_sec = static_cast<time_t>(seconds.count());
      timeout.tv_nsec = static_cast<long>((left - seconds).count());
    }
    std::array<epoll_event, 128> events;
    const int num_events =
        epoll_pwait2(poll_.value(), events.data(), static_cast<int>(events.size()),
                     next ? &timeout : nullptr, nullptr);
    if (num_events < 0 && errno != EINTR) throw_errno("epoll_pwait2");
    std::vector<int> hosts;
    for (int i = 0; i < num_events; ++i) {
      hosts.push_back(static_cast<int>(events[static_cast<std::size_t>(i)].data.u32));
    }
    return hosts;
  }

  void read_packets(int from) {
    for (int i = 0; i < kBatch; ++i) {
      const auto size =
          read(devices_[static_cast<std::size_t>(from)].value(), buffer_.data(), buffer_.size());
      if (size < 0) {
        if (errno == EAGAIN || errno == EINTR) return;
        throw_errno(concat("tun device of host ", from));
      }
      const std::span<const std::byte> packet(buffer_.data(), static_cast<std::size_t>(size));
      if (const auto to = receiver(packet, num_hosts_)) {
        schedule_.send(std::chrono::steady_clock::now(), from, *to,
                       Packet(packet.begin(), packet.end()));
      }
    }
  }

  int num_hosts_;
  Descriptor poll_;
  std::vector<Descriptor> devices_;
  PacketSchedule schedule_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kLongestPacket);
};

template <class T>
T number(const char* text, const char* name) {
  T value{};
  if (!parse_whole(text, value))
    throw std::invalid_argument(concat(name, " ", text, ", allowed: a number"));
  return value;
}

NetworkSettings read_settings(int argc, char** argv) {
  if (argc != 5)
    throw std::invalid_argument(
        "type: far_network HOSTS BITS_PER_SECOND ROUND_TRIP_NS LOSS_PERCENT");
  NetworkSettings settings;
  settings.num_hosts = number<int>(argv[1], "HOSTS");
  settings.bits_per_second = number<std::int64_t>(argv[2], "BITS_PER_SECOND");
  settings.round_trip = std::chrono::nanoseconds(number<std::int64_t>(argv[3], "ROUND_TRIP_NS"));
  settings.loss = number<double>(argv[4], "LOSS_PERCENT") / 100;
  if (settings.num_hosts < 1 || settings.num_hosts > 99 || settings.bits_per_second < 1 ||
      settings.round_trip.count() < 0 || !(settings.loss >= 0 && settings.loss <= 1)) {
    throw std::invalid_argument(
        "allowed: HOSTS 1 to 99, BITS_PER_SECOND from 1, ROUND_TRIP_NS from 0, LOSS_PERCENT 0 to "
        "100");
  }
  return settings;
}

void run(int argc, char** argv) {
  FarNetwork network(read_settings(argc, argv));
  checked(daemon(1, 1), "daemon");
  // The kernel may otherwise wake the process 50 microseconds late.
  prctl(PR_SET_TIMERSLACK, 1);
  // The network must not wait for programs that compute. Ordinary users may not ask for this, and
  // on their machines packets are late while programs compute.
  sched_param priority{};
  priority.sched_priority = 1;
  sched_setscheduler(0, SCHED_RR, &priority);
  network.run();
}

}  // namespace
}  // namespace gossamer::hosts

int main(int argc, char** argv) {
  try {
    gossamer::hosts::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "far_network: " << error.what() << '\n';
    return 1;
  }
}
