#pragma once

#include <cstdint>
#include <string_view>

// Questions about the raw text of one JSON value that has been found by the host's scan. Every function is
// one pass without allocation, reads nothing past the end, and takes any bytes.
namespace handoff::vllm {

/// Whether the engine would read this value as the integer one: 1, 1.0, "1", with pydantic's leniency.
bool reads_as_one(std::string_view value);

/// The value of an unsigned integer spelled in plain digits; -1 for anything else, and beyond `most`.
std::int64_t plain_integer(std::string_view value, std::int64_t most);

/// Whether `value` is `{}`, white space inside included.
bool is_empty_object(std::string_view value);

/// How many prompts a value stands for: a list of token ids is one prompt, a list of strings or of lists is
/// as many as it has items. 2 means two or more.
enum class PromptCount : std::uint8_t { none, one, several };
PromptCount count_prompts(std::string_view value);

/// Shapes of a list of KV block ids.
enum class BlockIds : std::uint8_t {
  empty,    ///< []
  flat,     ///< [1,2]: releases before hybrid models
  grouped,  ///< [[1,2],[]]: one list per KV-cache group; groups may be empty
  invalid,
};
BlockIds classify_block_ids(std::string_view value);

}  // namespace handoff::vllm
