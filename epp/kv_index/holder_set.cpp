#include "epp/kv_index/holder_set.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace handoff::epp {

namespace {
constexpr std::size_t kFirstTable = 64;
constexpr std::size_t kAllocatorOverhead = 16;  // and a set's share of the table

std::uint32_t hash_words(std::span<const std::uint64_t> words) {
  std::uint64_t hash = 0x9E3779B97F4A7C15u + words.size();
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  }
  return static_cast<std::uint32_t>(hash);
}
}  // namespace

bool HolderSet::contains(Ordinal ordinal) const {
  if (is_bitset()) {
    const std::size_t word = ordinal / 64;
    return word < words_ && (payload()[word] >> (ordinal % 64) & 1) != 0;
  }
  const auto members = list();
  return std::binary_search(members.begin(), members.end(), ordinal);
}

HolderRef HolderRef::in_place(std::span<const Ordinal> sorted) {
  std::uint64_t bits = std::uint64_t{sorted.size()} << 1;
  for (std::size_t i = 0; i < sorted.size(); ++i)
    bits |= std::uint64_t{sorted[i]} << (kFirstLane + i * kLaneBits);
  return HolderRef(bits);
}

// Either form while it is edited; settle() chooses the one that every equal set has.
struct HolderPool::Draft {
  std::vector<Ordinal> list;
  std::vector<std::uint64_t> words;
  std::size_t count = 0;

  static Draft& of(HolderRef holders) {
    thread_local Draft draft;
    draft.list.clear();
    draft.words.clear();
    if (!holders.empty() && holders.set() != nullptr && holders.set()->is_bitset()) {
      const auto from = holders.set()->words();
      draft.words.assign(from.begin(), from.end());
      draft.count = holders.set()->size();
    } else {
      holders.for_each([](Ordinal ordinal) { draft.list.push_back(ordinal); });
      draft.count = draft.list.size();
    }
    return draft;
  }

  void add(Ordinal ordinal) {
    if (words.empty()) {
      list.insert(std::lower_bound(list.begin(), list.end(), ordinal), ordinal);
    } else {
      if (words.size() <= ordinal / 64) words.resize(ordinal / 64 + 1);
      words[ordinal / 64] |= std::uint64_t{1} << (ordinal % 64);
    }
    ++count;
  }

  void remove(std::span<const std::uint64_t> gone) {
    const auto is_gone = [gone](Ordinal o) {
      return o / 64 < gone.size() && (gone[o / 64] >> (o % 64) & 1) != 0;
    };
    std::erase_if(list, is_gone);
    count = list.size();
    for (std::size_t w = 0; w < words.size(); ++w) {
      if (w < gone.size()) words[w] &= ~gone[w];
      count += static_cast<std::size_t>(std::popcount(words[w]));
    }
    while (!words.empty() && words.back() == 0) words.pop_back();
  }

  void remove(Ordinal ordinal) {
    if (words.empty()) {
      std::erase(list, ordinal);
    } else {
      words[ordinal / 64] &= ~(std::uint64_t{1} << (ordinal % 64));
      while (!words.empty() && words.back() == 0) words.pop_back();
    }
    --count;
  }

  void settle() {
    const std::size_t span = !words.empty() ? words.size() : (list.empty() ? 0 : list.back() / 64 + 1U);
    const bool want_bits =
        count > HolderRef::kMaxInline && count * sizeof(Ordinal) > span * sizeof(std::uint64_t);
    if (want_bits && words.empty()) {
      words.assign(span, 0);
      for (const Ordinal ordinal : list) words[ordinal / 64] |= std::uint64_t{1} << (ordinal % 64);
      list.clear();
    } else if (!want_bits && !words.empty()) {
      for (std::size_t w = 0; w < words.size(); ++w) {
        for (std::uint64_t rest = words[w]; rest != 0; rest &= rest - 1) {
          list.push_back(static_cast<Ordinal>(w * 64 + static_cast<std::size_t>(std::countr_zero(rest))));
        }
      }
      words.clear();
    }
    if (!words.empty() || count <= HolderRef::kMaxInline) return;
    // As it will lie in memory, so that hash and comparison work on words for both forms.
    payload.assign((count + 3) / 4, 0);
    std::memcpy(payload.data(), list.data(), count * sizeof(Ordinal));
  }

  std::span<const std::uint64_t> content() const { return words.empty() ? payload : words; }

  std::vector<std::uint64_t> payload;
};

HolderPool::~HolderPool() {
  for (HolderSet* set : table_) ::operator delete(set);
}

std::size_t HolderPool::bytes_of(const HolderSet& set) {
  return sizeof(HolderSet) + set.payload_words() * sizeof(std::uint64_t) + kAllocatorOverhead;
}

