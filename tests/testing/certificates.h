// Certificates of a test's own: an authority, and what it signs.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <utility>

#include "core/error.h"

namespace outrider {

struct CertificateAndKey {
  std::string cert;  // PEM
  std::string key;   // PEM, not encrypted
};

class TestAuthority {
  static constexpr long kDay = 86'400, kYear = 365 * kDay;

 public:
  explicit TestAuthority(const std::string& name) : key_(new_key()), certificate_(X509_new()) {
    fill(certificate_.get(), name, key_.get(), kYear);
    extend(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
    sign(certificate_.get());
  }

  // What clients and servers trust.
  std::string pem() const { return to_pem(certificate_.get()); }

  // For 127.0.0.1 and localhost, from yesterday until valid_for_s from now (negative: expired).
  CertificateAndKey issue(const std::string& name, long valid_for_s = kYear) const {
    return issue_for(new_key(), name, valid_for_s);
  }
  // With a key of fewer bits than anybody takes.
  CertificateAndKey issue_weak(const std::string& name) const {
    Key key(EVP_RSA_gen(1024));
    CHECK(key != nullptr);
    return issue_for(std::move(key), name, kYear);
  }

  // A private key that asks for the password "secret".
  static std::string encrypted_key() { return key_pem(new_key().get(), EVP_aes_128_cbc()); }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
    void operator()(BIO* bio) const { BIO_free_all(bio); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  CertificateAndKey issue_for(Key key, const std::string& name, long valid_for_s) const {
    const Certificate certificate(X509_new());
    fill(certificate.get(), name, key.get(), valid_for_s);
    extend(certificate.get(), NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
    sign(certificate.get());
    return {to_pem(certificate.get()), key_pem(key.get(), nullptr)};
  }

  static Key new_key() {
    Key key(EVP_EC_gen("P-256"));
    CHECK(key != nullptr);
    return key;
  }

  void fill(X509* certificate, const std::string& name, EVP_PKEY* key, long valid_for_s) const {
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -kDay);
    X509_gmtime_adj(X509_getm_notAfter(certificate), valid_for_s);
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(certificate_.get()));
  }

  static void extend(X509* certificate, int what, const char* value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value);
    CHECK(extension != nullptr);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  void sign(X509* certificate) const {
    CHECK(X509_sign(certificate, key_.get(), EVP_sha256()) > 0);
  }

  static std::string contents(BIO* bio) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    return {data, static_cast<size_t>(size)};
  }

  static std::string to_pem(X509* certificate) {
    const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
    CHECK(PEM_write_bio_X509(bio.get(), certificate) == 1);
    return contents(bio.get());
  }

  static std::string key_pem(EVP_PKEY* key, const EVP_CIPHER* cipher) {
    char password[] = "secret";
    const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
    CHECK(PEM_write_bio_PrivateKey(bio.get(), key, cipher, nullptr, 0, nullptr,
                                   cipher == nullptr ? nullptr : password) == 1);
    return contents(bio.get());
  }

  Key key_;
  Certificate certificate_;
  mutable long serial_ = 0;
};

}  // namespace outrider
