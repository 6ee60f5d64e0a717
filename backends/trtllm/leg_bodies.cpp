#include "backends/trtllm/leg_bodies.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace handoff::trtllm {
namespace {

constexpr std::string_view kParamsField = "disaggregated_params";

std::string_view raw_or_empty(const sdk::Object& object, std::string_view name) {
  const auto* member = object.find(name);
  return member == nullptr ? std::string_view{} : object.raw(*member);
}

/// An edit of a text that is not the client's body: its unchanged parts become pieces with data.
std::vector<handoff_piece> pieces_of(const sdk::BodyEdit& edit, std::string_view text) {
  auto pieces = edit.pieces();
  for (auto& piece : pieces) {
    if (piece.data == nullptr) piece = {text.data() + piece.offset, 0, piece.size};
  }
  return pieces;
}

}  // namespace

std::string context_params(std::string_view disagg_id, Schedule schedule) {
  std::string params = R"({"request_type":"context_only","disagg_request_id":)" + std::string(disagg_id);
  // Without it an engine schedules context first, in every release; older ones refuse unknown members.
  if (schedule == Schedule::generation_first) params += R"(,"schedule_style":1)";
  return params += "}";
}

std::vector<handoff_piece> context_body(const sdk::Object& body, std::string_view params) {
  sdk::BodyEdit edit(body);
  edit.set("stream", "false");  // streams carry no parameters
  if (edit.has("stream_options")) edit.set("stream_options", "null");
  edit.set(kParamsField, params);
  return edit.pieces();
}

GenerationParams handed_over_params(const ContextReply& reply) {
  sdk::BodyEdit edit(reply.params);
  edit.set("request_type", R"("generation_only")");
  // A release that knows the member leaves it to us, who have the usage that the client shall see.
  const auto* usage = reply.params.find("ctx_usage");
  const auto* computed = reply.answer.find("usage");
  if (usage != nullptr && usage->kind == HANDOFF_JSON_NULL && computed != nullptr &&
      computed->kind == HANDOFF_JSON_OBJECT) {
    edit.set("ctx_usage", reply.answer.raw(*computed));
  }
  return {.pieces = pieces_of(edit, reply.params.text()),
          .protected_fields = {.encoded_opaque_state = raw_or_empty(reply.params, "encoded_opaque_state"),
                               .ctx_info_endpoint = raw_or_empty(reply.params, "ctx_info_endpoint")}};
}

GenerationParams announced_params(const sdk::Object& info, std::string_view endpoint,
                                  std::string_view disagg_id) {
  sdk::BodyEdit edit(info);
  edit.set("request_type", R"("generation_only")");
  edit.set("ctx_request_id", disagg_id);
  edit.set("disagg_request_id", disagg_id);
  edit.set("ctx_info_endpoint", endpoint);
  edit.set("schedule_style", "1");
  return {.pieces = pieces_of(edit, info.text()),
          .protected_fields = {.encoded_opaque_state = raw_or_empty(info, "encoded_opaque_state"),
                               .ctx_info_endpoint = endpoint}};
}

std::vector<handoff_piece> generation_body(const sdk::Object& body, std::vector<handoff_piece> params,
                                           std::string_view ids_field, std::string_view prompt_ids) {
  sdk::BodyEdit edit(body);
  if (!prompt_ids.empty()) {
    // A client may send its own tokens; in two forms they would contradict each other.
    if (ids_field != "prompt") {
      edit.remove("prompt_token_ids");
      edit.remove("prompt_token_ids_b64");
    }
    edit.set(ids_field, prompt_ids);
  }
  edit.set(kParamsField, std::move(params));
  return edit.pieces();
}

std::optional<std::string> ids_of_base64(std::string_view json) {
  if (json.size() < 2 || json.size() % 4 != 2) return std::nullopt;  // quotes around groups of four
  const auto text = json.substr(1, json.size() - 2);
  std::string bytes(text.size() / 4 * 3, '\0');
  const auto* in = reinterpret_cast<const unsigned char*>(text.data());
  auto* out = reinterpret_cast<unsigned char*>(bytes.data());
  const int size = EVP_DecodeBlock(out, in, static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  const auto padding = static_cast<std::size_t>(
      std::count(text.end() - std::min<std::ptrdiff_t>(2, std::ssize(text)), text.end(), '='));
  bytes.resize(static_cast<std::size_t>(size) - std::min(padding, static_cast<std::size_t>(size)));
  if (bytes.size() % 4 != 0) return std::nullopt;
  std::string list = "[";
  for (std::size_t at = 0; at < bytes.size(); at += 4) {
    std::uint32_t id = 0;
    for (std::size_t i = 4; i-- > 0;) id = id << 8 | static_cast<unsigned char>(bytes[at + i]);
    if (id > INT32_MAX) return std::nullopt;
    if (at > 0) list += ',';
    std::array<char, 12> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), id).ptr;
    list.append(digits.data(), end);
  }
  return list += "]";
}

}  // namespace handoff::trtllm
