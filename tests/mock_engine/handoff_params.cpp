#include "handoff_params.hpp"

namespace handoff::mock {
namespace {

bool has_float(const Json& value) {
  if (value.is_number_float()) return true;
  if (!value.is_array()) return false;
  for (const Json& one : value) {
    if (has_float(one)) return true;
  }
  return false;
}

bool names_number_as_float(const Json& params) {
  for (const char* name :
       {"tp_size", "pp_size", "dcp_size", "remote_port", "remote_num_tokens", "remote_block_ids"}) {
    const auto found = params.find(name);
    if (found != params.end() && has_float(*found)) return true;
  }
  return false;
}

}  // namespace

HandoffVerdict judge_handoff(const ApiRequest& request) {
  const Json& params = request.kv_params;
  const auto ids = params.find("remote_block_ids");
  if (ids == params.end() || ids->is_null() || ids->empty()) return HandoffVerdict::kKillsEngine;
  // Several prompts sharing one set of blocks trip an assertion too.
  if (request.prompts.size() > 1) return HandoffVerdict::kKillsEngine;
  for (const char* name : {"remote_engine_id", "remote_request_id", "remote_host", "remote_port"}) {
    if (!params.contains(name)) return HandoffVerdict::kHangs;
  }
  if (names_number_as_float(params)) return HandoffVerdict::kConfusesEngine;
  return remote_lease(params) ? HandoffVerdict::kReadable : HandoffVerdict::kUnreadable;
}

std::optional<RemoteLease> remote_lease(const Json& params) {
  if (!params.is_object()) return std::nullopt;
  const auto text = [&params](const char* name) {
    const auto found = params.find(name);
    return found != params.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto port = params.find("remote_port");
  if (port == params.end() || !port->is_number_integer()) return std::nullopt;
  const auto number = port->get<std::int64_t>();
  RemoteLease lease{text("remote_host"), static_cast<std::uint16_t>(number), text("remote_engine_id"),
                    text("remote_request_id")};
  if (number < 1 || number > 65535 || lease.host.empty() || lease.engine_id.empty() ||
      lease.request_id.empty()) {
    return std::nullopt;
  }
  return lease;
}

Reply make_handoff(const Engine& engine, const std::string& request_id, const Json& block_ids,
                   std::int64_t tokens, std::int64_t rank) {
  Reply params;
  params["do_remote_prefill"] = true;
  params["do_remote_decode"] = false;
  params["remote_block_ids"] = Reply(block_ids);
  params["remote_engine_id"] = engine.engine_id(rank);
  params["remote_request_id"] = request_id;
  params["remote_host"] = engine.config().side_channel_host;
  params["remote_port"] = engine.side_channel_port;
  params["tp_size"] = 1;
  const bool pushes = engine.config().vllm.connector == KvConnectorKind::kNixlPush;
  if (pushes) params["pp_size"] = 1;
  params["remote_num_tokens"] = tokens;
  params["remote_blocks_expiry_time"] = nullptr;
  params["transfer_mode"] = pushes ? "push" : "pull";
  return params;
}

Json block_ids_json(const MockConfig& config, const BlockIds& blocks) {
  if (config.flat_block_ids) return blocks;
  Json groups = Json::array();
  for (std::int64_t group = 0; group < config.kv_groups; ++group) groups.push_back(blocks);
  return groups;
}

}  // namespace handoff::mock
