#include "tests/unit/backends/conformance_case.hpp"

#include <cstdlib>
#include <filesystem>
#include <ostream>
#include <sstream>

namespace handoff::plugin_test {
namespace {

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::vector<std::string> with_marker(const std::vector<std::string>& texts, std::string_view marker) {
  std::vector<std::string> out;
  for (const auto& text : texts) out.push_back(replace_all(text, "MARKER", marker));
  return out;
}

}  // namespace

std::vector<std::string> plugin_paths() {
  const char* given = std::getenv("HANDOFF_PLUGIN_PATHS");
  std::istringstream list(given != nullptr ? given : HANDOFF_BUILT_PLUGINS);
  std::vector<std::string> paths;
  for (std::string path; std::getline(list, path, ':');) {
    if (!path.empty()) paths.push_back(path);
  }
  return paths;
}

std::vector<Variant> plugin_variants() {
  std::vector<Variant> variants;
  for (const auto& path : plugin_paths()) {
    variants.push_back({path, {}});
    const Plugin plugin(path);
    Host host;
    for (std::size_t i = 0; i < plugin.api().config_key_count; ++i) {
      const auto& key = plugin.api().config_keys[i];
      if (key.kind != HANDOFF_CONFIG_CHOICE) continue;
      const auto text = [](handoff_bytes bytes) {
        return bytes.size == 0 ? std::string() : std::string(bytes.data, bytes.size);
      };
      std::istringstream choices(text(key.accepts));
      for (std::string choice; std::getline(choices, choice, ',');) {
        Variant variant{path, {{text(key.name), choice}}};
        const bool starts = Backend(plugin, host, variant.settings).created();
        if (choice != text(key.default_value) && starts) variants.push_back(std::move(variant));
      }
    }
  }
  return variants;
}

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.path;
  for (const auto& [name, value] : variant.settings) *out << " " << name << "=" << value;
}

std::string variant_label(const ::testing::TestParamInfo<Variant>& info) {
  std::string label = std::filesystem::path(info.param.path).stem().string();
  for (const auto& [name, value] : info.param.settings) {
    const auto at = name.starts_with("DYN_SIDECAR_") ? 12 : 0;
    label += "_" + name.substr(static_cast<std::size_t>(at)) + "_" + value;
  }
  for (char& c : label) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return label;
}

std::vector<std::string> request_bodies(std::string_view marker) {
  std::vector<std::string> texts{
      R"({"model":"m","messages":[{"role":"user","content":"MARKER"}],"max_tokens":9})",
      R"({"prompt":"MARKER","stream":true,"stream_options":{"include_usage":true},"min_tokens":3})",
      R"( {"input" : "MARKER" , "max_output_tokens" : 7, "n":1.0 } )",
      R"({"text":"MARKER","sampling_params":{"max_tokens":4,"extra_args":{"a":"MARKER"}}})",
      R"({"token_ids":[1,2],"user":"MARKER","sampling_params":{}})",
      R"({"user":"MARKER","n":4,"best_of":8,"prompt":["a","b"]})",
      R"({"n":1,"n":2,"n":"MARKER","stream":1,"max_tokens":{}})",
      R"({"prompt":[[1],[2]],"x":"MARKER","n":1e999,"seed":9223372036854775808})",
      R"({"\u006e":2,"user":"MARKER","sampling_params":[]})",
      R"({"sampling_params":{"extra_args":7,"n":null},"user":"MARKER"})",
      "{}",
      "",
      " ",
      "null",
      "[]",
      "\"text\"",
      "{\"a\":",
      "{\"a\":1}}",
      "\xef\xbb\xbf{}",
      std::string("{\"a\0b\":1}", 9),
      "{\"a\":\"\xff\xfe\"}",
      "{\"\":NaN,\"\":Infinity}",
      "{" + std::string(2000, '['),
      std::string(R"({"d":)") + std::string(5000, '[') + std::string(5000, ']') + "}",
  };
  return with_marker(texts, marker);
}

std::vector<std::string> reply_bodies(std::string_view marker) {
  const std::string handoff =
      R"({"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],)"
      R"("remote_engine_id":"MARKER","remote_request_id":"MARKER","remote_host":"h","remote_port":5600})";
  const std::string params = R"({"request_type":"context_only","first_gen_tokens":[7],"ctx_request_id":5,)"
                             R"("disagg_request_id":1099511627777,"encoded_opaque_state":"MARKER"})";
  std::vector<std::string> texts{
      R"({"id":"a","choices":[],"kv_transfer_params":)" + handoff + "}",
      R"({"prompt_token_ids":[1],"choices":[{"finish_reason":"length","disaggregated_params":)" + params +
          "}]}",
      R"({"choices":[{"finish_reason":"stop","text":"MARKER"}]})",
      R"({"kv_transfer_params":null})",
      R"({"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[]}})",
      R"({"kv_transfer_params":[]})",
      R"({"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"version":"0.5.19"})",
      R"({"error":{"message":"MARKER","code":400}})",
      "data: {\"choices\":[]}\n\ndata: [DONE]\n\n",
      "{\"choices\":[{",
      "",
      "null",
      "\xff\x00",
  };
  return with_marker(texts, marker);
}

std::vector<std::string> Conformance::paths() const {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < api().route_count; ++i) {
    out.emplace_back(api().routes[i].path.data, api().routes[i].path.size);
  }
  return out;
}

Request Conformance::request(std::string path, std::string body) const {
  return {.path = std::move(path), .body = std::move(body)};
}

}  // namespace handoff::plugin_test
