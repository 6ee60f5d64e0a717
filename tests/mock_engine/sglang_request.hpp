// From a request body to the items of an SGLang engine: one per prompt and sample, each with its own id and
// room. No I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "api_request.hpp"
#include "random.hpp"

namespace handoff::mock {

enum class SglangApi { kChat, kCompletions, kGenerate };

std::optional<SglangApi> sglang_api_of(const std::string& path);

// One prompt on its way through the scheduler.
struct SglangItem {
  std::string rid;
  std::optional<std::uint64_t> room;
  std::string host;
  std::int64_t port = 0;
  ApiRequest request;      // this prompt alone
  std::size_t answer = 0;  // which of the whole request's answers is this one's
};

struct SglangRequest {
  SglangApi api = SglangApi::kChat;
  ApiRequest whole;
  bool batch = false;  // the answer of /generate is a list
  bool return_logprob = false;
  std::string rid;  // of the first item
  std::vector<SglangItem> items;
  std::optional<std::int64_t> routed_rank;
  std::optional<std::int64_t> prefill_rank;
};

// Makes ids where the client gave none.
std::variant<SglangRequest, ApiError> parse_sglang_request(SglangApi api, const Json& body,
                                                           const MockConfig& config, Random& random);

// Room 0 at this host means: skip the transfer.
inline constexpr const char* kFakeBootstrapHost = "2.2.2.2";

}  // namespace handoff::mock
