#include "epp/server/health_service.hpp"

#include <grpcpp/alarm.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/async_unary_call.h>

#include <algorithm>
#include <atomic>
#include <boost/intrusive/list.hpp>
#include <mutex>
#include <optional>
#include <thread>

#include "epp/server/health_names.hpp"
#include "grpc/health/v1/health.grpc.pb.h"

namespace handoff::epp {
namespace {

namespace health = grpc::health::v1;
using Status = health::HealthCheckResponse::ServingStatus;

// What comes back from the queue.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;
  virtual void on_event(bool ok) = 0;
};

// A call that wants to know of changes.
class Watcher : public boost::intrusive::list_base_hook<> {
 public:
  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  virtual ~Watcher() = default;
  virtual void update() = 0;
};

}  // namespace

class HealthService::Impl final : private Event {
 public:
  explicit Impl(grpc::ServerBuilder& builder) {
    builder.RegisterService(&service_);
    // Not one of those that connections are given to.
    queue_ = builder.AddCompletionQueue(false);
  }
  ~Impl() override {
    if (!thread_.joinable()) return;
    queue_->Shutdown();
    thread_.join();
  }

  void start();
  void set_ready(bool ready) {
    ready_ = ready;
    tell();
  }
  void stop() {
    stopping_ = true;
    tell();
  }

 private:
  class Check;
  class Watch;

  void run() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) static_cast<Event*>(tag)->on_event(ok);
  }

  Status status_of(const std::string& name) const {
    const bool of_readiness = std::ranges::find(kReadinessNames, name) != kReadinessNames.end();
    if (!of_readiness && name != kLivenessName) return health::HealthCheckResponse::SERVICE_UNKNOWN;
    return !of_readiness || ready_ ? health::HealthCheckResponse::SERVING
                                   : health::HealthCheckResponse::NOT_SERVING;
  }

  // Lets the queue's thread look at what has changed.
  void tell() {
    const std::lock_guard lock(mutex_);
    if (is_told_) return;
    is_told_ = true;
    alarm_.emplace();
    alarm_->Set(queue_.get(), gpr_now(GPR_CLOCK_MONOTONIC), static_cast<Event*>(this));
  }
  void on_event(bool ok) override;

  health::Health::AsyncService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  bool is_told_ = false;
  std::optional<grpc::Alarm> alarm_;
  boost::intrusive::list<Watcher, boost::intrusive::constant_time_size<false>> watches_;
  std::thread thread_;
};

// One question. Owns itself: made by listen(), gone when its answer is out.
class HealthService::Impl::Check final : private Event {
 public:
  static void listen(Impl& host) {
    auto* call = new Check(host);
    host.service_.RequestCheck(&call->context_, &call->request_, &call->answer_, host.queue_.get(),
                               host.queue_.get(), static_cast<Event*>(call));
  }

 private:
  explicit Check(Impl& host) : host_(host), answer_(&context_) {}

  void on_event(bool ok) override {
    if (!ok || std::exchange(answered_, true)) {
      delete this;
      return;
    }
    listen(host_);
    const Status status = host_.status_of(request_.service());
    if (status == health::HealthCheckResponse::SERVICE_UNKNOWN) {
      answer_.FinishWithError(grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service"),
                              static_cast<Event*>(this));
      return;
    }
    health::HealthCheckResponse response;
    response.set_status(status);
    answer_.Finish(response, grpc::Status::OK, static_cast<Event*>(this));
  }

  Impl& host_;
  grpc::ServerContext context_;
  health::HealthCheckRequest request_;
  grpc::ServerAsyncResponseWriter<health::HealthCheckResponse> answer_;
  bool answered_ = false;
};

// One that is told the status and each change of it. Owns itself: made by listen(), gone when the client or
// the server has left and all of its operations came back.
class HealthService::Impl::Watch final : private Watcher {
 public:
  static void listen(Impl& host) {
    auto* call = new Watch(host);
    call->context_.AsyncNotifyWhenDone(call->gone_.tag());
    host.service_.RequestWatch(&call->context_, &call->request_, &call->stream_, host.queue_.get(),
                               host.queue_.get(), call->accepted_.tag());
  }

 private:
  // Sends the status where it is another than the last that was sent.
  void update() override {
    if (writing_ || left_) return;
    if (host_.stopping_) {
      left_ = writing_ = true;
      stream_.Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down"), written_.tag());
      return;
    }
    const Status status = host_.status_of(request_.service());
    if (sent_ == status) return;
    sent_ = status;
    health::HealthCheckResponse response;
    response.set_status(status);
    writing_ = true;
    stream_.Write(response, written_.tag());
  }

  struct Operation final : Event {
    Operation(Watch& of, void (Watch::*then)(bool)) : watch(of), call(then) {}
    void* tag() { return static_cast<Event*>(this); }
    void on_event(bool ok) override { (watch.*call)(ok); }
    Watch& watch;
    void (Watch::*call)(bool);
  };

  explicit Watch(Impl& host) : host_(host), stream_(&context_) {}

  void on_accepted(bool ok) {
    if (!ok) {  // the server stops; nothing else comes back
      delete this;
      return;
    }
    listen(host_);
    host_.watches_.push_back(*this);
    update();
  }
  void on_written(bool ok) {
    writing_ = false;
    left_ = left_ || !ok;
    update();
    leave_if_done();
  }
  void on_gone(bool) {
    gone_already_ = left_ = true;
    leave_if_done();
  }
  void leave_if_done() {
    if (!gone_already_ || writing_) return;
    host_.watches_.erase(host_.watches_.iterator_to(*this));
    delete this;
  }

  Impl& host_;
  grpc::ServerContext context_;
  health::HealthCheckRequest request_;
  grpc::ServerAsyncWriter<health::HealthCheckResponse> stream_;
  Operation accepted_{*this, &Watch::on_accepted};
  Operation written_{*this, &Watch::on_written};
  Operation gone_{*this, &Watch::on_gone};
  std::optional<Status> sent_;
  bool writing_ = false;
  bool left_ = false;          // nothing is to be sent any more
  bool gone_already_ = false;  // and gRPC has said that the call is over
};

void HealthService::Impl::start() {
  Check::listen(*this);
  Watch::listen(*this);
  thread_ = std::thread([this] { run(); });
}

void HealthService::Impl::on_event(bool) {
  {
    const std::lock_guard lock(mutex_);
    is_told_ = false;
  }
  for (Watcher& watch : watches_) watch.update();
}

HealthService::HealthService(grpc::ServerBuilder& builder) : impl_(std::make_unique<Impl>(builder)) {}
HealthService::~HealthService() = default;
void HealthService::start() {
  impl_->start();
}
void HealthService::set_ready(bool ready) {
  impl_->set_ready(ready);
}
void HealthService::stop() {
  impl_->stop();
}

}  // namespace handoff::epp
