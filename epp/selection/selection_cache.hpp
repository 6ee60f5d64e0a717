#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "epp/selection/prepared_request.hpp"
#include "epp/selection/selection.hpp"

namespace handoff::epp {

// What select() chose and with which booking inputs, by the caller's id, until create_reservation() asks for
// it with nothing but the id. Bounded in number, bytes and time; the oldest goes first.
//
// Owner: Partition, under its lock.
class SelectionCache {
 public:
  struct Entry {
    PreparedRequest request;
    SelectionFacts facts;
  };

  explicit SelectionCache(const SelectionCacheConfig& config) : config_(config) {}

  // A newer selection with the same id takes the place of the older.
  void put(Entry entry, SteadyTime now);
  // Null when there is none or its time is over. Valid until the next call.
  Entry* find(std::string_view id, SteadyTime now);
  // The entry must be there.
  Entry take(std::string_view id);
  void erase(std::string_view id);
  void drop_expired(SteadyTime now);

  std::size_t size() const { return entries_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Kept {
    Entry entry;
    SteadyTime expires;
    std::size_t bytes = 0;
  };
  using Order = std::list<Kept>;  // oldest first

  void erase(Order::iterator kept);

  const SelectionCacheConfig config_;
  Order order_;
  std::unordered_map<std::string_view, Order::iterator> entries_;  // keys live in order_
  std::size_t bytes_ = 0;
};

}  // namespace handoff::epp
