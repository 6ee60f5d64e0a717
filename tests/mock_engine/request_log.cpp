#include "request_log.hpp"

#include <openssl/evp.h>

#include <array>

namespace handoff::mock {
namespace {

constexpr std::size_t kMaxEntries = 20000;
constexpr std::size_t kMaxBytes = std::size_t{128} << 20;

std::string sha256_hex(const std::string& data) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_sha256(), nullptr);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string base64(const std::string& data) {
  std::string out(4 * ((data.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(data.data()), static_cast<int>(data.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

// nlohmann's strict dump is the UTF-8 check.
bool is_utf8(const std::string& data) {
  try {
    (void)Json(data).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

Reply to_json(const LoggedRequest& entry) {
  Reply out;
  out["seq"] = entry.seq;
  out["connection"] = entry.connection;
  out["method"] = entry.method;
  out["target"] = entry.target;
  out["version"] = entry.version;
  out["headers"] = Reply::array();
  for (const auto& [name, value] : entry.headers) out["headers"].push_back(Reply::array({name, value}));
  const bool text = is_utf8(entry.body);
  out["body"] = text ? Reply(entry.body) : Reply(nullptr);
  out["body_bytes"] = entry.body.size();
  out["body_sha256"] = sha256_hex(entry.body);
  out["body_base64"] = text ? Reply(nullptr) : Reply(base64(entry.body));
  out["framing"] = entry.framing;
  out["leg"] = leg_name(entry.leg);
  out["complete"] = entry.complete;
  out["start_ms"] = entry.start_ms;
  out["body_ms"] = entry.body_ms < 0 ? Reply(nullptr) : Reply(entry.body_ms);
  out["end_ms"] = entry.end_ms < 0 ? Reply(nullptr) : Reply(entry.end_ms);
  out["status"] = entry.status;
  out["outcome"] = entry.outcome;
  return out;
}

}  // namespace

double RequestLog::now_ms() {
  static const auto start = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::shared_ptr<LoggedRequest> RequestLog::open(std::int64_t connection) {
  auto entry = std::make_shared<LoggedRequest>();
  entry->seq = next_seq_++;
  entry->connection = connection;
  entry->start_ms = now_ms();
  entries_.push_back(entry);
  trim();
  return entry;
}

void RequestLog::body_complete(LoggedRequest& entry) {
  entry.complete = true;
  entry.body_ms = now_ms();
  const bool dropped_meanwhile = entries_.empty() || entry.seq < entries_.front()->seq;
  if (!dropped_meanwhile) bytes_ += entry.body.size();
  trim();
}

void RequestLog::trim() {
  while (entries_.size() > kMaxEntries || (bytes_ > kMaxBytes && entries_.size() > 1)) {
    if (entries_.front()->complete) bytes_ -= entries_.front()->body.size();
    entries_.pop_front();
    ++dropped_;
  }
}

void RequestLog::clear() {
  entries_.clear();
  bytes_ = 0;
  dropped_ = 0;
}

Reply RequestLog::list() const {
  Reply list = Reply::array();
  for (const auto& entry : entries_) list.push_back(to_json(*entry));
  return Reply{{"requests", list}, {"dropped", dropped_}};
}

}  // namespace handoff::mock
