#pragma once

#include <string>

namespace handoff::epp {

struct PemCertificate {
  std::string certificate;
  std::string private_key;
};

// A fresh self-signed certificate, for gateways that encrypt and verify nothing (InferencePool has no place
// for a CA). Valid for ten years; the key lives in memory only. Throws std::runtime_error.
PemCertificate make_self_signed_certificate();

}  // namespace handoff::epp
