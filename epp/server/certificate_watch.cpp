#include "epp/server/certificate_watch.hpp"

#include <stdexcept>
#include <utility>

#include "shared/config/setting_file.hpp"
#include "shared/telemetry/log.hpp"

namespace handoff::epp {
namespace {

using telemetry::Level;
using telemetry::LogLine;

constexpr std::size_t kLargestPem = std::size_t{1} << 20;
constexpr const char* kCertificateSetting = "DYN_EPP_TLS_CERT_PATH";
constexpr const char* kKeySetting = "DYN_EPP_TLS_KEY_PATH";

std::string about(const char* setting, const std::string& path, const std::string& problem) {
  return setting + (": " + path) + " " + problem;
}

}  // namespace

CertificateWatch::CertificateWatch(std::string certificate_path, std::string key_path,
                                   std::chrono::milliseconds interval)
    : certificate_path_(std::move(certificate_path)), key_path_(std::move(key_path)) {
  last_ = read();
  // gRPC would start with anything, and then fail every handshake.
  if (const std::string problem = problem_of(last_); !problem.empty()) throw std::runtime_error(problem);
  judged_ = last_;
  served_ = last_.pem;
  if (interval.count() > 0) thread_ = std::thread([this, interval] { run(interval); });
}

CertificateWatch::~CertificateWatch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_one();
  thread_.join();
}

std::optional<PemCertificate> CertificateWatch::newer_than(std::uint64_t& number) const {
  const std::lock_guard lock(mutex_);
  if (number == number_) return std::nullopt;
  number = number_;
  return served_;
}

void CertificateWatch::look() {
  Look now = read();
  const bool is_settled = now == last_;
  last_ = std::move(now);
  if (!is_settled || last_ == judged_) return;
  judged_ = last_;
  if (const std::string problem = problem_of(last_); !problem.empty()) {
    LogLine(Level::warn, "certificate_kept").field("reason", problem);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (served_ == last_.pem) return;  // back to the old one
  served_ = last_.pem;
  ++number_;
  LogLine(Level::info, "certificate_replaced").field("path", certificate_path_);
}

CertificateWatch::Look CertificateWatch::read() const {
  Look look;
  auto certificate = config::read_setting_file(certificate_path_, kLargestPem);
  auto key = config::read_setting_file(key_path_, kLargestPem);
  look.pem = {.certificate = std::move(certificate.text), .private_key = std::move(key.text)};
  if (!certificate.error.empty()) {
    look.unreadable = about(kCertificateSetting, certificate_path_, certificate.error);
  } else if (!key.error.empty()) {
    look.unreadable = about(kKeySetting, key_path_, key.error);
  }
  return look;
}

std::string CertificateWatch::problem_of(const Look& look) const {
  if (!look.unreadable.empty()) return look.unreadable;
  const auto problem = find_problem(look.pem);
  if (!problem) return {};
  return problem->is_of_key ? about(kKeySetting, key_path_, problem->text)
                            : about(kCertificateSetting, certificate_path_, problem->text);
}

void CertificateWatch::run(std::chrono::milliseconds interval) {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, interval, [this] { return stopping_; })) {
    lock.unlock();
    look();
    lock.lock();
  }
}

}  // namespace handoff::epp
