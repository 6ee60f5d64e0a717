#include "answers.hpp"

#include <algorithm>

namespace handoff::mock {
namespace {

std::uint64_t answer_seed(const std::string& prompt, const std::string& model, std::int64_t index,
                          AnswerKind kind) {
  std::uint64_t seed = hash_text(prompt);
  seed = hash_text("\x1f" + model + "\x1f" + std::to_string(index), seed);
  // Words after a mark must differ from the right ones, or a cut-off mark would go unnoticed.
  if (kind == AnswerKind::kPrefill) seed = hash_text("\x1fprefill", seed);
  if (kind == AnswerKind::kWrongKv) seed = hash_text("\x1fwrong", seed);
  return seed;
}

Token token_at(std::uint64_t seed, std::int64_t position, AnswerKind kind) {
  if (position == 0 && kind == AnswerKind::kPrefill) return kPrefillToken;
  if (position == 0 && kind == AnswerKind::kWrongKv) return kWrongKvToken;
  return word_token(seed, position);
}

// Cuts `answer` at the first stop string that ends in its last `fresh` bytes.
bool try_stop(const ApiRequest& request, std::size_t fresh, Completion& answer) {
  if (answer.token_count() <= request.min_tokens) return false;  // the engine looks for them after those
  for (const std::string& stop : request.stop) {
    const std::size_t tail = std::min(answer.text.size(), fresh + stop.size());
    const std::size_t from = answer.text.find(stop, answer.text.size() - tail);
    if (from == std::string::npos) continue;
    answer.text.resize(request.keep_stop_text ? from + stop.size() : from);
    answer.finish_reason = "stop";
    answer.stop_reason = stop;
    return true;
  }
  return false;
}

void cut_pieces(Completion& answer) {
  std::size_t at = 0;
  for (std::string& piece : answer.pieces) {
    const std::size_t left = answer.text.size() - at;
    if (piece.size() > left) piece.resize(left);
    at += piece.size();
  }
}

Completion make_answer(const ApiRequest& request, std::size_t prompt, std::int64_t choice, AnswerKind kind) {
  Completion answer;
  answer.prompt = prompt;
  answer.index = static_cast<std::int64_t>(prompt) * request.n + choice;
  answer.finish_reason = request.limit_given ? "length" : "stop";
  if (kind == AnswerKind::kEmpty) return answer;
  const std::string& text = request.prompt_texts[prompt];
  if (text.find(kEosFirstMark) != std::string::npos && !request.ignore_eos && request.min_tokens == 0) {
    answer.tokens.push_back(kEosToken);
    answer.pieces.emplace_back();
    answer.finish_reason = "stop";
    return answer;
  }
  const std::uint64_t seed = answer_seed(text, request.model, choice, kind);
  for (std::int64_t position = 0; position < request.limit; ++position) {
    const Token token = token_at(seed, position, kind);
    answer.tokens.push_back(token);
    answer.pieces.push_back(token_text(token));
    answer.text += answer.pieces.back();
    if (try_stop(request, answer.pieces.back().size(), answer)) break;
  }
  cut_pieces(answer);
  return answer;
}

}  // namespace

std::vector<Completion> make_answers(const ApiRequest& request, AnswerKind kind) {
  std::vector<Completion> answers;
  for (std::size_t prompt = 0; prompt < request.prompts.size(); ++prompt) {
    for (std::int64_t choice = 0; choice < request.n; ++choice) {
      answers.push_back(make_answer(request, prompt, choice, kind));
    }
  }
  return answers;
}

std::string tool_arguments(const Completion& answer) {
  const std::size_t from = answer.text.find_first_not_of(' ');
  return dump(Json{{"value", from == std::string::npos ? "" : answer.text.substr(from)}});
}

double log_probability(Token token) {
  return -0.001 * static_cast<double>(1 + token % 1999);
}

}  // namespace handoff::mock
