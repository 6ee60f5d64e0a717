#include "epp/server/certificate.hpp"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
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
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
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

Bio reader_of(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Left alone, OpenSSL asks the terminal.
int no_passphrase(char*, int, int, void*) {
  return 0;
}

Certificate next_certificate(BIO* bio) {
  return Certificate(PEM_read_bio_X509(bio, nullptr, no_passphrase, nullptr));
}

// What OpenSSL has against it, said first.
std::string because() {
  const char* reason = ERR_reason_error_string(ERR_peek_error());
  ERR_clear_error();
  return reason == nullptr ? "" : std::string(": ") + reason;
}

// Whether reading ended at the end of the text, and not at something that is no certificate.
bool is_at_end() {
  const auto error = ERR_peek_last_error();
  const bool no_more = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (no_more) ERR_clear_error();
  return no_more;
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

std::optional<CertificateProblem> find_problem(const PemCertificate& pem) {
  ERR_clear_error();
  const auto of_certificate = [](const char* what) { return CertificateProblem{false, what + because()}; };
  const auto of_key = [](const char* what) { return CertificateProblem{true, what + because()}; };
  const Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return of_certificate("can't be checked");
  // gRPC takes texts that end with a NUL: it would serve less than what was checked.
  if (pem.certificate.find('\0') != std::string::npos) return of_certificate("holds a NUL byte");
  if (pem.private_key.find('\0') != std::string::npos) return of_key("holds a NUL byte");
  const Bio chain = reader_of(pem.certificate);
  const Certificate leaf = next_certificate(chain.get());
  if (leaf == nullptr) return of_certificate("has no certificate in PEM form that can be read");
  if (SSL_CTX_use_certificate(context.get(), leaf.get()) != 1) return of_certificate("can't be served");
  while (const Certificate issuer = next_certificate(chain.get())) {
    if (SSL_CTX_add1_chain_cert(context.get(), issuer.get()) != 1) return of_certificate("can't be served");
  }
  if (!is_at_end()) return of_certificate("has a damaged certificate in its chain");
  const Bio key_text = reader_of(pem.private_key);
  const Key key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, no_passphrase, nullptr));
  if (key == nullptr) return of_key("has no private key in PEM form that can be read without a passphrase");
  // OpenSSL also compares it with the certificate.
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1)
    return of_key("can't be used with the certificate");
  return std::nullopt;
}

}  // namespace handoff::epp
