#pragma once

#include <cstddef>

namespace handoff::epp {

// Zeroed memory for a table that is read at random, cache-line aligned. Large ones lie on huge pages where
// the system has them: without, every look-up in a table of a hundred megabytes also misses the address
// translation, which costs more than the look-up, most of all in virtual machines.
class TableMemory {
 public:
  TableMemory() = default;
  explicit TableMemory(std::size_t bytes);
  ~TableMemory();
  TableMemory(TableMemory&& other) noexcept;
  TableMemory& operator=(TableMemory&& other) noexcept;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace handoff::epp
