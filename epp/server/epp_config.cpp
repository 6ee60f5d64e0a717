#include "epp/server/epp_config.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "shared/config/codec.hpp"
#include "shared/config/option_table.hpp"
#include "shared/telemetry/level.hpp"

namespace handoff::epp {
namespace {

using config::OptionTable;
using Millis = std::chrono::milliseconds;

// A decimal number that is not negative.
config::Codec<double> decimal(double max = 1e9) {
  auto read = [max](std::string_view text) -> std::optional<double> {
    double value = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    if (!std::isfinite(value) || value < 0.0 || value > max) return std::nullopt;
    return value;
  };
  auto write = [](const double& value) {
    std::array<char, 32> text{};
    const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() ? std::string(text.data(), end) : std::string();
  };
  return {.accepts = "a decimal number of at least 0", .unit = {}, .read = read, .write = write};
}

std::optional<std::string> wrong_level(std::string_view text) {
  if (telemetry::parse_level(text)) return std::nullopt;
  return "takes trace, debug, info, warn, error or off";
}

std::optional<std::string> wrong_mode(std::string_view text) {
  if (text == "standalone") return std::nullopt;
  return "takes standalone only";
}

void declare_listening(OptionTable& table, EppConfig& config) {
  table.section("Listening");
  table.add({.name = "DYN_EPP_MODE",
             .help = "Only `standalone` is there; the name is Dynamo's.",
             .validate = wrong_mode},
            config.mode, config::text());
  table.add({.name = "DYN_EPP_BIND", .help = "Address of all listeners; `::` for IPv6 and IPv4."},
            config.bind, config::text());
  table.add({.name = "DYN_EPP_GRPC_PORT",
             .help = "Port for the gateway's ext_proc streams; 0 lets the system choose."},
            config.port, config::port(config::ZeroPort::allowed));
  table.add({.name = "DYN_EPP_GRPC_HEALTH_PORT",
             .help = "Port for gRPC health checks without TLS; 0 lets the system choose."},
            config.health_port, config::port(config::ZeroPort::allowed));
  table.add({.name = "DYN_SECURE_SERVING",
             .help = "TLS for ext_proc, with a self-signed certificate unless one is given."},
            config.secure_serving, config::boolean());
  table.add(
      {.name = "DYN_EPP_TLS_CERT_PATH", .help = "Certificate chain, PEM; read again when it is replaced."},
      config.tls_certificate_path, config::file_path(config::FilePresence::must_be_readable));
  table.add({.name = "DYN_EPP_TLS_KEY_PATH", .help = "Private key of the certificate, PEM."},
            config.tls_key_path, config::file_path(config::FilePresence::must_be_readable));
  table.add({.name = "DYN_EPP_THREADS", .help = "Completion queues; 0 means one per core, at most 8."},
            config.threads, config::whole_number(0, 256));
  table.add({.name = "DYN_EPP_DEBUG_REPORT",
             .help = "Serve handoff.epp.v1.Introspection (loads, plans) on the health port."},
            config.debug_report, config::boolean());
}

void declare_bounds(OptionTable& table, EppConfig& config) {
  table.section("Limits");
  table.add({.name = "DYN_EPP_MAX_REQUEST_BODY_BYTES", .help = "Largest request body; more is 413."},
            config.limits.max_request_body, config::byte_count(1, 1ULL << 31));
  table.add({.name = "DYN_EPP_MAX_STREAM_BACKLOG_BYTES",
             .help = "Response bytes that a stream holds unsent before it stops reading. Beside them "
                     "it has up to 256 KiB that came ahead, and two messages."},
            config.limits.max_backlog, config::byte_count(64 * 1024));
  table.add({.name = "DYN_EPP_MAX_BUFFERED_BYTES",
             .help = "Request bodies of all streams together; beyond, requests get 503."},
            config.limits.max_buffered, config::byte_count(1024 * 1024));
  table.add({.name = "DYN_EPP_REQUEST_BODY_TIMEOUT_MS",
             .help = "Time from a request's headers to the end of its body; beyond, it gets 408."},
            config.request_body_timeout, config::milliseconds());
  table.add({.name = "DYN_EPP_MAX_INFLIGHT_REQUESTS",
             .help = "Requests that are being planned at a time; beyond, they get 429."},
            config.planning.max_inflight, config::whole_number(1));
  table.add({.name = "DYN_EPP_SHED_RETRY_AFTER_SECS",
             .help = "`retry-after` of 429 and 503 answers; 0 leaves it out."},
            config.retry_after_secs, config::whole_number(0, 86400));
}

void declare_model(OptionTable& table, EppConfig& config) {
  PlanningConfig& planning = config.planning;
  table.section("Model");
  table.add({.name = "DYN_MODEL_NAME", .help = "Name of the base model; required.", .required = true},
            planning.model_name, config::text());
  table.add({.name = "DYN_EPP_MODEL_ALIASES", .help = "Further names of the base model."},
            planning.model_aliases, config::comma_list());
  table.add({.name = "DYN_EPP_STRICT_MODEL",
             .help = "Answer 404 to other names; else they count as LoRA adapters."},
            planning.strict_model, config::boolean());
  table.add({.name = "DYN_KV_CACHE_BLOCK_SIZE",
             .help = "Tokens per KV block of the engines; required.",
             .required = true},
            planning.block_size, config::whole_number(1, 1 << 20));
  table.add({.name = "DYN_EPP_IS_EAGLE", .help = "The engines run EAGLE speculative decoding."},
            planning.is_eagle, config::boolean());
}

void declare_endpoints(OptionTable& table, EppConfig& config) {
  PlanningConfig& planning = config.planning;
  table.section("Endpoints");
  table.add({.name = "DYN_EPP_ENDPOINTS_FILE",
             .help = "YAML file of endpoints, watched; required; [its form](../epp/discovery/README.md).",
             .required = true},
            config.endpoints_file, config::file_path());
  table.add({.name = "DYN_EPP_TOPOLOGY_MODE",
             .help = "Whether each worker does all of a request, or prefill and decode are split."},
            config.topology,
            config::choice<TopologyMode>({{"aggregated", TopologyMode::kAggregated},
                                          {"disaggregated", TopologyMode::kDisaggregated}}));
  table.add(
      {.name = "DYN_EPP_HEALTH_INTERVAL_MS", .help = "How often /health of a file's endpoint is asked."},
      config.health_interval, config::milliseconds());
  table.add({.name = "DYN_EPP_HEALTH_TIMEOUT_MS", .help = "Time for one such answer."}, config.health_timeout,
            config::milliseconds());
  table.add({.name = "DYN_EPP_UNHEALTHY_AFTER", .help = "Failures in a row that take an endpoint out."},
            config.unhealthy_after, config::whole_number(1, 1000));
  table.add({.name = "DYN_EPP_HEALTHY_AFTER", .help = "Successes in a row that take it in again."},
            config.healthy_after, config::whole_number(1, 1000));
  table.add({.name = "DYN_USE_KV_EVENTS",
             .help = "Follow the engines' KV events; else what was sent to a worker is assumed to be there.",
             .aliases = {{.name = "DYN_ROUTER_USE_KV_EVENTS"}}},
            planning.use_kv_events, config::boolean());
  table.add({.name = "DYN_EPP_KV_EVENT_PORT",
             .help = "Port of an engine's KV events, where the endpoint names none; rank r is at this + r."},
            planning.kv_event_port, config::port());
  table.add({.name = "DYN_EPP_KV_EVENT_REPLAY_PORT",
             .help = "Port where missed events are asked for; rank r is at this + r."},
            planning.kv_replay_port, config::port());
  table.add({.name = "DYN_EPP_TOTAL_KV_BLOCKS",
             .help = "KV blocks of a worker; the index of KV events makes room for them."},
            planning.total_kv_blocks, config::whole_number(1));
  table.add({.name = "DYN_EPP_MAX_NUM_BATCHED_TOKENS",
             .help = "Prefill tokens per step of a worker; needed when queueing is on."},
            planning.max_num_batched_tokens, config::whole_number(1));
  table.add({.name = "DYN_EPP_PREFILL_MAX_NUM_BATCHED_TOKENS", .help = "The same, of prefill workers."},
            planning.prefill_max_num_batched_tokens, config::whole_number(1));
  table.add({.name = "DYN_EPP_DECODE_MAX_NUM_BATCHED_TOKENS", .help = "The same, of decode workers."},
            planning.decode_max_num_batched_tokens, config::whole_number(1));
}

void declare_tokenization(OptionTable& table, EppConfig& config) {
  table.section("Tokenization");
  table.add({.name = "DYN_EPP_TOKENIZER_PROTOCOL",
             .help = "What the tokenizer speaks; with `none` requests are routed by load alone."},
            config.tokenizer_protocol,
            config::choice<TokenizerProtocol>({{"none", TokenizerProtocol::kNone},
                                               {"vllm-render", TokenizerProtocol::kVllmRender},
                                               {"sglang-renderer", TokenizerProtocol::kSglangRenderer},
                                               {"sglang-tokenize", TokenizerProtocol::kSglangTokenize}}));
  table.add({.name = "DYN_EPP_TOKENIZER_SERVICE_URL", .help = "Base URL of the tokenizer, http."},
            config.tokenizer_url, config::text());
  table.add({.name = "DYN_EPP_TOKENIZER_FALLBACK",
             .help = "What becomes of a request that can't be tokenized: routed by load, or refused."},
            config.planning.tokenizer_fallback,
            config::choice<TokenizerFallback>(
                {{"load-only", TokenizerFallback::kLoadOnly}, {"error", TokenizerFallback::kError}}));
  table.add(
      {.name = "DYN_EPP_TOKENIZATION_TIMEOUT_MS", .help = "Time for one tokenization, retries included."},
      config.tokenization_timeout, config::milliseconds());
  table.add({.name = "DYN_EPP_TOKENIZER_MAX_RESPONSE_BYTES", .help = "Largest answer of the tokenizer."},
            config.tokenizer_max_response, config::byte_count(1024));
  table.add(
      {.name = "DYN_EPP_TOKENIZER_CACHE_BYTES", .help = "Memory for known prompts; 0 turns the cache off."},
      config.tokenizer_cache, config::byte_count());
}

void declare_plans(OptionTable& table, EppConfig& config) {
  PlanningConfig& planning = config.planning;
  table.section("Plans");
  table.add(
      {.name = "DYN_EPP_ON_NO_PREFILL", .help = "What becomes of a request when no prefill worker is ready."},
      planning.on_no_prefill,
      config::choice<OnNoPrefill>(
          {{"error", OnNoPrefill::kError}, {"decode-only", OnNoPrefill::kDecodeOnly}}));
  table.add(
      {.name = "DYN_ROUTER_CONDITIONAL_DISAGG",
       .help = "Leave prompts with few uncached tokens to decode alone. Not for SGLang, whose decode engines "
               "can't prefill."},
      planning.conditional_disaggregation, config::boolean());
  table.add({.name = "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD",
             .help = "Fewer uncached tokens than this on the chosen decode worker are few."},
            planning.conditional_isl_threshold, config::whole_number());
  table.add({.name = "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD",
             .help = "A smaller part of the prompt than this, uncached, is little as well."},
            planning.conditional_isl_ratio_threshold, decimal(1.0));
  table.add({.name = "DYN_ROUTER_CONDITIONAL_DISAGG_POLICY",
             .help = "Which prompts stay with decode: those with few uncached tokens, those that come while "
                     "prefill is busy, or both."},
            planning.conditional_policy,
            config::choice<ConditionalPolicy>({{"isl_bounding", ConditionalPolicy::kIslBounding},
                                               {"prefill_load", ConditionalPolicy::kPrefillLoad},
                                               {"isl_or_load", ConditionalPolicy::kIslOrLoad}}));
  table.add({.name = "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD",
             .help = "Prefill is busy when each worker has more pending prefill tokens than this."},
            planning.conditional_prefill_busy_threshold, config::whole_number());
  table.add({.name = "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD",
             .help = "Nothing stays with a decode worker that would then use more than this part of its KV "
                     "blocks."},
            config.router.decode_busy_threshold, decimal());
  table.add({.name = "DYN_EPP_NONSTREAM_PREFILL_RELEASE",
             .help = "When prefill load of an answer that is not streamed is released: after its expected "
                     "time, at the latest with the answer, or with the answer."},
            planning.nonstream_release,
            config::choice<NonstreamRelease>(
                {{"estimate", NonstreamRelease::kEstimate}, {"response", NonstreamRelease::kResponse}}));
  table.add({.name = "DYN_EPP_INJECT_CACHE_SALT",
             .help = "Add `cache_salt` from x-tenant-id to bodies that have none: the only edit of a body."},
            planning.inject_cache_salt, config::boolean());
}

void declare_router(OptionTable& table, EppConfig& config) {
  RouterSettings& router = config.router;
  table.section("Choice of workers");
  table.add({.name = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT", .help = "Weight of a cached prefix."},
            router.cost.overlap_score_credit, decimal());
  table.add({.name = "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
             .help = "How much that weight falls with a worker's prefill load."},
            router.cost.overlap_score_credit_decay, decimal());
  table.add({.name = "DYN_ROUTER_PREFILL_LOAD_SCALE", .help = "Weight of prefill load."},
            router.cost.prefill_load_scale, decimal());
  table.add({.name = "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", .help = "Weight of blocks in host memory."},
            router.cost.host_cache_hit_weight, decimal(1.0));
  table.add({.name = "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", .help = "Weight of blocks on disk."},
            router.cost.disk_cache_hit_weight, decimal(1.0));
  table.add(
      {.name = "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", .help = "Cost of each running request, in blocks."},
      router.cost.decode_active_request_weight, decimal());
  table.add(
      {.name = "DYN_ROUTER_TEMPERATURE", .help = "0 takes the cheapest worker; more spreads the choice."},
      router.cost.temperature, decimal());
  table.add({.name = "DYN_ROUTER_TRACK_ACTIVE_BLOCKS", .help = "Count the blocks of running requests."},
            router.track_active_blocks, config::boolean());
  table.add({.name = "DYN_ROUTER_TRACK_PREFILL_TOKENS", .help = "Count pending prefill tokens."},
            router.track_prefill_tokens, config::boolean());
  table.add({.name = "DYN_ROUTER_ASSUME_KV_REUSE",
             .help = "Count a block once that several running requests have in common."},
            router.assume_kv_reuse, config::boolean());
  table.add({.name = "DYN_ROUTER_ACTIVE_SEQUENCE_STRIDE",
             .help = "Keep one of so many block identities of a running request, which takes less memory."},
            router.active_sequence_stride, config::whole_number(1, 1024));
  table.add({.name = "DYN_ROUTER_TRACK_OUTPUT_BLOCKS", .help = "Count the blocks of growing answers."},
            router.track_output_blocks, config::boolean());
  table.add({.name = "DYN_ROUTER_QUEUE_THRESHOLD",
             .help = "Part of a worker's batched tokens beyond which requests wait; unset: none do."},
            router.queue_threshold, decimal());
  table.add({.name = "DYN_ROUTER_QUEUE_POLICY", .help = "Order of those who wait."}, router.queue_policy,
            config::choice<QueueOrder>(
                {{"fcfs", QueueOrder::kFcfs}, {"lcfs", QueueOrder::kLcfs}, {"wspt", QueueOrder::kWspt}}));
  table.add({.name = "DYN_ROUTER_POLICY_CONFIG",
             .help = "YAML file of policy classes, instead of the queue settings above; "
                     "[its form](../epp/policy_file/README.md)."},
            router.policy_path, config::file_path(config::FilePresence::must_be_readable));
  table.add({.name = "DYN_ROUTER_OVERLAP_REFRESH_AFTER_SECS",
             .help = "After such a wait what is cached is looked up again; 0: never."},
            router.overlap_refresh_after_secs, config::whole_number(0, 86400));
  table.add(
      {.name = "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",
       .help = "Part of its KV blocks in use beyond which a worker gets nothing more; when all are, 429. "
               "Unset: none."},
      router.overload.active_decode_blocks_frac, decimal());
  table.add(
      {.name = "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD", .help = "The same by its pending prefill tokens."},
      router.overload.active_prefill_tokens, config::whole_number());
  table.add({.name = "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
             .help = "The same by its pending prefill tokens, as a part of its batched tokens."},
            router.overload.active_prefill_tokens_frac, decimal());
  table.add({.name = "DYN_DISABLE_FRONTEND_NVEXT",
             .help = "Take no hints (priority, output length, worker) from a body's `nvext`."},
            config.planning.ignores_nvext, config::boolean());
  table.add({.name = "DYN_ROUTER_TTL_SECS",
             .help = "How long a prompt is assumed to stay on a worker without KV events; 0: not at all."},
            router.ttl_secs, config::whole_number(0, 86400));
  table.add({.name = "DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS",
             .help = "Life of a booking that nobody holds any more."},
            router.active_request_expiry_secs, config::whole_number(1, 86400));
  table.add({.name = "DYN_EPP_SESSION_AFFINITY_MODE",
             .help = "Whether x-dynamo-session-id binds to a worker.",
             .aliases = {{.name = "DYN_ROUTER_SESSION_AFFINITY_MODE"}}},
            router.affinity,
            config::choice<AffinityMode>(
                {{"off", AffinityMode::kOff}, {"soft", AffinityMode::kSoft}, {"hard", AffinityMode::kHard}}));
  table.add({.name = "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS", .help = "Life of such a binding without use."},
            router.affinity_ttl_secs, config::whole_number(1, 31'536'000));
  table.add({.name = "DYN_ROUTER_EVENT_THREADS",
             .help = "Threads that follow KV events.",
             .aliases = {{.name = "DYN_EPP_SELECTION_INDEXER_THREADS"}}},
            router.event_threads, config::whole_number(1, 64));
}

void declare_checks(OptionTable& table, EppConfig& config) {
  table.add_check([&config]() -> std::optional<std::string> {
    if (config.tls_certificate_path.empty() == config.tls_key_path.empty()) return std::nullopt;
    return "DYN_EPP_TLS_CERT_PATH and DYN_EPP_TLS_KEY_PATH go together";
  });
  table.add_check([&config]() -> std::optional<std::string> {
    if (config.tokenizer_protocol == TokenizerProtocol::kNone || !config.tokenizer_url.empty()) {
      return std::nullopt;
    }
    return "DYN_EPP_TOKENIZER_SERVICE_URL is required with this DYN_EPP_TOKENIZER_PROTOCOL";
  });
  table.add_check([&config]() -> std::optional<std::string> {
    const bool needs_total =
        config.router.overload.active_decode_blocks_frac || config.router.decode_busy_threshold;
    if (!needs_total || config.planning.total_kv_blocks) return std::nullopt;
    return "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD and DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD are "
           "parts of DYN_EPP_TOTAL_KV_BLOCKS, which is not set";
  });
  table.add_check([&config]() -> std::optional<std::string> {
    const PlanningConfig& planning = config.planning;
    const bool needs = config.router.queue_threshold || config.router.overload.active_prefill_tokens_frac;
    const bool by_role = config.topology == TopologyMode::kDisaggregated &&
                         planning.prefill_max_num_batched_tokens && planning.decode_max_num_batched_tokens;
    if (!needs || planning.max_num_batched_tokens || by_role) return std::nullopt;
    return "DYN_ROUTER_QUEUE_THRESHOLD and DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC are parts of "
           "DYN_EPP_MAX_NUM_BATCHED_TOKENS, which is not set";
  });
  table.add_check([&config]() -> std::optional<std::string> {
    if (config.planning.conditional_policy == ConditionalPolicy::kIslBounding ||
        config.planning.conditional_prefill_busy_threshold) {
      return std::nullopt;
    }
    return "this DYN_ROUTER_CONDITIONAL_DISAGG_POLICY needs "
           "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD";
  });
  table.add_check([&config]() -> std::optional<std::string> {
    if (!config.planning.conditional_disaggregation || config.topology == TopologyMode::kDisaggregated) {
      return std::nullopt;
    }
    return "DYN_ROUTER_CONDITIONAL_DISAGG needs DYN_EPP_TOPOLOGY_MODE=disaggregated";
  });
}

}  // namespace

void declare_options(OptionTable& table, EppConfig& config) {
  // Required ones start empty, so that a forgotten one is noticed.
  config.planning.model_name.clear();
  declare_listening(table, config);
  declare_bounds(table, config);
  declare_model(table, config);
  declare_endpoints(table, config);
  declare_tokenization(table, config);
  declare_plans(table, config);
  declare_router(table, config);
  table.section("Shutdown and logs");
  table.add({.name = "DYN_EPP_DRAIN_DELAY_MS",
             .help = "From SIGTERM, when health turns NOT_SERVING, to refusing new streams."},
            config.drain_delay, config::milliseconds(Millis(0)));
  table.add({.name = "DYN_EPP_DRAIN_TIMEOUT_MS", .help = "Time for streams in flight after that."},
            config.drain_timeout, config::milliseconds());
  table.add({.name = "DYN_EPP_LOG_LEVEL",
             .help = "Lowest level that is logged: trace, debug, info, warn, error or off. With debug, every "
                     "decision is explained.",
             .accepts = "trace, debug, info, warn, error or off",
             .validate = wrong_level},
            config.log_level, config::text());
  declare_checks(table, config);
}

std::string epp_settings_markdown() {
  EppConfig config;
  OptionTable table;
  declare_options(table, config);
  return table.markdown_table();
}

}  // namespace handoff::epp
