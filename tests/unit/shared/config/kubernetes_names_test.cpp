#include "shared/config/kubernetes_names.hpp"

#include <gtest/gtest.h>

namespace handoff::config {
namespace {

TEST(KubernetesNames, TellsInjectedNames) {
  for (const char* injected :
       {"DYN_SIDECAR_SERVICE_HOST", "DYN_SIDECAR_SERVICE_PORT", "DYN_SIDECAR_SERVICE_PORT_HTTP",
        "DYN_SIDECAR_PORT_8000_TCP", "DYN_SIDECAR_PORT_8000_TCP_ADDR", "DYN_SIDECAR_PORT_53_UDP_PROTO",
        "DYN_SIDECAR_PORT_9_SCTP_PORT"}) {
    EXPECT_TRUE(is_service_link_name(injected)) << injected;
  }
  for (const char* ours :
       {"DYN_SIDECAR_PORT", "DYN_SIDECAR_PORT_", "DYN_SIDECAR_PORT_X_TCP", "DYN_SIDECAR_PORT_80",
        "DYN_SIDECAR_PORT_80_TCP_X", "DYN_DECODE_ENGINE_PORT", ""}) {
    EXPECT_FALSE(is_service_link_name(ours)) << ours;
  }
}

TEST(KubernetesNames, TellsInjectedValues) {
  EXPECT_TRUE(is_service_link_value("tcp://10.0.0.1:8000"));
  EXPECT_TRUE(is_service_link_value("udp://10.0.0.1:53"));
  EXPECT_FALSE(is_service_link_value("8000"));
}

}  // namespace
}  // namespace handoff::config
