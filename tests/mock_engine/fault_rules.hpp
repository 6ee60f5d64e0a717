// Faults a test asked for: which requests they hit and what they do. Pure; README lists the JSON form.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api_request.hpp"
#include "random.hpp"

namespace handoff::mock {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct CannedReply {
  int status = 200;
  std::string content_type = "application/json";
  HeaderList headers;
  std::string body;
  bool chunked = false;
};

struct InformationalHeads {
  int status = 103;
  std::int64_t count = 1;
  HeaderList headers;
};

enum class CutKind { kReset, kClose, kStall };

struct ByteCut {
  CutKind kind = CutKind::kReset;
  std::uint64_t at = 0;
  bool in_body = false;
};

struct Trickle {
  std::size_t bytes = 1;
  std::chrono::milliseconds every{10};
  std::size_t most = SIZE_MAX;  // slices; what is left after so many goes at once
};

enum class Framing {
  kSound,
  kBadChunkSize,
  kChunkedAndLength,
  kShortLength,
  kLongLength,
  kGarbageStatus,
  kOversizeHead,
  kNoFinalChunk,
};

// The engine takes the request and then fails it; what that looks like is the engine's own way.
struct EngineError {
  int status = 500;  // 0: as if somebody had aborted it
  std::string message;
  bool retryable = false;
};

// Everything the matching rules do to one request, merged.
struct FaultPlan {
  bool any = false;
  bool stall = false;
  bool die = false;
  std::optional<CannedReply> reply;
  std::optional<CannedReply> early;
  std::optional<int> reject;
  std::optional<EngineError> engine_error;
  std::optional<InformationalHeads> informational;
  std::chrono::milliseconds delay_before{0};
  std::chrono::milliseconds delay_after{0};
  std::optional<ByteCut> cut;
  std::optional<Trickle> trickle;
  Framing framing = Framing::kSound;
  std::size_t head_bytes = 65536;
  bool sse = false;
  std::optional<Json> params_patch;
  std::optional<std::string> params_raw;
  bool params_remove = false;
  bool close_idle = false;
  bool http10 = false;
  bool no_length = false;
  bool gzip = false;
  bool gzip_always = false;
};

// What a rule can look at.
struct FaultSubject {
  std::string method;
  std::string path;
  const HeaderList* headers = nullptr;
  std::optional<Leg> leg;  // unknown before the body has been read
};

// Owned by main(), single thread.
class FaultRules {
 public:
  explicit FaultRules(Random& random) : random_(random) {}

  // Appends one rule or a list of them, all or nothing. Returns what is wrong, or an empty string.
  std::string add(const Json& rules);
  void clear() { rules_.clear(); }
  std::size_t size() const { return rules_.size(); }
  Reply list() const;

  // True when this accepted connection is to be refused.
  bool refuses_connection();
  // `early_response` rules when the leg is unknown, all others when it is known.
  FaultPlan plan_for(const FaultSubject& subject);

 private:
  struct Rule {
    Json text;
    std::string action;
    Json match = Json::object();
    FaultPlan effect;
    std::int64_t times = -1;
    std::int64_t skip = 0;
    double probability = 1.0;
    std::int64_t hits = 0;
    std::int64_t matches = 0;
  };

  static std::string parse_rule(const Json& text, Rule& rule);
  bool strikes(Rule& rule);

  Random& random_;
  std::vector<Rule> rules_;
};

}  // namespace handoff::mock
