#include "epp/server/ext_proc_server.hpp"

#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "epp/server/connection_listener.hpp"
#include "epp/server/ext_proc_call.hpp"
#include "epp/server/grpc_log.hpp"
#include "epp/server/health_service.hpp"
#include "epp/server/server_credentials.hpp"
#include "handoff/epp/v1/introspection.grpc.pb.h"

namespace handoff::epp {
namespace {

// Beyond the body limit there is room for what else a message holds.
constexpr std::uint64_t kMessageSlack = 1ULL << 20;
constexpr std::uint64_t kLeastMessageLimit = 64ULL << 20;

// What a gateway may send ahead on one stream. A larger message is let in when it is read.
constexpr int kStreamWindow = 256 * 1024;

// Idle connections cost a client nothing. However many there are, health checks get through, or the whole
// program would be restarted for them; so do probes, KV events and the tokenizer.
constexpr std::uint64_t kDescriptorsLeftToOthers = 64;

class Introspection final : public handoff::epp::v1::Introspection::CallbackService {
 public:
  explicit Introspection(std::function<std::string()> report) : report_(std::move(report)) {}
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context, const v1::ReportRequest*,
                                   v1::ReportReply* reply) override {
    auto* reactor = context->DefaultReactor();
    if (report_) reply->set_json(report_());
    reactor->Finish(report_ ? grpc::Status::OK
                            : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "DYN_EPP_DEBUG_REPORT is off"));
    return reactor;
  }

 private:
  const std::function<std::string()> report_;
};

// What gateways need of a connection: their own pings are no attack.
void set_up_connections(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000);
  // Fixed: left alone, gRPC lets each stream send as much as the connection carries in a round trip, which
  // are megabytes that nobody has asked for when a stream doesn't read because its client doesn't.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindow);
}

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

std::unique_ptr<Acceptor> add_acceptor(grpc::ServerBuilder& builder,
                                       std::shared_ptr<grpc::ServerCredentials> credentials) {
  using Builder = grpc::ServerBuilder::experimental_type;
  return builder.experimental().AddExternalConnectionAcceptor(Builder::ExternalConnectionType::FROM_FD,
                                                              std::move(credentials));
}

void start_taking(ConnectionListener& listener, Acceptor& acceptor) {
  listener.start([&acceptor](int descriptor) {
    Acceptor::NewConnectionParameters connection;
    connection.fd = descriptor;
    acceptor.HandleNewConnection(&connection);
  });
}

}  // namespace

// gRPC's usual engine has all threads wait on one epoll set, one at a time: whenever the thread of a stream
// gets work, it first wakes another (of health checks, say) to wait in its place, which then receives what
// comes next and has to hand it back. With this engine each queue's thread waits for its own connections,
// which are few.
void let_queues_wait_apart() {
  setenv("GRPC_POLL_STRATEGY", "poll", 0);
}

class ExtProcServer::Impl {
 public:
  Impl(ExtProcServerOptions options, const LifeServices& life) : options_(std::move(options)) {
    // They live as long as the server: its handshakes ask them.
    credentials_ = make_server_credentials(options_.secure, options_.certificate_path, options_.key_path);
    // Both or none: the port of a program that doesn't start is of no use to anybody.
    listener_ = std::make_unique<ConnectionListener>(
        options_.bind, options_.port, "DYN_EPP_BIND, DYN_EPP_GRPC_PORT", kDescriptorsLeftToOthers);
    health_listener_ = std::make_unique<ConnectionListener>(options_.bind, options_.health_port,
                                                            "DYN_EPP_BIND, DYN_EPP_GRPC_HEALTH_PORT");
    start_health();
    start_ext_proc(life);
  }
  ~Impl() { stop(std::chrono::milliseconds(0)); }

  std::uint16_t port() const { return listener_->port(); }
  std::uint16_t health_port() const { return health_listener_->port(); }
  std::size_t open_streams() const { return open_streams_.load(std::memory_order_relaxed); }

  void set_ready(bool ready) {
    for (auto* health : {stream_health_.get(), health_.get()}) health->set_ready(ready);
  }

  void stop(std::chrono::milliseconds patience) {
    if (std::exchange(stopped_, true)) return;
    for (auto* health : {stream_health_.get(), health_.get()}) {
      if (health != nullptr) health->stop();
    }
    listener_->stop();
    // The queues go on meanwhile, so open streams can end.
    server_->Shutdown(std::chrono::system_clock::now() + patience);
    // A call that ends still needs its queue.
    for (std::size_t left = live_calls_; left != 0; left = live_calls_) live_calls_.wait(left);
    for (auto& deadlines : deadlines_) deadlines->stop();
    for (auto& queue : queues_) queue->Shutdown();
    for (auto& thread : threads_) thread.join();
    health_listener_->stop();
    health_server_->Shutdown(std::chrono::system_clock::now());
    // Their threads end with them.
    stream_health_.reset();
    health_.reset();
  }

