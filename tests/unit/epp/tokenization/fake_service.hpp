#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <future>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace handoff::epp::test {

// A tokenizer service that the test plays: each request is handed to `answer`, whose text goes out as it is;
// an empty text hangs up, and so does "close" after an answer.
class FakeService {
 public:
  struct Request {
    std::string target;
    std::string body;
    int connection = 0;
  };
  struct Answer {
    std::string text;
    bool close = false;
    std::size_t first = 0;               // bytes that go out by themselves, before the rest
    std::promise<void>* sent = nullptr;  // told when all has gone out
  };
  using Handler = std::function<Answer(const Request&)>;

  explicit FakeService(Handler handler) : handler_(std::move(handler)) {
    thread_ = std::thread([this] { accept(); });
  }
  ~FakeService() {
    stopping_ = true;
    boost::system::error_code ignored;
    tcp::socket wake(loop_);
    wake.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
    {
      const std::lock_guard lock(mutex_);
      for (tcp::socket& socket : sockets_) socket.shutdown(tcp::socket::shutdown_both, ignored);
    }
    for (std::thread& one : connections_) one.join();
  }

  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()) + "/base/";
  }
  std::vector<Request> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  static std::string reply(int status, const std::string& body, const std::string& more = {}) {
    return "HTTP/1.1 " + std::to_string(status) + " x\r\nContent-Type: application/json\r\n" + more +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

 private:
  using tcp = boost::asio::ip::tcp;

  void accept() {
    for (int number = 1;; ++number) {
      tcp::socket* socket = nullptr;
      {
        const std::lock_guard lock(mutex_);
        socket = &sockets_.emplace_back(loop_);
      }
      boost::system::error_code ec;
      acceptor_.accept(*socket, ec);
      if (stopping_) return;
      connections_.emplace_back([this, socket, number] { serve(*socket, number); });
    }
  }

  void serve(tcp::socket& socket, int number) {
    std::string data;
    boost::system::error_code ec;
    while (true) {
      const std::size_t head =
          boost::asio::read_until(socket, boost::asio::dynamic_buffer(data), "\r\n\r\n", ec);
      if (ec) break;
      const std::size_t at = data.find("Content-Length: ") + 16;
      const std::size_t size = std::strtoul(data.c_str() + at, nullptr, 10);
      if (data.size() < head + size)
        boost::asio::read(socket, boost::asio::dynamic_buffer(data),
                          boost::asio::transfer_exactly(head + size - data.size()), ec);
      if (ec) break;
      Request request;
      request.target = data.substr(5, data.find(' ', 5) - 5);
      request.body = data.substr(head, size);
      request.connection = number;
      data.erase(0, head + size);
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      const Answer answer = handler_(request);
      if (answer.text.empty()) break;
      const auto text = boost::asio::buffer(answer.text);
      if (answer.first > 0) boost::asio::write(socket, boost::asio::buffer(text, answer.first), ec);
      if (!ec) boost::asio::write(socket, text + answer.first, ec);
      if (answer.sent != nullptr) answer.sent->set_value();
      if (ec || answer.close) break;
    }
    const std::lock_guard lock(mutex_);
    socket.shutdown(tcp::socket::shutdown_both, ec);
    socket.close(ec);
  }

  Handler handler_;
  boost::asio::io_context loop_;
  tcp::acceptor acceptor_{loop_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0)};
  mutable std::mutex mutex_;
  std::list<tcp::socket> sockets_;
  std::vector<Request> requests_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> connections_;
  std::thread thread_;
};

}  // namespace handoff::epp::test
