#include "comm/tcp/tls.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/hmac.hpp"

namespace gossamer::tcp {
namespace {

constexpr std::string_view kIdentity = "gossamer";

void check(bool is_good, std::string_view call) {
  if (is_good) return;
  const unsigned long code = ERR_get_error();
  throw CommError(
      {.label = {.what = "TLS"}},
      concat(call, " of OpenSSL has failed: ", code == 0 ? "?" : ERR_reason_error_string(code)));
}

// A BIO on a socket, like OpenSSL's own, whose writes raise no SIGPIPE when the peer has gone.

int fd_of(BIO* bio) { return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio))); }

/// Whether the same call may succeed later. OpenSSL's BIO_sock_should_retry() says so of ENOTCONN,
/// too, which a broken connection returns for ever.
bool is_passing(int error) { return error == EAGAIN || error == EINTR; }

int read_socket(BIO* bio, char* place, int most) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = recv(fd_of(bio), place, static_cast<std::size_t>(most), 0);
  if (count < 0 && is_passing(errno)) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}

int write_socket(BIO* bio, const char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(fd_of(bio), bytes, static_cast<std::size_t>(count), MSG_NOSIGNAL);
  if (sent < 0 && is_passing(errno)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

long control_socket(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/// Stays: a worker may read when the program has come to its end.
const BIO_METHOD* socket_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
    check(made != nullptr, "BIO_meth_new");
    BIO_meth_set_read(made, read_socket);
    BIO_meth_set_write(made, write_socket);
    BIO_meth_set_ctrl(made, control_socket);
    return made;
  }();
  return method;
}

const std::string& key_of(SSL* ssl) {
  return *static_cast<const std::string*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
}

/// The pre-shared key, in the form in which OpenSSL wants it; null when there is no memory.
SSL_SESSION* make_session(SSL* ssl) {
  constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
  const std::string& key = key_of(ssl);
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  if (SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()),
                                  key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kAes128GcmSha256)) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int use_session(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity,
                std::size_t* length, SSL_SESSION** session) {
  *session = make_session(ssl);
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *length = kIdentity.size();
  return *session == nullptr ? 0 : 1;
}

int find_session(SSL* ssl, const unsigned char* identity, std::size_t length,
                 SSL_SESSION** session) {
  *session = nullptr;
  const std::string_view name(reinterpret_cast<const char*>(identity), length);
  if (name != kIdentity) return 1;
  *session = make_session(ssl);
  return *session == nullptr ? 0 : 1;
}

}  // namespace

void TlsContext::FreeSsl::operator()(ssl_st* ssl) const { SSL_free(ssl); }
void TlsContext::FreeContext::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

TlsContext::TlsContext(std::string_view secret, std::string_view run)
    : key_(std::make_unique<std::string>(hmac_sha256(secret, concat("connections of run ", run)))),
      context_(SSL_CTX_new(TLS_method())) {
  SSL_CTX* const context = context_.get();
  check(context != nullptr, "SSL_CTX_new");
  check(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1, "set_min_proto_version");
  check(SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1, "set_ciphersuites");
  check(SSL_CTX_set_num_tickets(context, 0) == 1, "set_num_tickets");
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_app_data(context, key_.get());
  SSL_CTX_set_psk_use_session_callback(context, use_session);
  SSL_CTX_set_psk_find_session_callback(context, find_session);
}

TlsContext::TlsContext(TlsContext&&) noexcept = default;
TlsContext& TlsContext::operator=(TlsContext&&) noexcept = default;
TlsContext::~TlsContext() = default;

TlsContext::Ssl TlsContext::connect(int fd, Role role) const {
  Ssl ssl(SSL_new(context_.get()));
  check(ssl != nullptr, "SSL_new");
  BIO* const bio = BIO_new(socket_method());
  check(bio != nullptr, "BIO_new");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl.get(), bio, bio);
  if (role == Role::kAccepts) {
    // Without a certificate of its own, it refuses who does not know the key.
    SSL_set_accept_state(ssl.get());
    return ssl;
  }
  // Refuses who shows a certificate in place of the key.
  SSL_set_verify(ssl.get(), SSL_VERIFY_PEER, nullptr);
  SSL_set_connect_state(ssl.get());
  return ssl;
}

}  // namespace gossamer::tcp
