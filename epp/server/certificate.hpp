#pragma once

#include <optional>
#include <string>

namespace handoff::epp {

struct PemCertificate {
  std::string certificate;
  std::string private_key;

  bool operator==(const PemCertificate&) const = default;
};

// A fresh self-signed certificate, for gateways that encrypt and verify nothing (InferencePool has no place
// for a CA). Valid for ten years; the key lives in memory only. Throws std::runtime_error.
PemCertificate make_self_signed_certificate();

struct CertificateProblem {
  bool is_of_key = false;  // else of the certificate
  std::string text;        // in words that follow the path, as "has no certificate in PEM form"
};

// Whether TLS could be served with this chain and key: both can be read without a passphrase, are strong
// enough for OpenSSL's settings, belong together, and a handshake succeeds, which not every kind of key that
// can be read is good for (secp256k1, Brainpool's curves, DSA). Nothing when it could. Takes milliseconds.
std::optional<CertificateProblem> find_problem(const PemCertificate& pem);

}  // namespace handoff::epp
