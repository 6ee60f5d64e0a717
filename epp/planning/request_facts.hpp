#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "epp/ext_proc/header_block.hpp"

namespace handoff::epp {

// How a request is planned.
enum class RequestKind : std::uint8_t {
  kChat,         // tokenized, paired
  kCompletions,  // tokenized, paired
  kTokens,       // brings its token ids, paired
  kSized,        // only its size is known, paired
  kAny,          // anything else: one destination, never paired
};
std::string_view to_string(RequestKind kind);

// What planning needs to know of a request. Nothing in it makes a request fail: what can't be read counts as
// absent, and the engine's own answer about it is the better one.
struct RequestFacts {
  RequestKind kind = RequestKind::kAny;
  std::string model;  // empty: none given
  bool streams = false;
  std::vector<std::uint32_t> token_ids;  // with kTokens
  std::string cache_salt;                // the body's own
  bool can_take_salt = false;            // the body is an object without cache_salt
  std::uint64_t body_bytes = 0;

  std::string request_id;  // x-request-id
  std::string tenant;      // x-tenant-id
  std::string session_id;
  bool session_final = false;  // the session ends with this request
  std::string policy_class;
  double priority_jump = 0.0;
  std::uint32_t strict_priority = 0;
  std::optional<std::uint32_t> expected_output_tokens;
  std::optional<std::chrono::milliseconds> first_token_goal;  // of its service level
  // nvext.backend_instance_id (or decode_worker_id) and nvext.dp_rank: the worker that the client insists on.
  std::optional<std::uint64_t> pinned_worker;
  std::optional<std::uint32_t> pinned_rank;
  bool pins_prefill = false;         // nvext.prefill_worker_id: not the client's to choose
  std::size_t metadata_headers = 0;  // x-dynamo-meta-*

  // Tokens that stand for a prompt of which only the bytes are known.
  std::uint64_t estimated_tokens() const { return body_bytes < 8 ? 1 : body_bytes / 4; }
};

// `body` is null when the request has none. `reads_nvext`: whether hints in the body's `nvext` count.
RequestFacts read_request_facts(const HeaderBlock& headers, const std::string* body, bool reads_nvext = true);

// For a request whose body is not sent here: sized by its content-length, where its path says that it has a
// prompt.
void size_by_length(const HeaderBlock& headers, RequestFacts& facts);

// A JSON array of whole numbers from 0 to 2^32 - 1. False for anything else; `ids` is then unspecified.
bool parse_token_ids(std::string_view text, std::vector<std::uint32_t>& ids);

// The body with a `cache_salt` member in front, nothing else changed; `body` must be an object.
std::string with_cache_salt(const std::string& body, std::string_view salt);

}  // namespace handoff::epp
