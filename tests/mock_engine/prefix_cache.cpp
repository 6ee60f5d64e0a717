#include "prefix_cache.hpp"

#include <openssl/sha.h>

#include <algorithm>
#include <utility>

namespace handoff::mock {
namespace {

// Parent, tokens, salt. vLLM pickles or CBORs the same three; a router must not depend on the bytes.
BlockDigest digest_of(const BlockDigest& parent, const Token* tokens, std::size_t count,
                      const std::string& salt) {
  std::vector<std::uint8_t> bytes(parent.begin(), parent.end());
  for (std::size_t i = 0; i < count; ++i) {
    for (int shift = 0; shift < 32; shift += 8)
      bytes.push_back(static_cast<std::uint8_t>(tokens[i] >> shift));
  }
  bytes.insert(bytes.end(), salt.begin(), salt.end());
  BlockDigest digest{};
  SHA256(bytes.data(), bytes.size(), digest.data());
  return digest;
}

// Moves `sequence` on by the block that begins at `tokens`.
void step(CachedSequence& sequence, const Token* tokens, std::size_t count) {
  const std::string first_salt = sequence.blocks == 0 ? sequence.salt : std::string();
  sequence.last = digest_of(sequence.last, tokens, count, first_salt);
  sequence.last_plain =
      sequence.salt.empty() ? sequence.last : digest_of(sequence.last_plain, tokens, count, {});
  ++sequence.blocks;
}

}  // namespace

PrefixCache::PrefixCache(BlockPool& pool, std::int64_t block_size, std::int64_t ranks, bool enabled)
    : block_size_(static_cast<std::size_t>(block_size)),
      enabled_(enabled),
      by_digest_(static_cast<std::size_t>(ranks)),
      contents_(enabled ? static_cast<std::size_t>(pool.total()) : 0) {
  if (enabled) pool.on_reuse = [this](std::int64_t id) { forget(id); };
}

BlockIds PrefixCache::find(const Tokens& prompt, CachedSequence& sequence) const {
  BlockIds found;
  if (!enabled_) return found;
  const auto& known = by_digest_[static_cast<std::size_t>(sequence.rank)];
  while ((sequence.blocks + 1) * block_size_ < prompt.size()) {
    CachedSequence next = sequence;
    step(next, prompt.data() + sequence.blocks * block_size_, block_size_);
    const auto block = known.find(next.last);
    if (block == known.end()) break;
    found.push_back(block->second);
    sequence = std::move(next);
  }
  return found;
}

void PrefixCache::store(const Tokens& tokens, const BlockIds& blocks, CachedSequence& sequence) {
  if (!enabled_) return;
  auto& known = by_digest_[static_cast<std::size_t>(sequence.rank)];
  std::optional<CacheEvent> run;
  const auto end_run = [&] {
    if (run) events_.push_back(std::move(*run));
    run.reset();
  };
  while ((sequence.blocks + 1) * block_size_ <= tokens.size() && sequence.blocks < blocks.size()) {
    const CachedSequence before = sequence;
    const Token* first = tokens.data() + before.blocks * block_size_;
    step(sequence, first, block_size_);
    const std::int64_t id = blocks[before.blocks];
    if (!known.try_emplace(sequence.last, id).second) {
      end_run();  // another block holds the same already
      continue;
    }
    contents_[static_cast<std::size_t>(id)] = {sequence.rank, sequence.last, sequence.last_plain};
    if (!run) {
      run.emplace();
      run->kind = CacheEvent::Kind::kStored;
      run->rank = sequence.rank;
      run->salt = sequence.salt;
      if (before.blocks > 0) {
        run->parent = before.last;
        run->plain_parent = before.last_plain;
      }
    }
    run->blocks.push_back(sequence.last);
    run->plain.push_back(sequence.last_plain);
    run->tokens.insert(run->tokens.end(), first, first + block_size_);
  }
  end_run();
}

void PrefixCache::clear(bool announce) {
  for (auto& known : by_digest_) known.clear();
  std::fill(contents_.begin(), contents_.end(), Content{});
  if (!announce) {
    events_.clear();
    return;
  }
  for (std::size_t rank = 0; rank < by_digest_.size(); ++rank) {
    CacheEvent event;
    event.rank = static_cast<std::int64_t>(rank);
    events_.push_back(std::move(event));
  }
}

std::vector<CacheEvent> PrefixCache::take_events() {
  return std::exchange(events_, {});
}

std::int64_t PrefixCache::size() const {
  std::size_t sum = 0;
  for (const auto& known : by_digest_) sum += known.size();
  return static_cast<std::int64_t>(sum);
}

void PrefixCache::forget(std::int64_t id) {
  Content& content = contents_[static_cast<std::size_t>(id)];
  if (content.rank < 0) return;
  by_digest_[static_cast<std::size_t>(content.rank)].erase(content.digest);
  CacheEvent* last = events_.empty() ? nullptr : &events_.back();
  if (!last || last->kind != CacheEvent::Kind::kRemoved || last->rank != content.rank) {
    events_.emplace_back();
    last = &events_.back();
    last->kind = CacheEvent::Kind::kRemoved;
    last->rank = content.rank;
  }
  last->blocks.push_back(content.digest);
  last->plain.push_back(content.plain);
  content = {};
}

}  // namespace handoff::mock
