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
using Connection = std::unique_ptr<SSL, Freed<SSL_free>>;

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

// As gRPC sets up a server (1.51): at least TLS 1.2, keys exchanged over P-256, these ciphers.
bool serve_as_grpc(SSL_CTX* server) {
  return SSL_CTX_set_min_proto_version(server, TLS1_2_VERSION) == 1 &&
         SSL_CTX_set1_groups_list(server, "P-256") == 1 &&
         SSL_CTX_set_cipher_list(server,
                                 "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
                                 "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384") == 1;
}

// False: it failed, and OpenSSL's errors say why.
bool advance(SSL* side) {
  const int result = SSL_do_handshake(side);
  const int error = SSL_get_error(side, result);
  return error == SSL_ERROR_NONE || error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
}

// A handshake in memory with a client of OpenSSL's defaults, which verifies nothing.
bool shakes_hands(SSL_CTX* server_context) {
  constexpr int kMostRounds = 1000;  // a chain of a megabyte goes over in pieces of 17 kB
  const Context client_context(SSL_CTX_new(TLS_client_method()));
  if (client_context == nullptr || !serve_as_grpc(server_context)) return false;
  const Connection server(SSL_new(server_context));
  const Connection client(SSL_new(client_context.get()));
  BIO* server_end = nullptr;
  BIO* client_end = nullptr;
  if (server == nullptr || client == nullptr || BIO_new_bio_pair(&server_end, 0, &client_end, 0) != 1)
    return false;
  SSL_set_bio(server.get(), server_end, server_end);
  SSL_set_bio(client.get(), client_end, client_end);
  SSL_set_accept_state(server.get());
  SSL_set_connect_state(client.get());
  for (int round = 0; round < kMostRounds; ++round) {
    // The server first: what it says is what the operator can do something about.
    if (!advance(server.get()) || !advance(client.get())) return false;
    if (SSL_is_init_finished(server.get()) == 1 && SSL_is_init_finished(client.get()) == 1) return true;
  }
  return false;
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
  ERR_clear_error();
  if (!shakes_hands(context.get())) return of_certificate("can't be served: a TLS handshake with it fails");
  return std::nullopt;
}

}  // namespace handoff::epp
