// The mock's tokenizer: reversible, without a vocabulary file, the same in every process.
//
// A prompt token is up to three bytes of text, packed into its id. Generated tokens are whole words with ids
// of their own range, and the three marks (end of sequence, wrong KV, prefill's token) are single ids, so
// that a test which sees only token ids recognises them too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace handoff::mock {

using Token = std::int64_t;
using Tokens = std::vector<Token>;

inline constexpr Token kWordBase = Token{4} << 24;
inline constexpr Token kWordCount = 6400;
inline constexpr Token kWrongKvToken = Token{5} << 24;
inline constexpr Token kPrefillToken = (Token{5} << 24) + 1;
inline constexpr Token kEosToken = Token{6} << 24;
inline constexpr std::string_view kWrongKvMark = "<<WRONG-KV>>";
inline constexpr std::string_view kPrefillMark = "<<PREFILL>>";
inline constexpr std::string_view kEosFirstMark = "[[eos-first]]";

Tokens encode(std::string_view text);
std::string token_text(Token token);
std::string decode(const Tokens& tokens);

// FNV-1a, 64 bit.
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0xcbf29ce484222325ULL);
std::uint64_t hash_tokens(const Tokens& tokens);

// The `position`-th word of the answer that belongs to `seed`.
Token word_token(std::uint64_t seed, std::int64_t position);

}  // namespace handoff::mock
