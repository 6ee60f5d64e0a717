#include "epp/tokenization/tokenizer_protocol.hpp"

#include <simdjson.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "epp/kv_index/block_hash.hpp"
#include "shared/json/object_scan.hpp"

namespace handoff::epp {
namespace {

using json::Member;
using json::ObjectScan;
namespace ondemand = simdjson::ondemand;

constexpr std::size_t kMaxPrompts = 4096;
constexpr std::size_t kMaxMedia = 4096;

// Members that say how to sample, stream, account or route: they don't change the prompt's tokens. Whatever
// is not listed may, and is part of the key.
constexpr std::array<std::string_view, 40> kNotOfThePrompt{"best_of",
                                                           "cache_salt",
                                                           "frequency_penalty",
                                                           "ignore_eos",
                                                           "kv_transfer_params",
                                                           "length_penalty",
                                                           "logit_bias",
                                                           "logprobs",
                                                           "max_completion_tokens",
                                                           "max_tokens",
                                                           "metadata",
                                                           "min_p",
                                                           "min_tokens",
                                                           "n",
                                                           "nvext",
                                                           "parallel_tool_calls",
                                                           "presence_penalty",
                                                           "priority",
                                                           "prompt_cache_key",
                                                           "repetition_penalty",
                                                           "request_id",
                                                           "rid",
                                                           "safety_identifier",
                                                           "seed",
                                                           "service_tier",
                                                           "session_id",
                                                           "skip_special_tokens",
                                                           "stop",
                                                           "stop_token_ids",
                                                           "store",
                                                           "stream",
                                                           "stream_options",
                                                           "temperature",
                                                           "top_k",
                                                           "top_logprobs",
                                                           "top_p",
                                                           "user",
                                                           "vllm_xargs",
                                                           "data_parallel_rank",
                                                           "routed_dp_rank"};

// SGLang's /tokenize knows these; others it might refuse.
constexpr std::array<std::string_view, 7> kTokenizeMembers{
    "model", "messages", "prompt", "tools", "tool_choice", "chat_template_kwargs", "add_special_tokens"};

template <std::size_t Size>
bool contains(const std::array<std::string_view, Size>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool bears_on_tokens(std::string_view name) {
  return !contains(kNotOfThePrompt, name);
}

// A number of tokens in text, from `at` on: "[1, 2]". False when it is anything else.
bool read_token_list(std::string_view text, std::size_t& at, std::vector<std::uint32_t>& out) {
  const auto skip_space = [&] {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r'))
      ++at;
  };
  const auto take = [&](char c) {
    skip_space();
    if (at >= text.size() || text[at] != c) return false;
    ++at;
    return true;
  };
  if (!take('[')) return false;
  if (take(']')) return true;
  while (true) {
    skip_space();
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
    if (error != std::errc()) return false;
    out.push_back(value);
    at = static_cast<std::size_t>(end - text.data());
    if (take(',')) continue;
    return take(']');
  }
}

// The prompts of `"prompt": [1,2]` and `"prompt": [[1,2],[3]]`; nullopt when they are texts.
std::optional<std::vector<TokenizedPrompt>> token_prompts(std::string_view value) {
  if (!value.starts_with('[')) return std::nullopt;
  std::vector<TokenizedPrompt> prompts;
  std::size_t at = 0;
  TokenizedPrompt one;
  if (read_token_list(value, at, one.token_ids)) {
    if (at != value.size()) return std::nullopt;
    prompts.push_back(std::move(one));
    return prompts;
  }
  at = 1;
  while (prompts.size() < kMaxPrompts) {
    TokenizedPrompt next;
    if (!read_token_list(value, at, next.token_ids)) return std::nullopt;
    prompts.push_back(std::move(next));
    at = value.find_first_not_of(" \n\t\r", at);
    if (at == std::string_view::npos || (value[at] != ',' && value[at] != ']')) return std::nullopt;
    if (value[at++] == ']') return prompts;
  }
  return std::nullopt;
}

PromptKey key_of(const ObjectScan& scan, TokenizedApi api, std::uint64_t seed) {
  // Made once per thread: the library hides its size.
  thread_local const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> own(XXH3_createState(),
                                                                                  &XXH3_freeState);
  XXH3_state_t* const state = own.get();
  XXH3_128bits_reset_withSeed(state, seed);
  const auto add = [&](std::string_view part) {
    const std::uint64_t size = part.size();
    XXH3_128bits_update(state, &size, sizeof size);
    XXH3_128bits_update(state, part.data(), part.size());
  };
  add(api == TokenizedApi::kChatCompletions ? "chat" : "completions");
  for (const Member& member : scan.members()) {
    if (!bears_on_tokens(member.name)) continue;
    add(member.name);
    add(scan.value(member));
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  return {hash.low64, hash.high64};
}

std::string tokenize_body(const ObjectScan& scan, std::string_view text) {
  std::string body = "{";
  for (const Member& member : scan.members()) {
    if (!contains(kTokenizeMembers, member.name) || &member != scan.find_last(member.name)) continue;
    if (body.size() > 1) body += ',';
    body += text.substr(member.key_begin, member.key_end - member.key_begin);
    body += ':';
    body += scan.value(member);
  }
  return body + "}";
}

// --- answers ---

std::string token_array(ondemand::array array, std::vector<std::uint32_t>& out) {
  for (auto element : array) {
    std::uint64_t id = 0;
    if (element.get_uint64().get(id) != simdjson::SUCCESS || id > std::numeric_limits<std::uint32_t>::max())
      return "a token id is no 32-bit number";
    out.push_back(static_cast<std::uint32_t>(id));
  }
  return {};
}

// {"mm_hashes":{"image":["…"]},"mm_placeholders":{"image":[{"offset":3,"length":9}]}}; what does not fit
// together is left out, since routing without it is still right, only less exact.
void read_features(ondemand::object features, std::vector<MediaSpan>& out) {
  std::vector<std::pair<std::string, std::uint64_t>> ids;  // by modality, in order
  std::vector<std::pair<std::string, MediaSpan>> places;
  for (auto field : features) {
    std::string_view name;
    if (field.unescaped_key().get(name) != simdjson::SUCCESS) return;
    const bool hashes = name == "mm_hashes";
    if (!hashes && name != "mm_placeholders") continue;
    ondemand::object by_kind;
    if (field.value().get_object().get(by_kind) != simdjson::SUCCESS) continue;
    for (auto kind : by_kind) {
      std::string_view kind_name;
      ondemand::array list;
      if (kind.unescaped_key().get(kind_name) != simdjson::SUCCESS) return;
      const std::string modality(kind_name);
      if (kind.value().get_array().get(list) != simdjson::SUCCESS) continue;
      for (auto item : list) {
        if (ids.size() + places.size() > kMaxMedia) return;
        if (hashes) {
          std::string_view hash;
          if (item.get_string().get(hash) != simdjson::SUCCESS) return;
          ids.emplace_back(modality, media_id(hash, true).value_or(0));
        } else {
          ondemand::object place;
          std::uint64_t offset = 0;
          std::uint64_t length = 0;
          if (item.get_object().get(place) != simdjson::SUCCESS) return;
          if (place.find_field_unordered("offset").get_uint64().get(offset) != simdjson::SUCCESS) return;
          if (place.find_field_unordered("length").get_uint64().get(length) != simdjson::SUCCESS) return;
          places.emplace_back(modality, MediaSpan{0, offset, length});
        }
      }
    }
  }
  if (ids.size() != places.size()) return;
  std::stable_sort(ids.begin(), ids.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::stable_sort(places.begin(), places.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i].first != places[i].first) return;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    MediaSpan span = places[i].second;
    span.id = ids[i].second;
    if (span.id != 0) out.push_back(span);
  }
  std::sort(out.begin(), out.end(),
            [](const MediaSpan& a, const MediaSpan& b) { return a.offset < b.offset; });
}

// One object of a renderer, or the whole answer of a tokenizer: "tokens" may be a list of lists there.
std::string read_object(ondemand::object object, std::vector<TokenizedPrompt>& out) {
  TokenizedPrompt prompt;
  bool found = false;
  for (auto field : object) {
    std::string_view name;
    if (field.unescaped_key().get(name) != simdjson::SUCCESS) return "not JSON";
    if (name == "token_ids" || name == "input_ids" || name == "tokens") {
      ondemand::array array;
      if (field.value().get_array().get(array) != simdjson::SUCCESS) return "the token ids are no list";
      bool is_empty = true;
      if (array.is_empty().get(is_empty) != simdjson::SUCCESS) return "not JSON";
      found = true;
      if (is_empty) continue;
      ondemand::value first;
      ondemand::json_type type{};
      if (array.at(0).get(first) != simdjson::SUCCESS || first.type().get(type) != simdjson::SUCCESS)
        return "not JSON";
      if (array.reset().error() != simdjson::SUCCESS) return "not JSON";
      if (type == ondemand::json_type::array) {
        for (auto element : array) {
          ondemand::array inner;
          if (out.size() >= kMaxPrompts || element.get_array().get(inner) != simdjson::SUCCESS)
            return "the token ids are no list of lists";
          TokenizedPrompt one;
          if (std::string wrong = token_array(inner, one.token_ids); !wrong.empty()) return wrong;
          out.push_back(std::move(one));
        }
        return {};
      }
      if (std::string wrong = token_array(array, prompt.token_ids); !wrong.empty()) return wrong;
    } else if (name == "features") {
      ondemand::object features;
      if (field.value().get_object().get(features) == simdjson::SUCCESS)
        read_features(features, prompt.media);
    }
  }
  if (!found) return "it has no token_ids, input_ids or tokens";
  out.push_back(std::move(prompt));
  return {};
}

std::string read_answer(ondemand::document& document, std::vector<TokenizedPrompt>& out) {
  ondemand::json_type type{};
  if (document.type().get(type) != simdjson::SUCCESS) return "not JSON";
  if (type == ondemand::json_type::object) {
    ondemand::object object;
    if (document.get_object().get(object) != simdjson::SUCCESS) return "not JSON";
    return read_object(object, out);
  }
  ondemand::array array;
  if (type != ondemand::json_type::array || document.get_array().get(array) != simdjson::SUCCESS)
    return "neither an object nor a list";
  for (auto element : array) {
    ondemand::object object;
    if (out.size() >= kMaxPrompts || element.get_object().get(object) != simdjson::SUCCESS)
      return "not a list of objects";
    if (std::string wrong = read_object(object, out); !wrong.empty()) return wrong;
  }
  return out.empty() ? "an empty list" : std::string();
}

}  // namespace

TokenizerStep plan_tokenization(TokenizerKind kind, const TokenizeRequest& request, std::uint64_t seed) {
  const auto refused = [](const char* why) { return TokenizeFailure{TokenizeError::kRefused, why}; };
  if (!request.body) return refused("no body");
  // Keeps its memory from request to request.
  thread_local ObjectScan scan;
  if (scan.scan(*request.body) != json::ScanStatus::object) return refused("the body is no JSON object");
  const bool is_chat = request.api == TokenizedApi::kChatCompletions;
  const Member* subject = scan.find_last(is_chat ? "messages" : "prompt");
  if (subject == nullptr) return refused(is_chat ? "no messages" : "no prompt");
  if (!is_chat) {
    if (auto prompts = token_prompts(scan.value(*subject))) return TokensAtHand{std::move(*prompts)};
  }
  TokenizerAsk ask;
  ask.key = key_of(scan, request.api, seed);
  if (kind == TokenizerKind::kSglangTokenize || (kind == TokenizerKind::kSglangRenderer && !is_chat)) {
    ask.path = "/v1/tokenize";
    ask.body = std::make_shared<const std::string>(tokenize_body(scan, *request.body));
  } else {
    ask.path = is_chat ? "/v1/chat/completions/render" : "/v1/completions/render";
    ask.body = request.body;
  }
  return ask;
}

std::string with_model(std::string_view body, std::string_view model) {
  ObjectScan scan;
  if (scan.scan(body) != json::ScanStatus::object) return {};
  const Member* member = scan.find_last("model");
  if (member == nullptr) return {};
  std::string out(body.substr(0, member->value_begin));
  out += '"';
  for (const char c : model) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  out += '"';
  out += body.substr(member->value_end);
  return out;
}

std::variant<std::vector<TokenizedPrompt>, std::string> parse_tokens(std::string& answer) {
  answer.reserve(answer.size() + simdjson::SIMDJSON_PADDING);
  thread_local ondemand::parser parser;
  ondemand::document document;
  const simdjson::padded_string_view view(answer.data(), answer.size(), answer.capacity());
  if (parser.iterate(view).get(document) != simdjson::SUCCESS) return "not JSON";
  std::vector<TokenizedPrompt> prompts;
  std::string wrong = read_answer(document, prompts);
  if (!wrong.empty()) return wrong;
  return prompts;
}

}  // namespace handoff::epp
