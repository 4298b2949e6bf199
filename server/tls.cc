// See tls.h.
#include "server/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "core/error.h"
#include "server/secret_file.h"

namespace outrider {
namespace {

template <typename T, void (*kFree)(T*)>
struct Free {
  void operator()(T* object) const { kFree(object); }
};
using Bio = std::unique_ptr<BIO, Free<BIO, BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Free<X509, X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY, EVP_PKEY_free>>;

Bio memory(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Instead of asking the terminal for the password of an encrypted key.
int refuse_password(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

Certificate parse_certificate(const std::string& where, const std::string& pem) {
  Certificate certificate(PEM_read_bio_X509(memory(pem).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    throw Error(where + " holds no certificate; expected PEM with -----BEGIN CERTIFICATE-----");
  }
  return certificate;
}

PrivateKey parse_key(const std::string& where, const std::string& pem) {
  bool asked = false;
  PrivateKey key(PEM_read_bio_PrivateKey(memory(pem).get(), nullptr, refuse_password, &asked));
  if (key != nullptr) return key;
  if (asked) throw Error(where + " is encrypted; expected a private key without a password");
  throw Error(where + " holds no private key; expected PEM with -----BEGIN PRIVATE KEY-----");
}

// What OpenSSL's security level forbids to show, as keys of a few bits, in a certificate or in its
// chain.
void check_strength(const std::string& where, const std::string& pem) {
  const SslContext trial(SSL_CTX_new(TLS_server_method()));
  CHECK(trial != nullptr);
  const Bio chain = memory(pem);
  bool allowed = true, first = true;
  while (const Certificate next{PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)}) {
    allowed = (first ? SSL_CTX_use_certificate(trial.get(), next.get())
                     : SSL_CTX_add1_chain_cert(trial.get(), next.get())) == 1;
    if (!allowed) break;
    first = false;
  }
  if (allowed) return ERR_clear_error();  // of the end of the text
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  throw Error(where + " is refused by OpenSSL: " + (reason == nullptr ? "unknown" : reason) +
              "; expected a certificate that its security level allows");
}

void warn_of_dates(const std::string& where, const X509& certificate) {
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0) {
    spdlog::warn("{} has expired; clients will refuse it", where);
  }
  if (X509_cmp_current_time(X509_get0_notBefore(&certificate)) > 0) {
    spdlog::warn("{} is not valid yet; clients will refuse it", where);
  }
}

}  // namespace

void check_pair(const TlsFiles& files) {
  if (files.cert.empty() == files.key.empty()) return;
  throw Error(files.cert.empty() ? "--tls-key is given without --tls-cert; expected both"
                                 : "--tls-cert is given without --tls-key; expected both");
}

TlsMaterial load_tls(const TlsFiles& files, const std::string& ca_flag) {
  check_pair(files);
  TlsMaterial material;
  if (!files.cert.empty()) {
    const std::string cert = "--tls-cert " + files.cert, key = "--tls-key " + files.key;
    material.cert = read_small_file(cert, files.cert);
    const Certificate certificate = parse_certificate(cert, material.cert);
    material.key = read_small_file(key, files.key);
    const PrivateKey private_key = parse_key(key, material.key);
    if (X509_check_private_key(certificate.get(), private_key.get()) != 1) {
      throw Error(key + " does not belong to the certificate in " + files.cert +
                  "; expected its private key");
    }
    check_strength(cert, material.cert);
    warn_of_dates(cert, *certificate);
    warn_if_world_readable(key, files.key);
  }
  if (!files.ca.empty()) {
    const std::string ca = ca_flag + " " + files.ca;
    material.ca = read_small_file(ca, files.ca);
    warn_of_dates(ca, *parse_certificate(ca, material.ca));
  }
  return material;
}

SslContext make_ssl_context(const TlsMaterial& material) {
  if (material.cert.empty()) return nullptr;
  SslContext context(SSL_CTX_new(TLS_server_method()));
  CHECK(context != nullptr);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  const Bio chain = memory(material.cert);
  const Certificate own(PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr));
  CHECK(SSL_CTX_use_certificate(context.get(), own.get()) == 1);
  while (X509* next = PEM_read_bio_X509(chain.get(), nullptr, nullptr, nullptr)) {
    CHECK(SSL_CTX_add_extra_chain_cert(context.get(), next) == 1);  // takes it over
  }
  const PrivateKey key(
      PEM_read_bio_PrivateKey(memory(material.key).get(), nullptr, nullptr, nullptr));
  CHECK(SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1);
  if (!material.ca.empty()) {
    const Bio authorities = memory(material.ca);
    while (const Certificate authority{
        PEM_read_bio_X509(authorities.get(), nullptr, nullptr, nullptr)}) {
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), authority.get());
    }
    // Without a name for what its sessions are good for, OpenSSL refuses whoever resumes one.
    constexpr std::string_view kSessions = "outrider";
    CHECK(SSL_CTX_set_session_id_context(context.get(),
                                         reinterpret_cast<const unsigned char*>(kSessions.data()),
                                         kSessions.size()) == 1);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  ERR_clear_error();  // the end of a file of certificates counts as one
  return context;
}

}  // namespace outrider