 private:
  void start_health() {
    grpc::ServerBuilder builder;
    set_up_connections(builder);
    health_acceptor_ = add_acceptor(builder, grpc::InsecureServerCredentials());
    // Also without a report: its threads are those that wait for this port's connections.
    introspection_ = std::make_unique<Introspection>(options_.report);
    builder.RegisterService(introspection_.get());
    health_ = std::make_unique<HealthService>(builder);
    health_server_ = started(builder);
    health_->start();
    start_taking(*health_listener_, *health_acceptor_);
  }

  void start_ext_proc(const LifeServices& life) {
    grpc::ServerBuilder builder;
    set_up_connections(builder);
    acceptor_ = add_acceptor(builder, credentials_);
    builder.RegisterService(&service_);
    const auto message_limit = std::max(options_.limits.max_request_body + kMessageSlack, kLeastMessageLimit);
    builder.SetMaxReceiveMessageSize(
        static_cast<int>(std::min<std::uint64_t>(message_limit, std::numeric_limits<int>::max())));
    builder.SetMaxSendMessageSize(-1);
    for (std::size_t i = 0; i < options_.threads; ++i) queues_.push_back(builder.AddCompletionQueue());
    stream_health_ = std::make_unique<HealthService>(builder);
    server_ = started(builder);
    stream_health_->start();
    for (auto& queue : queues_) {
      readers_.push_back(std::make_unique<MessageReader>());
      writers_.push_back(std::make_unique<MessageWriter>(options_.retry_after_secs));
      deadlines_.push_back(std::make_unique<BodyDeadlines>(*queue, options_.request_body_timeout));
      hosts_.push_back(std::make_unique<CallHost>(CallHost{.service = &service_,
                                                           .queue = queue.get(),
                                                           .limits = &options_.limits,
                                                           .life = &life,
                                                           .reader = readers_.back().get(),
                                                           .writer = writers_.back().get(),
                                                           .deadlines = deadlines_.back().get(),
                                                           .open_streams = &open_streams_,
                                                           .live_calls = &live_calls_}));
      ExtProcCall::listen(*hosts_.back());
      threads_.emplace_back([host = hosts_.back().get()] { run(*host); });
    }
    start_taking(*listener_, *acceptor_);
  }

  static void run(CallHost& host) {
    void* tag = nullptr;
    bool ok = false;
    while (host.queue->Next(&tag, &ok)) {
      if (tag == host.deadlines) {
        host.deadlines->on_alarm();
      } else {
        ExtProcCall::on_event(tag, ok);
      }
    }
  }

  static std::unique_ptr<grpc::Server> started(grpc::ServerBuilder& builder) {
    auto server = builder.BuildAndStart();
    if (server == nullptr) throw std::runtime_error("gRPC does not start: " + last_grpc_error());
    return server;
  }

  ExtProcServerOptions options_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  RawExternalProcessor service_;
  std::unique_ptr<Introspection> introspection_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<grpc::Server> health_server_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<Acceptor> health_acceptor_;
  std::unique_ptr<ConnectionListener> listener_;
  std::unique_ptr<ConnectionListener> health_listener_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::unique_ptr<HealthService> stream_health_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<MessageReader>> readers_;
  std::vector<std::unique_ptr<MessageWriter>> writers_;
  std::vector<std::unique_ptr<BodyDeadlines>> deadlines_;
  std::vector<std::unique_ptr<CallHost>> hosts_;
  std::vector<std::thread> threads_;
  std::atomic<std::size_t> open_streams_{0};
  std::atomic<std::size_t> live_calls_{0};
  bool stopped_ = false;
};

ExtProcServer::ExtProcServer(ExtProcServerOptions options, const LifeServices& life)
    : impl_(std::make_unique<Impl>(std::move(options), life)) {}
ExtProcServer::~ExtProcServer() = default;
std::uint16_t ExtProcServer::port() const {
  return impl_->port();
}
std::uint16_t ExtProcServer::health_port() const {
  return impl_->health_port();
}
std::size_t ExtProcServer::open_streams() const {
  return impl_->open_streams();
}
void ExtProcServer::set_ready(bool ready) {
  impl_->set_ready(ready);
}
void ExtProcServer::stop(std::chrono::milliseconds patience) {
  impl_->stop(patience);
}

}  // namespace handoff::epp