std::optional<HolderRef> HolderPool::with(HolderRef holders, Ordinal ordinal) {
  Draft& draft = Draft::of(holders);
  draft.add(ordinal);
  return intern(draft);
}

HolderRef HolderPool::without(HolderRef holders, std::span<const std::uint64_t> ordinals) {
  Draft& draft = Draft::of(holders);
  draft.remove(ordinals);
  return intern(draft).value_or(HolderRef());
}

HolderRef HolderPool::without(HolderRef holders, Ordinal ordinal) {
  Draft& draft = Draft::of(holders);
  draft.remove(ordinal);
  return intern(draft).value_or(HolderRef());
}

bool HolderPool::try_retain(HolderRef holders) {
  if (holders.empty() || holders.set() == nullptr) return true;
  auto& refs = const_cast<HolderSet*>(holders.set())->refs_;
  std::uint32_t seen = refs.load(std::memory_order_relaxed);
  while (seen != 0) {
    if (refs.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

void HolderPool::release(HolderRef holders) {
  if (holders.empty() || holders.set() == nullptr) return;
  auto* set = const_cast<HolderSet*>(holders.set());
  if (set->refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) erase(set);
}

std::optional<HolderRef> HolderPool::intern(Draft& draft) {
  draft.settle();
  if (draft.count <= HolderRef::kMaxInline) return HolderRef::in_place(draft.list);

  const auto content = draft.content();
  const std::uint32_t hash = hash_words(content);
  const std::lock_guard lock(mutex_);
  if (table_.size() < (used_ + 1) * 2) grow_table();
  const std::size_t mask = table_.size() - 1;
  std::size_t at = hash & mask;
  for (; table_[at] != nullptr; at = (at + 1) & mask) {
    HolderSet* set = table_[at];
    if (set->hash_ != hash || set->count_ != draft.count || set->words_ != draft.words.size()) continue;
    if (!std::equal(content.begin(), content.end(), set->payload())) continue;
    const HolderRef found(std::bit_cast<std::uint64_t>(set));
    if (try_retain(found)) return found;
    // The last reference just went and its owner waits for our lock. It will not find itself in the table and
    // only retire.
    break;
  }
  const bool replaces = table_[at] != nullptr;
  const std::size_t bytes = sizeof(HolderSet) + content.size_bytes() + kAllocatorOverhead;
  if (bytes_.load(std::memory_order_relaxed) + bytes > max_bytes_) return std::nullopt;
  void* memory = ::operator new(sizeof(HolderSet) + content.size_bytes());
  auto* set = new (memory) HolderSet(hash, static_cast<std::uint16_t>(draft.count),
                                     static_cast<std::uint16_t>(draft.words.size()));
  std::copy(content.begin(), content.end(), const_cast<std::uint64_t*>(set->payload()));
  table_[at] = set;
  if (!replaces) ++used_;
  sets_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return HolderRef(std::bit_cast<std::uint64_t>(set));
}

void HolderPool::erase(HolderSet* set) {
  {
    const std::lock_guard lock(mutex_);
    const std::size_t mask = table_.size() - 1;
    std::size_t at = set->hash_ & mask;
    while (table_[at] != nullptr && table_[at] != set) at = (at + 1) & mask;
    if (table_[at] == set) {
      --used_;
      // Close the hole by moving back whoever sits behind it and does not mind.
      for (std::size_t next = (at + 1) & mask; table_[next] != nullptr; next = (next + 1) & mask) {
        const std::size_t home = table_[next]->hash_ & mask;
        if (((next - home) & mask) < ((next - at) & mask)) continue;
        table_[at] = table_[next];
        at = next;
      }
      table_[at] = nullptr;
      if (table_.size() > kFirstTable && table_.size() > used_ * 8) grow_table();
    }
    sets_.fetch_sub(1, std::memory_order_relaxed);
    bytes_.fetch_sub(bytes_of(*set), std::memory_order_relaxed);
  }
  epochs_.retire(
      set, [](void* memory) { ::operator delete(memory); }, bytes_of(*set));
}

// Also shrinks: to a quarter full.
void HolderPool::grow_table() {
  std::vector<HolderSet*> table(std::max(kFirstTable, std::bit_ceil((used_ + 1) * 4)));
  for (HolderSet* set : table_) {
    if (set == nullptr) continue;
    std::size_t at = set->hash_ & (table.size() - 1);
    while (table[at] != nullptr) at = (at + 1) & (table.size() - 1);
    table[at] = set;
  }
  table_ = std::move(table);
}

}  // namespace handoff::epp
