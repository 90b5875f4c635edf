#pragma once
// TLS 1.3 between the ranks of a run. There are no certificates: both ends prove that they know the
// run's secret (RFC 8446, external pre-shared keys). The keys of a connection come from an
// ephemeral Diffie-Hellman exchange, so a secret that leaks later opens no recorded connection.
//
// Thread safety: none. Errors: CommError.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct ssl_ctx_st;
struct ssl_st;

namespace gossamer::tcp {

enum class Role : std::uint8_t { kConnects, kAccepts };

class TlsContext {
 public:
  /// The key of a connection follows from `secret` and `run`: another run with the same secret has
  /// other keys.
  TlsContext(std::string_view secret, std::string_view run);
  TlsContext(TlsContext&&) noexcept;
  TlsContext& operator=(TlsContext&&) noexcept;
  ~TlsContext();

  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };
  using Ssl = std::unique_ptr<ssl_st, FreeSsl>;
  /// Makes one end of a connection over the socket `fd`. The socket must not block, and the caller
  /// keeps owning it.
  [[nodiscard]] Ssl connect(int fd, Role role) const;

 private:
  struct FreeContext {
    void operator()(ssl_ctx_st* context) const;
  };
  /// Read by the callbacks of OpenSSL; stays in place when this object moves.
  std::unique_ptr<std::string> key_;
  std::unique_ptr<ssl_ctx_st, FreeContext> context_;
};

}  // namespace gossamer::tcp
