// One client connection, from accept to close.
#pragma once

#include <boost/intrusive/list.hpp>
#include <memory>
#include <optional>
#include <string>

#include "sidecar/cancel_source.hpp"
#include "sidecar/client_connection.hpp"
#include "sidecar/loop_services.hpp"
#include "sidecar/request_context.hpp"
#include "sidecar/response_relay.hpp"

namespace handoff::sidecar {

/// Which port a connection came in on.
enum class Surface { inference, admin };

/// Reads requests one after the other and sees to it that each gets exactly one answer. Owned by its loop,
/// which lists it; ends when run() returns. Between requests it holds no buffer.
class ClientSession : public boost::intrusive::list_base_hook<> {
 public:
  ClientSession(LoopServices& services, Socket socket, Surface surface, std::string id_prefix);

  /// If run() ended by an exception, nothing may call into what it left.
  ~ClientSession();
  ClientSession(const ClientSession&) = delete;
  ClientSession& operator=(const ClientSession&) = delete;

  Awaitable<> run();

  /// No further request after the present one.
  void drain();
  /// Ends the present request too: with an error if nothing was answered, visibly broken otherwise.
  void force_end();
  /// Ends the session at once, whatever it is doing.
  void abandon();

 private:
  Awaitable<bool> await_request();
  Awaitable<bool> serve_one();
  Awaitable<std::optional<http1::HeadStatus>> read_head(RequestContext& request);
  Awaitable<ExchangeOutcome> handle(const std::shared_ptr<RequestContext>& request, ResponseRelay& relay,
                                    CancelSource& cancel);
  Awaitable<ExchangeOutcome> answer_locally(RequestContext& request, ResponseRelay& relay,
                                            const Answer& answer);
  Awaitable<ExchangeOutcome> refuse(RequestContext& request, ResponseRelay& relay, SidecarError error,
                                    std::string_view message = {},
                                    std::optional<std::string_view> param = std::nullopt);
  Awaitable<std::optional<ExchangeOutcome>> take_body(RequestContext& request, ResponseRelay& relay,
                                                      bool guarded);
  void begin_record(RequestContext& request);

  LoopServices& services_;
  std::unique_ptr<ClientConnection> client_;
  Surface surface_;
  std::string id_prefix_;
  std::uint64_t requests_ = 0;
  CancelSource* current_ = nullptr;  // of the request being served
  bool draining_ = false;
  bool ending_ = false;  // not even a request that is already here is served
  bool asked_before_ = false;
  bool unread_request_ = false;
  bool body_taken_ = false;  // the present request's body has left the inbox
};

}  // namespace handoff::sidecar
