#include "backends/vllm/transfer_params.hpp"

#include <array>

namespace handoff::vllm {

std::string random_name(const sdk::Host& host) {
  std::array<unsigned char, 16> bytes{};
  host.random(bytes.data(), bytes.size());
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string name;
  for (const unsigned char byte : bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

TransferParams offloading_params(std::string_view kv_request_id, std::string_view prefill_host,
                                 std::uint32_t p2p_port) {
  const std::string id = R"("kv_request_id":")" + std::string(kv_request_id) + '"';
  return {.prefill = R"({"remote_decoder":{)" + id + "}}",
          .decode = R"({"remote_prefiller":{)" + id + R"(,"remote_host":")" + std::string(prefill_host) +
                    R"(","remote_port":)" + std::to_string(p2p_port) + "}}"};
}

TransferParams mooncake_params(std::string_view transfer_id, std::string_view prefill_host,
                               std::uint32_t bootstrap_port, std::string_view engine_id) {
  const std::string id = R"("transfer_id":"xfer-)" + std::string(transfer_id) + '"';
  const bool is_ipv6 = prefill_host.find(':') != std::string_view::npos;
  const std::string host = is_ipv6 ? "[" + std::string(prefill_host) + "]" : std::string(prefill_host);
  return {.prefill = R"({"do_remote_decode":true,"do_remote_prefill":false,)" + id + "}",
          .decode = R"({"do_remote_prefill":true,"do_remote_decode":false,"remote_bootstrap_addr":"http://)" +
                    host + ":" + std::to_string(bootstrap_port) + R"(","remote_engine_id":)" +
                    std::string(engine_id) + "," + id + "}"};
}

std::string push_params(const PushAddress& address, std::string_view request_id) {
  std::string text = R"({"do_remote_prefill":true,"do_remote_decode":false,"transfer_mode":"push")";
  text.append(R"(,"remote_engine_id":)").append(address.engine_id);
  text.append(R"(,"remote_host":)").append(address.host);
  text.append(R"(,"remote_port":)").append(address.port);
  text.append(R"(,"tp_size":)").append(address.tp_size);
  text.append(R"(,"pp_size":)").append(address.pp_size);
  // Of the id only what needs no escaping: it is no more than a name.
  text += R"(,"remote_request_id":")";
  for (const char c : request_id) {
    if (c > ' ' && c < 0x7f && c != '"' && c != '\\') text += c;
  }
  return text += "\"}";
}

std::string pairing_id(const sdk::Host& host, const handoff_request& request) {
  constexpr std::size_t kMostOfClient = 128;
  std::string id(sdk::view(request.request_id).substr(0, kMostOfClient));
  return id.append("-").append(random_name(host), 0, 16);
}

}  // namespace handoff::vllm
