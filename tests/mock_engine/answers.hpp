// The deterministic answers. A pure function of prompt, model, choice index and limits; README states the
// rule.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api_request.hpp"

namespace handoff::mock {

// Which text a request has earned.
enum class AnswerKind {
  kRight,
  kPrefill,  // P's only token; nobody should ever see it
  kWrongKv,  // read from blocks that were not this prompt's any more
  kEmpty,    // the engine stumbled over the spelling of a number
};

struct Completion {
  std::int64_t index = 0;
  std::size_t prompt = 0;
  Tokens tokens;
  std::vector<std::string> pieces;  // text of each token, after the stop string was cut
  std::string text;
  std::string finish_reason;
  Json stop_reason = nullptr;

  std::int64_t token_count() const { return static_cast<std::int64_t>(tokens.size()); }
};

std::vector<Completion> make_answers(const ApiRequest& request, AnswerKind kind);

// Arguments of the forced tool call, as JSON text.
std::string tool_arguments(const Completion& answer);

// A plausible log probability, the same at every run.
double log_probability(Token token);

}  // namespace handoff::mock
