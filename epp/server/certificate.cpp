#include "epp/server/certificate.hpp"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>

#include <memory>
#include <stdexcept>

namespace handoff::epp {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;

constexpr long kTenYears = 10L * 365 * 24 * 60 * 60;

void require(bool worked, const char* what) {
  if (!worked) throw std::runtime_error(std::string("cannot make a certificate: ") + what);
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

void set_name(X509* certificate) {
  X509_NAME* name = X509_get_subject_name(certificate);
  const auto* text = reinterpret_cast<const unsigned char*>("handoff-epp");
  require(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0) == 1, "name");
  require(X509_set_issuer_name(certificate, name) == 1, "issuer");
}

void set_serial(X509* certificate) {
  std::uint64_t serial = 0;
  require(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1, "random number");
  require(ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), serial >> 1) == 1, "serial number");
}

}  // namespace

PemCertificate make_self_signed_certificate() {
  const Key key(EVP_EC_gen("P-256"));
  require(key != nullptr, "key");
  const Certificate certificate(X509_new());
  require(certificate != nullptr && X509_set_version(certificate.get(), 2) == 1, "version");
  set_serial(certificate.get());
  // From an hour ago, as clocks of a cluster differ.
  require(X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600) != nullptr, "start");
  require(X509_gmtime_adj(X509_getm_notAfter(certificate.get()), kTenYears) != nullptr, "end");
  require(X509_set_pubkey(certificate.get(), key.get()) == 1, "public key");
  set_name(certificate.get());
  require(X509_sign(certificate.get(), key.get(), EVP_sha256()) != 0, "signature");

  const Bio certificate_text(BIO_new(BIO_s_mem()));
  const Bio key_text(BIO_new(BIO_s_mem()));
  require(PEM_write_bio_X509(certificate_text.get(), certificate.get()) == 1, "certificate text");
  require(PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1,
          "key text");
  return {text_of(certificate_text.get()), text_of(key_text.get())};
}

}  // namespace handoff::epp
