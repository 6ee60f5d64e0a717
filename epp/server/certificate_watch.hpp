#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "epp/server/certificate.hpp"

namespace handoff::epp {

// A certificate and its key in two files, which may be replaced while they are served. What could not be
// served is not taken: the old pair stays, and the log says why. Files are looked at again and again rather
// than watched, as they may lie on any file system; a change counts when two looks saw the same, so a
// certificate and its key may be replaced one after the other.
//
// Owner: the server's credentials. Threads: any.
class CertificateWatch {
 public:
  // Throws std::runtime_error that names the setting for a pair that can't be served. `interval` 0: nobody
  // looks but the caller.
  CertificateWatch(std::string certificate_path, std::string key_path, std::chrono::milliseconds interval);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  // The pair to be served when it is another one than that of `number`, which then becomes its number. 0 is
  // no pair's.
  std::optional<PemCertificate> newer_than(std::uint64_t& number) const;
  void look();

 private:
  // What the files held.
  struct Look {
    PemCertificate pem;
    std::string unreadable;  // which of them and why; empty: both could be read
    bool operator==(const Look&) const = default;
  };
  Look read() const;
  // Why it can't be served; empty: it can.
  std::string problem_of(const Look& look) const;
  void run(std::chrono::milliseconds interval);

  const std::string certificate_path_;
  const std::string key_path_;
  Look last_;    // look()'s only, like judged_
  Look judged_;  // the last that was taken or refused

  mutable std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  PemCertificate served_;
  std::uint64_t number_ = 1;
  std::thread thread_;
};

}  // namespace handoff::epp
