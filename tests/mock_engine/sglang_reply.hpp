// How SGLang spells answers and errors. Pure.
#pragma once

#include <string>
#include <vector>

#include "answers.hpp"
#include "sglang_request.hpp"
#include "sglang_scheduler.hpp"

namespace handoff::mock {

// What one request is answered with; references outlive it.
struct SglangAnswer {
  const SglangRequest& request;
  const std::vector<std::shared_ptr<SglangTask>>& tasks;
  std::vector<Completion> answers;  // one per task
  std::int64_t created = 0;
  bool has_prompt_logprobs = true;  // a decode engine did not compute the prompt
  bool incremental = false;
  bool cache_report = false;
};

std::string sglang_whole(const SglangAnswer& answer);
// The event of one token of one item.
std::string sglang_token(const SglangAnswer& answer, std::size_t task, std::size_t position);
// The event of an item that was aborted after `tokens` tokens.
std::string sglang_aborted(const SglangAnswer& answer, std::size_t task, std::size_t tokens);
std::string sglang_stream_end(const SglangAnswer& answer);

// Bodies of errors: flat, but not everywhere.
std::string sglang_error_body(SglangApi api, int status, const std::string& message);
// Events of a request that failed in the scheduler, [DONE] included.
std::string sglang_error_events(const SglangAnswer& answer, std::size_t task, const SglangFailure& failure);
// The same for one refused before the scheduler saw it.
std::string sglang_refused_events(const ApiError& error);

}  // namespace handoff::mock
