#include "sidecar/sidecar_config.hpp"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "shared/config/codec.hpp"
#include "shared/config/option_table.hpp"
#include "shared/telemetry/level.hpp"
#include "sidecar/prefill_endpoint.hpp"

namespace handoff::sidecar {
namespace {

using std::chrono::hours;
using Millis = std::chrono::milliseconds;

std::optional<std::string> wrong_allowlist(std::string_view text) {
  const auto parsed = parse_prefill_allowlist(text);
  if (const auto* error = std::get_if<AllowlistError>(&parsed)) return error->message;
  return std::nullopt;
}

std::optional<std::string> wrong_endpoint(std::string_view text) {
  if (text.empty() || read_configured_endpoint(text)) return std::nullopt;
  return "takes host:port or http://host:port, with a port from 1 to 65535";
}

std::optional<std::string> wrong_address(std::string_view text) {
  boost::system::error_code ec;
  boost::asio::ip::make_address(std::string(text), ec);
  if (!ec) return std::nullopt;
  return "takes an IPv4 or IPv6 address";
}

std::optional<std::string> wrong_level(std::string_view text) {
  if (telemetry::parse_level(text)) return std::nullopt;
  return "takes trace, debug, info, warn, error or off";
}

std::optional<std::string> wrong_path(std::string_view text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
  if (text.empty() || (text.front() == '/' && is_plain)) return std::nullopt;
  return "takes a path that begins with '/', without blanks";
}

std::optional<std::string> wrong_admin_port(std::string_view text) {
  if (text == "auto" || config::port(config::ZeroPort::allowed).read(text)) return std::nullopt;
  return "takes a port from 0 to 65535, or auto";
}

void declare_listening(config::OptionTable& table, SidecarConfig& config) {
  table.section("Listening");
  table.add({.name = "DYN_SIDECAR_BIND",
             .help = "Address that the sidecar listens on; `::` for IPv6 and IPv4.",
             .accepts = "an IP address",
             .validate = wrong_address},
            config.bind, config::text());
  table.add({.name = "DYN_SIDECAR_PORT", .help = "Port for inference requests; 0 lets the system choose."},
            config.port, config::port(config::ZeroPort::allowed));
  table.add({.name = "DYN_SIDECAR_ADMIN_PORT",
             .help = "Port for /livez and /readyz; 0 turns it off, `auto` lets the system choose.",
             .accepts = "a port from 0 to 65535, or auto",
             .validate = wrong_admin_port},
            config.admin_port, config::text());
  table.add({.name = "DYN_SIDECAR_THREADS", .help = "Event loops; 0 means one per core, at most 4."},
            config.threads, config::whole_number(0, 256));
  table.add({.name = "DYN_SIDECAR_MAX_CONNECTIONS",
             .help = "Client connections in all; further ones wait to be accepted."},
            config.max_connections, config::whole_number(1, 1'000'000));
}

void declare_engine(config::OptionTable& table, SidecarConfig& config) {
  table.section("Decode engine");
  table.add({.name = "DYN_DECODE_ENGINE_PORT", .help = "Port of the decode engine on localhost."},
            config.engine_port, config::port());
  table.add({.name = "DYN_SIDECAR_READY_PATH",
             .help = "Path of the engine that /ready asks; empty takes the backend's.",
             .accepts = "a path that begins with '/', without blanks",
             .validate = wrong_path},
            config.ready_path, config::text());
  table.add({.name = "DYN_SIDECAR_READY_INTERVAL_MS",
             .help = "How often /ready's answer is refreshed from the engine; 0 takes the backend's."},
            config.ready_interval, config::milliseconds(Millis(0), hours(1)));
  table.add({.name = "DYN_MODEL_NAME", .help = "Name of the model, for the start-up log only."},
            config.model_name, config::text());
}

void declare_backend(config::OptionTable& table, SidecarConfig& config) {
  table.section("Backend");
  table.add(
      {.name = "DYN_SIDECAR_BACKEND",
       .help =
           "Backend plugin. `none`: every request goes to the decode engine as it came, handoff fields of "
           "clients included.",
       .aliases = {{.name = "DYN_SIDECAR_PD_ADAPTER", .spellings = {{"none", ""}, {"vllm_nixl", "vllm"}}},
                   {.name = "DYN_SIDECAR_PD_BACKEND",
                    .spellings = {{"unavailable", ""}, {"sglang", "sglang"}}},
                   {.name = "DYN_ADAPTER_MODE",
                    .spellings = {{"none", ""}, {"trtllm-context-first", "trtllm"}},
                    .any_case = true}},
       .accepts = "a name such as vllm, the path of a shared object, or none"},
      config.backend, config::text());
  table.add({.name = "DYN_SIDECAR_BACKEND_DIR",
             .help = "Folder of the backend plugins; empty means beside the program."},
            config.backend_dir, config::text());
}

void declare_prefill(config::OptionTable& table, SidecarConfig& config) {
  table.section("Prefill");
  table.add(
      {.name = "DYN_SIDECAR_PREFILL_ENDPOINT",
       .help = "Prefill engine of requests without the routing header, as `host:port`; empty: they run on "
               "the decode engine alone. The allowlist is not asked.",
       .aliases = {{.name = "DYN_CONTEXT_ENGINE_URL"}},
       .accepts = "host:port",
       .validate = wrong_endpoint},
      config.prefill_endpoint, config::text());
  table.add(
      {.name = "DYN_SIDECAR_PREFILL_ALLOWLIST",
       .help =
           "Prefill endpoints that the routing header may name: IPs, CIDRs, host names and `.suffix`, each "
           "optionally with `:port`; empty allows all.",
       .accepts = "a list with commas",
       .validate = wrong_allowlist},
      config.prefill_allowlist, config::text());
  table.add({.name = "DYN_SIDECAR_ALLOW_CLIENT_HANDOFF",
             .help = "Pass on handoff fields that clients send; only for trusted clients."},
            config.allow_client_handoff, config::boolean());
  table.add({.name = "DYN_SIDECAR_ON_PREFILL_FAILURE",
             .help = "What becomes of a request whose prefill failed with a 5xx or a transport fault."},
            config.on_prefill_failure,
            config::choice<OnPrefillFailure>(
                {{"error", OnPrefillFailure::error}, {"decode-only", OnPrefillFailure::decode_only}}));
  table.add({.name = "DYN_SIDECAR_PREFILL_RETRIES",
             .help = "Further tries of the same prefill endpoint after a failed connect, and, where the "
                     "protocol lets a request be sent twice, after 502, 503 or 504."},
            config.prefill_retries, config::whole_number(0, 10));
  table.add({.name = "DYN_SIDECAR_PREFILL_RETRY_BACKOFF_MS", .help = "Pause before such a try."},
            config.prefill_retry_backoff, config::milliseconds(Millis(1), Millis(60000)));
  table.add({.name = "DYN_SIDECAR_PREFILL_DEADLINE_MS",
             .help = "Time for the whole prefill leg, further tries included.",
             .aliases = {{.name = "DYN_CONTEXT_FIRST_CONTEXT_DEADLINE_MS"}}},
            config.prefill_deadline, config::milliseconds(Millis(1), hours(24)));
  table.add({.name = "DYN_SIDECAR_MAX_PREFILL_RESPONSE_BYTES",
             .help = "Largest reply of a prefill engine.",
             .aliases = {{.name = "DYN_CONTEXT_FIRST_HANDOFF_BYTES"}}},
            config.max_prefill_response_bytes, config::byte_count(1));
}

void declare_limits(config::OptionTable& table, SidecarConfig& config) {
  table.section("Limits and time-outs");
  table.add({.name = "DYN_SIDECAR_CONNECT_TIMEOUT_MS", .help = "Time to connect to an engine."},
            config.connect_timeout, config::milliseconds());
  table.add({.name = "DYN_SIDECAR_READ_TIMEOUT_MS",
             .help = "Longest silence of an engine, and of a client that does not take its answer."},
            config.read_timeout, config::milliseconds());
  table.add(
      {.name = "DYN_SIDECAR_CLIENT_HEADER_TIMEOUT_MS",
       .help = "Time for a request's head, from its first byte; of a connection's first request, from its "
               "beginning."},
      config.client_header_timeout, config::milliseconds());
  table.add(
      {.name = "DYN_SIDECAR_CLIENT_BODY_TIMEOUT_MS", .help = "Time for a request body that is read whole."},
      config.client_body_timeout, config::milliseconds());
  table.add({.name = "DYN_SIDECAR_CLIENT_IDLE_TIMEOUT_MS",
             .help = "How long an idle client connection is kept; longer than the gateway keeps it."},
            config.client_idle_timeout, config::milliseconds());
  table.add({.name = "DYN_SIDECAR_MAX_REQUEST_BYTES",
             .help = "Largest body of a generation request.",
             .aliases = {{.name = "DYN_CONTEXT_FIRST_REQUEST_BYTES"}}},
            config.max_request_bytes, config::byte_count(1));
  table.add({.name = "DYN_SIDECAR_MAX_HEADER_BYTES", .help = "Largest head of a request or a reply."},
            config.max_header_bytes, config::byte_count(1024, 1024 * 1024));
  table.add({.name = "DYN_SIDECAR_MAX_HELD_BYTES",
             .help = "Decode bytes held while prefill is not over; beyond, the engine waits."},
            config.max_held_bytes, config::byte_count(64 * 1024));
  table.add({.name = "DYN_SIDECAR_MAX_BUFFERED_BYTES",
             .help = "Request bodies and kept replies in all, each event loop an equal share; beyond, "
                     "requests get 503."},
            config.max_buffered_bytes, config::byte_count(1024 * 1024));
  table.add({.name = "DYN_SIDECAR_MAX_IDLE_UPSTREAM",
             .help = "Idle connections to engines kept by each event loop."},
            config.max_idle_upstream, config::whole_number(0, 100000));
}

}  // namespace

void declare_options(config::OptionTable& table, SidecarConfig& config) {
  declare_listening(table, config);
  declare_engine(table, config);
  declare_backend(table, config);
  declare_prefill(table, config);
  declare_limits(table, config);

  table.section("Shutdown and logs");
  table.add({.name = "DYN_SIDECAR_DRAIN_DELAY_MS",
             .help = "From SIGTERM, when /ready turns 503, to closing the listener."},
            config.drain_delay, config::milliseconds(Millis(0)));
  table.add({.name = "DYN_SIDECAR_DRAIN_TIMEOUT_MS", .help = "Time for requests in flight after that."},
            config.drain_timeout, config::milliseconds());
  table.add({.name = "DYN_SIDECAR_LOG_LEVEL",
             .help = "Lowest level that is logged: trace, debug, info, warn, error or off.",
             .accepts = "trace, debug, info, warn, error or off",
             .validate = wrong_level},
            config.log_level, config::text());
}

std::size_t loop_count(const SidecarConfig& config) {
  if (config.threads != 0) return static_cast<std::size_t>(config.threads);
  return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 4);
}

}  // namespace handoff::sidecar
