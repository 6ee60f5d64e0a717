#include "epp/server/server_credentials.hpp"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>

#include <chrono>
#include <cstdint>

#include "epp/server/certificate_watch.hpp"

namespace handoff::epp {
namespace {

constexpr std::chrono::milliseconds kLookInterval{500};

// gRPC's own watcher of certificate files serves whatever it finds there. This one asks for the newest pair
// that can be served, at each handshake.
class WatchedCredentials final : public grpc::ServerCredentials {
 public:
  WatchedCredentials(const std::string& certificate_path, const std::string& key_path)
      : watch_(certificate_path, key_path, kLookInterval) {}

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    auto* options = grpc_ssl_server_credentials_create_options_using_config_fetcher(
        GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE, fetch, this);
    grpc_server_credentials* credentials = grpc_ssl_server_credentials_create_with_options(options);
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  // One call at a time.
  static grpc_ssl_certificate_config_reload_status fetch(void* self,
                                                         grpc_ssl_server_certificate_config** config) {
    auto& mine = *static_cast<WatchedCredentials*>(self);
    const auto pem = mine.watch_.newer_than(mine.given_);
    if (!pem) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{pem->private_key.c_str(), pem->certificate.c_str()};
    // Whom clients' certificates would have to be of: it wants some, although none is asked for.
    const char* const roots = pem->certificate.c_str();
    *config = grpc_ssl_server_certificate_config_create(roots, &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  CertificateWatch watch_;
  std::uint64_t given_ = 0;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> make_server_credentials(bool secure,
                                                                 const std::string& certificate_path,
                                                                 const std::string& key_path) {
  if (!secure) return grpc::InsecureServerCredentials();
  if (!certificate_path.empty()) return std::make_shared<WatchedCredentials>(certificate_path, key_path);
  const PemCertificate made = make_self_signed_certificate();
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  ssl.pem_key_cert_pairs.push_back({made.private_key, made.certificate});
  return grpc::SslServerCredentials(ssl);
}

}  // namespace handoff::epp
