#pragma once

#include <cstddef>
#include <memory>

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

  // The next `bytes` of memory that is made in one piece for several tables, because huge pages are whole:
  // the last part of each table on its own would lie on small ones. Their memory goes back when they go.
  class Slices {
   public:
    explicit Slices(std::size_t total_bytes);
    TableMemory next(std::size_t bytes);

   private:
    std::shared_ptr<TableMemory> whole_;
    std::size_t used_ = 0;
  };

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::shared_ptr<TableMemory> part_of_;
};

}  // namespace handoff::epp
