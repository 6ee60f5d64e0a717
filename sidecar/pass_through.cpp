#include "sidecar/pass_through.hpp"

#include <optional>

#include "sidecar/request_target.hpp"

namespace handoff::sidecar {
namespace {

Answer recorded(SidecarError error, std::string_view message, ExchangeRecord& record) {
  const auto& row = row_of(error);
  record.error_code = row.code;
  return error_answer(error, row.status, message);
}

LegFraming framing_of(const RequestContext& request) {
  LegFraming framing;
  if (!request.body_is_whole) {
    framing.chunked = request.head.chunked;
    framing.content_length = request.head.content_length;
  } else if (request.head.has_body() || request.head.content_length) {
    framing.content_length = request.body.size();
  }
  return framing;
}

Answer upload_failure_answer(const ClientUpload& upload, ExchangeRecord& record) {
  if (upload.timed_out()) {
    return recorded(SidecarError::pd_request_timeout, "The request body stopped arriving.", record);
  }
  return recorded(SidecarError::bad_request, "The request body is framed wrongly.", record);
}

}  // namespace

Answer decode_failure_answer(LegFailure failure, ExchangeRecord& record) {
  switch (failure) {
    case LegFailure::connect:
      return recorded(SidecarError::decode_upstream_error, "The decode engine could not be connected to.",
                      record);
    case LegFailure::name:
      return recorded(SidecarError::decode_upstream_error, "The decode engine's host name has no address.",
                      record);
    case LegFailure::connect_timeout:
      return recorded(SidecarError::decode_upstream_timeout,
                      "The decode engine could not be reached in time.", record);
    case LegFailure::read_timeout:
    case LegFailure::deadline:
      return recorded(SidecarError::decode_upstream_timeout, "The decode engine did not answer in time.",
                      record);
    case LegFailure::too_large:
      return recorded(SidecarError::decode_upstream_error,
                      "The head of the decode engine's reply is too large.", record);
    case LegFailure::malformed:
      return recorded(SidecarError::decode_upstream_error, "The decode engine's reply is not valid HTTP.",
                      record);
    case LegFailure::cancelled:
      return recorded(SidecarError::request_cancelled, "The sidecar is shutting down.", record);
    case LegFailure::overloaded:
      return recorded(SidecarError::sidecar_overloaded, row_of(SidecarError::sidecar_overloaded).message,
                      record);
    default:
      return recorded(SidecarError::decode_upstream_error,
                      "The decode engine closed the connection without an answer.", record);
  }
}

Awaitable<ExchangeOutcome> pass_through(LoopServices& services, RequestContext& request,
                                        ClientConnection& client, ResponseRelay& relay, CancelSource& cancel,
                                        PassThroughOptions options) {
  const std::string_view body = request.body.view();
  std::string target_buffer;
  LegHead head{.method = request.head.method,
               .target = origin_form(request.head.target, target_buffer),
               .engine = &services.plan.local_engine,
               .client = &request.head,
               .overrides = options.overrides,
               .keep_accept_encoding = true,
               .request_id_if_absent = {}};
  std::optional<ClientUpload> upload;
  if (!request.body_is_whole) {
    upload.emplace(client, request.parser, request.head, body, services.scratch,
                   services.plan.config.read_timeout);
  }
  UpstreamLeg leg(services.legs, LegRequest{.engine = services.plan.local_engine,
                                            .head = write_leg_head(head, framing_of(request)),
                                            .body = {&body, upload ? std::size_t{0} : std::size_t{1}},
                                            .upload = upload ? &*upload : nullptr,
                                            .is_head = request.head.method == "HEAD",
                                            .may_resend = options.may_resend && !upload,
                                            .deadline = milliseconds{0},
                                            .on_sent = nullptr,
                                            .on_connected = nullptr});
  cancel.set_handler([&leg] { leg.cancel(); });
  if (!upload) relay.on_flowing([&request] { request.body.release(); });

  auto failure = co_await leg.open();
  auto end = RelayEnd::engine_failed;
  if (failure == LegFailure::none) {
    if (upload && !upload->finished()) relay.forbid_keep_alive();
    end = co_await relay.relay(leg, {}, false);
    failure = relay.failure();
  }
  cancel.clear_handler();
  if (upload) request.record.bytes_in = upload->bytes();
  record_leg(request.record.decode, leg, failure);

  if (end == RelayEnd::complete) co_return ExchangeOutcome::answered;
  if (end == RelayEnd::client_gone || client.gone() || cancel.reason() == CancelReason::client_gone) {
    co_return ExchangeOutcome::client_gone;
  }
  if (relay.started()) {
    relay.break_off();
    co_return cancel.cancelled() ? ExchangeOutcome::cancelled : ExchangeOutcome::broken;
  }
  if (upload && !upload->finished()) {
    if (failure == LegFailure::upload && upload->client_left()) co_return ExchangeOutcome::client_gone;
    relay.forbid_keep_alive();
  }
  const auto answer = failure == LegFailure::upload ? upload_failure_answer(*upload, request.record)
                                                    : decode_failure_answer(failure, request.record);
  const auto said = co_await relay.send(answer);
  if (said != RelayEnd::complete) co_return ExchangeOutcome::client_gone;
  co_return cancel.cancelled() ? ExchangeOutcome::cancelled : ExchangeOutcome::answered;
}

}  // namespace handoff::sidecar
