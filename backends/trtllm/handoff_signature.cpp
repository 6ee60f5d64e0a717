#include "backends/trtllm/handoff_signature.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace handoff::trtllm {
namespace {

bool is_absent(std::string_view json) {
  return json.empty() || json == "null";
}

/// A string that json.dumps would write as it stands. Base64 of megabytes is one: it is not parsed.
bool is_plain_string(std::string_view json) {
  if (json.size() < 2 || json.front() != '"' || json.back() != '"') return false;
  const auto inside = json.substr(1, json.size() - 2);
  return std::all_of(inside.begin(), inside.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

std::optional<std::string> canonical_string(std::string_view json, bool may_be_list) {
  if (is_absent(json)) return "null";
  if (is_plain_string(json)) return std::string(json);
  auto value = nlohmann::json::parse(json, nullptr, false);
  if (may_be_list && value.is_array()) {
    if (value.empty()) return "null";
    auto first = value.front();
    value = std::move(first);
  }
  if (value.is_null()) return "null";
  if (!value.is_string()) return std::nullopt;
  return value.dump(-1, ' ', /*ensure_ascii=*/true);
}

}  // namespace

bool ProtectedFields::any() const {
  return !is_absent(encoded_opaque_state) || !is_absent(ctx_info_endpoint);
}

std::optional<std::string> canonical_payload(const ProtectedFields& fields) {
  const auto endpoint = canonical_string(fields.ctx_info_endpoint, /*may_be_list=*/true);
  const auto state = canonical_string(fields.encoded_opaque_state, /*may_be_list=*/false);
  if (!endpoint || !state) return std::nullopt;
  return R"({"ctx_info_endpoint":)" + *endpoint + R"(,"encoded_opaque_state":)" + *state + "}";
}

std::string signature_of(std::string_view key, std::string_view payload) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(payload.data());
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, payload.size(), digest.data(),
           &size) == nullptr) {
    throw std::runtime_error("HMAC-SHA256 is not available");
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "sha256=";
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest.at(i) >> 4];
    text += kDigits[digest.at(i) & 15];
  }
  return text;
}

}  // namespace handoff::trtllm
