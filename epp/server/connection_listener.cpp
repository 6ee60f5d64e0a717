#include "epp/server/connection_listener.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <list>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "shared/telemetry/log.hpp"
#include "shared/telemetry/rate_limited_warning.hpp"

namespace handoff::epp {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using SystemError = boost::system::error_code;

// Nothing tells when a descriptor becomes free.
constexpr std::chrono::milliseconds kPauseWhenFull{100};
constexpr std::chrono::seconds kWarningInterval{10};

// With a low limit there must be some for the port's own connections.
constexpr std::uint64_t kLargestShareLeft = 8;

// A new descriptor has the lowest number that is free, so its number says how many are taken. The limit is
// asked for each time: it may be changed from outside.
bool is_of_the_last(int descriptor, std::uint64_t count) {
  rlimit limit{};
  if (count == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const std::uint64_t all = limit.rlim_cur;
  return static_cast<std::uint64_t>(descriptor) >= all - std::min(count, all / kLargestShareLeft);
}

std::vector<Tcp::endpoint> endpoints_of(asio::io_context& loop, std::string bind, std::uint16_t port,
                                        SystemError& ec) {
  if (bind.size() > 1 && bind.front() == '[' && bind.back() == ']') bind = bind.substr(1, bind.size() - 2);
  Tcp::resolver resolver(loop);
  std::vector<Tcp::endpoint> out;
  for (const auto& found : resolver.resolve(bind, std::to_string(port), Tcp::resolver::passive, ec)) {
    out.push_back(found.endpoint());
  }
  if (out.size() == 1 && out[0].address().is_unspecified()) {
    out = {Tcp::endpoint(Tcp::v6(), port), Tcp::endpoint(Tcp::v4(), port)};
  }
  return out;
}

}  // namespace

class ConnectionListener::Impl {
 public:
  Impl(const std::string& bind, std::uint16_t port, const std::string& setting, std::uint64_t left_to_others)
      : left_to_others_(left_to_others) {
    SystemError ec;
    const auto wanted = endpoints_of(loop_, bind, port, ec);
    const bool both_families = wanted.size() == 2 && wanted[0].address().is_unspecified();
    for (const auto& endpoint : wanted) {
      // Without the sixth version the fourth alone will do; a port that is taken in either is taken.
      if (ec && (!both_families || ec == asio::error::address_in_use)) break;
      listen(endpoint, ec);
      if (!ec && both_families) break;  // the sixth version's socket takes the fourth's connections
    }
    if (ec || places_.empty()) {
      const std::string shown =
          bind.find(':') != std::string::npos && bind.front() != '[' ? "[" + bind + "]" : bind;
      throw std::runtime_error("cannot listen on " + shown + ":" + std::to_string(port) + " (" + setting +
                               "): " + (ec ? ec.message() : "no such address"));
    }
  }
  ~Impl() { stop(); }

  std::uint16_t port() const { return port_; }

  void start(std::function<void(int)> take) {
    take_ = std::move(take);
    for (Place& place : places_) accept(place);
    thread_ = std::thread([this] { loop_.run(); });
  }

  void stop() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
    places_.clear();
  }

 private:
  struct Place {
    explicit Place(asio::io_context& loop) : acceptor(loop), pause(loop) {}
    Tcp::acceptor acceptor;
    asio::steady_timer pause;
  };

  void listen(Tcp::endpoint endpoint, SystemError& ec) {
    if (endpoint.port() == 0) endpoint.port(port_);  // a name's addresses get the same one
    places_.emplace_back(loop_);
    Tcp::acceptor& acceptor = places_.back().acceptor;
    SystemError ignored;
    acceptor.open(endpoint.protocol(), ec);
    if (!ec) acceptor.set_option(Tcp::acceptor::reuse_address(true), ec);
    if (!ec && endpoint.address().is_v6()) {
      acceptor.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), ignored);
    }
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(Tcp::acceptor::max_listen_connections, ec);
    if (ec) {
      places_.pop_back();
    } else {
      port_ = acceptor.local_endpoint(ignored).port();
    }
  }

  void accept(Place& place) {
    place.acceptor.async_accept([this, &place](SystemError ec, Tcp::socket socket) {
      if (ec == asio::error::operation_aborted) return;
      if (ec &&
          ec !=
              asio::error::connection_aborted) {  // no descriptors, or memory; another try at once fails too
        wait(place, ec.message());
        return;
      }
      if (!ec && is_of_the_last(socket.native_handle(), left_to_others_)) {
        socket.close(ec);
        wait(place, "the last descriptors are left to others");
        return;
      }
      if (!ec) {
        full_.end_episode();
        hand_over(std::move(socket));
      }
      accept(place);
    });
  }

  void hand_over(Tcp::socket socket) {
    SystemError ec;
    socket.set_option(Tcp::no_delay(true), ec);
    socket.native_non_blocking(true, ec);
    const int descriptor = ec ? -1 : socket.release(ec);
    if (!ec) take_(descriptor);
  }

  void wait(Place& place, std::string_view why) {
    if (const auto suppressed = full_.try_pass()) {
      telemetry::LogLine(telemetry::Level::warn, "connections_wait")
          .field("port", port_)
          .field("reason", why)
          .field("suppressed", *suppressed);
    }
    place.pause.expires_after(kPauseWhenFull);
    place.pause.async_wait([this, &place](SystemError ec) {
      if (!ec) accept(place);
    });
  }

  asio::io_context loop_{1};
  std::list<Place> places_;
  const std::uint64_t left_to_others_;
  std::uint16_t port_ = 0;
  std::function<void(int)> take_;
  telemetry::RateLimitedWarning full_{kWarningInterval};
  std::thread thread_;
};

ConnectionListener::ConnectionListener(const std::string& bind, std::uint16_t port,
                                       const std::string& setting, std::uint64_t left_to_others)
    : impl_(std::make_unique<Impl>(bind, port, setting, left_to_others)) {}
ConnectionListener::~ConnectionListener() = default;
std::uint16_t ConnectionListener::port() const {
  return impl_->port();
}
void ConnectionListener::start(std::function<void(int descriptor)> take) {
  impl_->start(std::move(take));
}
void ConnectionListener::stop() {
  impl_->stop();
}

}  // namespace handoff::epp
