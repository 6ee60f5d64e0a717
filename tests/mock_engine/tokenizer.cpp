#include "tokenizer.hpp"

#include <algorithm>

namespace handoff::mock {
namespace {

// splitmix64's finaliser: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

std::string word_text(Token index) {
  static constexpr std::string_view kConsonants = "bdfghjklmnprstvz";
  static constexpr std::string_view kVowels = "aeiou";
  std::string word = " ";
  for (const Token half : {index / 80, index % 80}) {
    word += kConsonants[static_cast<std::size_t>(half / 5)];
    word += kVowels[static_cast<std::size_t>(half % 5)];
  }
  return word;
}

}  // namespace

Tokens encode(std::string_view text) {
  Tokens tokens;
  tokens.reserve(text.size() / 3 + 1);
  for (std::size_t at = 0; at < text.size(); at += 3) {
    const std::size_t size = std::min<std::size_t>(3, text.size() - at);
    Token packed = 0;
    for (std::size_t i = 0; i < size; ++i) packed = (packed << 8) | static_cast<unsigned char>(text[at + i]);
    tokens.push_back((static_cast<Token>(size) << 24) | packed);
  }
  return tokens;
}

std::string token_text(Token token) {
  if (token >= kWordBase && token < kWordBase + kWordCount) return word_text(token - kWordBase);
  if (token == kWrongKvToken) return std::string(kWrongKvMark);
  if (token == kPrefillToken) return std::string(kPrefillMark);
  if (token == kEosToken) return {};
  const Token size = token >> 24;
  if (token < 0 || size < 1 || size > 3) return "<|" + std::to_string(token) + "|>";
  std::string text;
  for (Token i = size - 1; i >= 0; --i) text += static_cast<char>((token >> (8 * i)) & 0xff);
  return text;
}

std::string decode(const Tokens& tokens) {
  std::string text;
  for (const Token token : tokens) text += token_text(token);
  return text;
}

std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  std::uint64_t hash = seed;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

std::uint64_t hash_tokens(const Tokens& tokens) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const Token token : tokens) {
    hash ^= static_cast<std::uint64_t>(token);
    hash *= 0x100000001b3ULL;
  }
  return mix(hash);
}

Token word_token(std::uint64_t seed, std::int64_t position) {
  const std::uint64_t value = mix(seed + 0x632be59bd9b4e019ULL * static_cast<std::uint64_t>(position + 1));
  return kWordBase + static_cast<Token>(value % static_cast<std::uint64_t>(kWordCount));
}

}  // namespace handoff::mock
