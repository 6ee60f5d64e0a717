#include "kv_store.hpp"

#include <array>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

namespace handoff::mock {
namespace {

constexpr std::int64_t kChunk = 256;  // LMCache's chunk_size

std::uint64_t add_token(std::uint64_t hash, Token token) {
  std::array<char, sizeof token> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(token >> (8 * i));
  return hash_text(std::string_view(bytes.data(), bytes.size()), hash);
}

std::string name_of(std::uint64_t hash, std::int64_t tokens) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%016llx-%lld", static_cast<unsigned long long>(hash),
                static_cast<long long>(tokens));
  return text.data();
}

}  // namespace

KvStore::KvStore(std::filesystem::path directory, std::int64_t block_size)
    : directory_(std::move(directory)), block_size_(block_size) {}

std::vector<KvStore::Beginning> KvStore::beginnings(const Tokens& prompt, const std::string& salt) const {
  const auto size = static_cast<std::int64_t>(prompt.size());
  const std::int64_t aligned = size > 0 ? (size - 1) / block_size_ * block_size_ : 0;
  std::vector<Beginning> out;
  std::uint64_t hash = hash_text("salt:" + salt);
  for (std::int64_t count = 1; count <= aligned; ++count) {
    hash = add_token(hash, prompt[static_cast<std::size_t>(count - 1)]);
    if (count == aligned || count % kChunk == 0) out.push_back({count, name_of(hash, count)});
  }
  return out;
}

void KvStore::put(const Tokens& prompt, const std::string& salt) {
  for (const Beginning& beginning : beginnings(prompt, salt))
    std::ofstream(directory_ / beginning.name, std::ios::app);
}

std::int64_t KvStore::find(const Tokens& prompt, const std::string& salt) const {
  const auto all = beginnings(prompt, salt);
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    std::error_code ignored;
    if (std::filesystem::exists(directory_ / it->name, ignored)) return it->tokens;
  }
  return 0;
}

}  // namespace handoff::mock
