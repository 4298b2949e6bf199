// TLS material from PEM files, checked when it is loaded and not at the first handshake.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace outrider {

// Paths, as the flags name them; empty: not given.
struct TlsFiles {
  std::string cert;  // --tls-cert: the certificate, then its chain
  std::string key;   // --tls-key: its private key, not encrypted
  // Certificates that the other side must be signed by: --tls-client-ca of a server, --tls-ca of a
  // client.
  std::string ca;
};

// The same as PEM text.
struct TlsMaterial {
  std::string cert;
  std::string key;
  std::string ca;
};

// Throws Error where there is one of certificate and key without the other.
void check_pair(const TlsFiles& files);

// Throws Error of one line that names flag and file, says what was expected and what was found: a
// file that cannot be read or holds no PEM of its kind, a certificate (or one of its chain) that
// OpenSSL's security level forbids, a key that is encrypted or does not belong to the certificate;
// and as check_pair. ca_flag: what ca's flag is called. Warns of a key that
// everybody may read, and of a certificate that is not valid today.
TlsMaterial load_tls(const TlsFiles& files, const std::string& ca_flag);

struct FreeSslContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using SslContext = std::unique_ptr<SSL_CTX, FreeSslContext>;

// A server's side of TLS 1.2 or newer with material that load_tls() has checked; null where there
// is no certificate. With a CA, clients must show a certificate that it has signed.
SslContext make_ssl_context(const TlsMaterial& material);

}  // namespace outrider
