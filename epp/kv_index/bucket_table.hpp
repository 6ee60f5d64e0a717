#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "epp/kv_index/table_memory.hpp"

namespace handoff::epp {

// The memory of one shard's table: buckets of one cache line each, because a line is what an access costs.
// Where a key belongs grows with the lower half of the key, so a copy into a table of another size reads and
// writes both in order. Owned by the shard; made new when the size changes.
template <typename Bucket>
class BucketTable {
 public:
  static_assert(sizeof(Bucket) == 64 && alignof(Bucket) == 64);
  static_assert(std::is_trivially_destructible_v<Bucket>);

  explicit BucketTable(std::size_t buckets) : BucketTable(TableMemory(buckets * sizeof(Bucket))) {}
  explicit BucketTable(TableMemory memory)
      : buckets_(memory.bytes() / sizeof(Bucket)),
        memory_(std::move(memory)),
        data_(static_cast<Bucket*>(memory_.data())) {
    for (std::size_t i = 0; i < buckets_; ++i) new (data_ + i) Bucket;
  }

  std::size_t buckets() const { return buckets_; }
  std::size_t bytes() const { return buckets_ * sizeof(Bucket); }
  Bucket* begin() const { return data_; }
  Bucket* end() const { return data_ + buckets_; }
  Bucket& operator[](std::size_t index) const { return data_[index]; }

  // The shard was chosen by other bits of the key, so the low half is as good as new.
  Bucket* home(std::uint64_t key) const { return data_ + ((key & 0xFFFFFFFFU) * buckets_ >> 32); }
  Bucket* next(Bucket* bucket) const { return ++bucket == end() ? data_ : bucket; }
  // How many times next() leads from one to the other.
  std::size_t distance(const Bucket* from, const Bucket* to) const {
    const std::ptrdiff_t steps = to - from;
    return static_cast<std::size_t>(steps) + (steps < 0 ? buckets_ : 0);
  }

 private:
  std::size_t buckets_;
  TableMemory memory_;
  Bucket* data_;
};

}  // namespace handoff::epp
