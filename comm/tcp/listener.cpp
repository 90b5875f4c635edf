#include "comm/tcp/listener.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/file_limit.hpp"
#include "base/text.hpp"

namespace gossamer::tcp {
namespace {

constexpr auto kWarningPause = std::chrono::minutes(1);
/// Addresses that the listener remembers; strangers may have many.
constexpr std::size_t kMaxWarned = 1000;
/// After an error of the system, such as no free file descriptor.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
/// While strangers come faster than they may, one connection is taken in this time.
constexpr auto kFloodPause = std::chrono::milliseconds(2);

}  // namespace

Listener::Listener(asio::io_context& io, const asio::ip::address& address,
                   std::chrono::milliseconds patience)
    : io_(io), acceptor_(io), pause_(io), patience_(patience) {
  try {
    const asio::ip::tcp::endpoint endpoint(address, 0);
    acceptor_.open(endpoint.protocol());
    closed_in_children_ = keep_from_children(acceptor_.native_handle());
    acceptor_.bind(endpoint);
    acceptor_.listen();
    port_ = acceptor_.local_endpoint().port();
  } catch (const std::system_error& error) {
    throw CommError({.label = {.what = "start"}},
                    concat("this rank cannot listen on ", address.to_string(), ": ",
                           error.code().message(), "; comm.interface names another address"));
  }
}

void Listener::start(const TlsContext* tls, Logger logger, Hooks hooks) {
  tls_ = tls;
  logger_ = std::move(logger);
  hooks_ = std::move(hooks);
  accept();
}

void Listener::accept() {
  acceptor_.async_accept([this](const asio::error_code& error, asio::ip::tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      if (const std::string hint = file_limit_hint(error.value()); !hint.empty()) {
        warn("another process", concat(error.message(), hint));
      }
      return accept_after(kAcceptPause);
    }
    asio::error_code unknown;
    const auto from = socket.remote_endpoint(unknown);
    if (!unknown) greet(std::move(socket), from.address().to_string());
    allowance_.is_flooded() ? accept_after(kFloodPause) : accept();
  });
}

void Listener::accept_after(std::chrono::milliseconds pause) {
  pause_.expires_after(pause);
  pause_.async_wait([this](const asio::error_code& stopped) {
    if (!stopped) accept();
  });
}

void Listener::make_room() {
  std::erase_if(guests_, [](const Guest& guest) { return guest.greeting.expired(); });
  if (guests_.size() < kMaxGuests) return;
  std::map<std::string_view, int> counts;
  for (const Guest& guest : guests_) ++counts[guest.address];
  const auto most =
      std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find(guests_, most->first, &Guest::address);
  if (const auto greeting = oldest->greeting.lock()) {
    greeting->cancel("too many connections have not introduced themselves");
  }
}

void Listener::greet(asio::ip::tcp::socket socket, const std::string& address) {
  if (!allowance_.take(address, std::chrono::steady_clock::now())) {
    asio::error_code ignored;
    socket.close(ignored);
    return warn(address, "too many from there have not introduced themselves");
  }
  make_room();
  try {
    const auto guest = std::make_shared<Greeting>(
        io_, ByteStream(std::move(socket), tls_, Role::kAccepts), Role::kAccepts,
        Frame{.kind = FrameKind::kHello},
        Greeting::Hooks{.judge = hooks_.judge,
                        .welcome =
                            [this, address](ByteStream stream, const Frame& theirs) {
                              allowance_.give_back(address);
                              hooks_.welcome(std::move(stream), theirs);
                            },
                        .refuse =
                            [this, address](const std::string& why) {
                              if (acceptor_.is_open()) warn(address, why);
                            }});
    guests_.push_back({address, guest});
    guest->start(patience_);
  } catch (const std::exception& error) {
    warn(address, error.what());
  }
}

void Listener::warn(const std::string& address, const std::string& reason) {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(warned_, [&](const auto& entry) { return now - entry.second > kWarningPause; });
  if (warned_.size() >= kMaxWarned || !warned_.try_emplace(address, now).second) return;
  logger_.warning(concat("a connection from ", address, " is refused: ", visible(reason),
                         " (further ones from there are not reported for a minute)"));
}

void Listener::close() {
  closed_in_children_.end();
  asio::error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
  for (const Guest& guest : guests_) {
    if (const auto open = guest.greeting.lock()) open->cancel("this rank leaves");
  }
}

}  // namespace gossamer::tcp
