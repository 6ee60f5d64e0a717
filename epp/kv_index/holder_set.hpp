#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "epp/kv_index/read_epochs.hpp"

namespace handoff::epp {

// Stands for one tier of one rank. Dense, so that holders are bits.
using Ordinal = std::uint16_t;
inline constexpr Ordinal kNoOrdinal = 0xFFFF;
inline constexpr std::size_t kMaxOrdinals = 0xFFFF;

// Four holders or more of a block: an immutable set that all blocks with the same holders share. Prefix
// caches make few distinct ones, which is why a further holder of a block costs next to nothing.
class HolderSet {
 public:
  bool contains(Ordinal ordinal) const;
  std::size_t size() const { return count_; }
  bool is_bitset() const { return words_ != 0; }
  std::span<const std::uint64_t> words() const { return {payload(), words_}; }
  std::span<const Ordinal> list() const {
    return {reinterpret_cast<const Ordinal*>(payload()), is_bitset() ? 0U : std::size_t{count_}};
  }

 private:
  friend class HolderPool;
  HolderSet(std::uint32_t hash, std::uint16_t count, std::uint16_t words)
      : hash_(hash), count_(count), words_(words) {}
  const std::uint64_t* payload() const { return reinterpret_cast<const std::uint64_t*>(this + 1); }
  std::size_t payload_words() const { return words_ != 0 ? words_ : (count_ + 3U) / 4; }

  std::atomic<std::uint32_t> refs_{1};  // 0: on its way out, never comes back
  std::uint32_t hash_;
  std::uint16_t count_;
  std::uint16_t words_;  // of the bit set; 0: a sorted list, which is smaller
  std::uint32_t padding_ = 0;
};
static_assert(sizeof(HolderSet) == 16);

// The holders of one block in eight bytes: up to three ordinals in place, or a HolderSet. Equal bits, equal
// holders, so a walk over blocks with the same holders compares one word. A plain value; HolderPool keeps the
// reference counts.
class HolderRef {
 public:
  constexpr HolderRef() = default;
  static HolderRef of(Ordinal ordinal) {
    return HolderRef(kOneInline | std::uint64_t{ordinal} << kFirstLane);
  }
  static HolderRef from_bits(std::uint64_t bits) { return HolderRef(bits); }

  std::uint64_t bits() const { return bits_; }
  bool empty() const { return bits_ == 0; }
  std::size_t inline_count() const { return bits_ >> 1 & 3; }
  Ordinal inline_at(std::size_t i) const {
    return static_cast<Ordinal>(bits_ >> (kFirstLane + i * kLaneBits));
  }
  const HolderSet* set() const {
    return inline_count() == 0 ? std::bit_cast<const HolderSet*>(bits_) : nullptr;
  }

  bool contains(Ordinal ordinal) const {
    switch (inline_count()) {
      case 3:
        if (inline_at(2) == ordinal) return true;
        [[fallthrough]];
      case 2:
        if (inline_at(1) == ordinal) return true;
        [[fallthrough]];
      case 1:
        return inline_at(0) == ordinal;
      default:
        return bits_ != 0 && set()->contains(ordinal);
    }
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    if (empty()) return;
    for (std::size_t i = 0; i < inline_count(); ++i) visit(inline_at(i));
    if (inline_count() != 0) return;
    for (const Ordinal ordinal : set()->list()) visit(ordinal);
    const auto words = set()->words();
    for (std::size_t w = 0; w < words.size(); ++w) {
      for (std::uint64_t rest = words[w]; rest != 0; rest &= rest - 1) {
        visit(static_cast<Ordinal>(w * 64 + static_cast<std::size_t>(std::countr_zero(rest))));
      }
    }
  }

  friend bool operator==(HolderRef, HolderRef) = default;

 private:
  friend class HolderPool;
  // Bit 0 is not ours: the block table marks recent use with it. Bits 1 and 2: how many ordinals are in
  // place.
  static constexpr std::uint64_t kOneInline = 2;
  static constexpr unsigned kFirstLane = 16;
  static constexpr unsigned kLaneBits = 16;
  static constexpr std::size_t kMaxInline = 3;

  explicit constexpr HolderRef(std::uint64_t bits) : bits_(bits) {}
  static HolderRef in_place(std::span<const Ordinal> sorted);

  std::uint64_t bits_ = 0;
};

// Makes and shares holder sets. Owned by the index. Any thread; one short lock when a set is looked up, made
// or dropped. Every HolderRef it returns counts as one reference, to be given back with release().
class HolderPool {
 public:
  HolderPool(ReadEpochs& epochs, std::size_t max_bytes) : epochs_(epochs), max_bytes_(max_bytes) {}
  ~HolderPool();
  HolderPool(const HolderPool&) = delete;
  HolderPool& operator=(const HolderPool&) = delete;

  // nullopt: the bound of bytes is reached and no such set exists. The argument keeps its own reference.
  std::optional<HolderRef> with(HolderRef holders, Ordinal ordinal);
  // Without every ordinal whose bit is set. Falls back to the empty set at the bound: forgetting is safe.
  HolderRef without(HolderRef holders, std::span<const std::uint64_t> ordinals);
  HolderRef without(HolderRef holders, Ordinal ordinal);

  // False when the set is being dropped: look it up again.
  bool try_retain(HolderRef holders);
  void release(HolderRef holders);

  std::size_t sets() const { return sets_.load(std::memory_order_relaxed); }
  std::size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Draft;  // a set in the making

  std::optional<HolderRef> intern(Draft& draft);
  void erase(HolderSet* set);
  void grow_table();
  static std::size_t bytes_of(const HolderSet& set);

  ReadEpochs& epochs_;
  const std::size_t max_bytes_;
  std::mutex mutex_;
  std::vector<HolderSet*> table_;  // open addressing, power of two
  std::size_t used_ = 0;
  std::atomic<std::size_t> sets_{0};
  std::atomic<std::size_t> bytes_{0};
};

}  // namespace handoff::epp
