#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "epp/tokenization/service_url.hpp"

namespace handoff::epp {

struct ServiceAnswer {
  enum class Outcome { kAnswered, kNoConnection, kTimeout, kBroken, kTooLarge };
  Outcome outcome = Outcome::kNoConnection;
  unsigned status = 0;
  std::string body;
  std::string detail;  // what went wrong, for the log
};

// POSTs JSON to one HTTP/1.1 service over kept connections. Belongs to one loop. The caller bounds how many
// posts run at once, and with that the connections.
//
// A post that fails on a kept connection before it was answered, or that can't connect, is sent once more on
// a fresh one: tokenizing twice does no harm.
class ServiceClient {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  ServiceClient(boost::asio::io_context& loop, ServiceUrl url, std::size_t max_answer_bytes);
  ~ServiceClient();
  ServiceClient(const ServiceClient&) = delete;
  ServiceClient& operator=(const ServiceClient&) = delete;

  boost::asio::awaitable<ServiceAnswer> post(std::string path, std::shared_ptr<const std::string> body,
                                             Deadline deadline);

 private:
  struct Connection;

  std::unique_ptr<Connection> take_kept();
  void keep(std::unique_ptr<Connection> connection);
  boost::asio::awaitable<ServiceAnswer> connect(Connection& connection, Deadline deadline);
  boost::asio::awaitable<ServiceAnswer> exchange(Connection& connection, std::string head,
                                                 std::shared_ptr<const std::string> body, Deadline deadline);

  boost::asio::io_context& loop_;
  const ServiceUrl url_;
  const std::size_t max_answer_bytes_;
  std::vector<std::unique_ptr<Connection>> kept_;  // the latest last
};

}  // namespace handoff::epp
