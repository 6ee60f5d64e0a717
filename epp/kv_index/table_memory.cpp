#include "epp/kv_index/table_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace handoff::epp {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;
constexpr std::align_val_t kCacheLine{64};

bool is_mapped(std::size_t bytes) {
  return bytes >= kHugePage;
}
std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

void* map_aligned(std::size_t bytes) {
  const std::size_t span = whole_pages(bytes) + kHugePage;
  void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = aligned + whole_pages(bytes);
  if (aligned != start) munmap(raw, aligned - start);
  if (end != start + span) munmap(reinterpret_cast<void*>(end), start + span - end);
  void* data = reinterpret_cast<void*>(aligned);
  madvise(data, whole_pages(bytes), MADV_HUGEPAGE);  // a wish; small pages work as well
  return data;
}
}  // namespace

TableMemory::TableMemory(std::size_t bytes) : bytes_(bytes) {
  if (is_mapped(bytes)) {
    data_ = map_aligned(bytes);
  } else {
    data_ = ::operator new(bytes, kCacheLine);
    std::memset(data_, 0, bytes);
  }
}

TableMemory::Slices::Slices(std::size_t total_bytes) : whole_(std::make_shared<TableMemory>(total_bytes)) {}

TableMemory TableMemory::Slices::next(std::size_t bytes) {
  TableMemory slice;
  slice.data_ = static_cast<std::byte*>(whole_->data_) + used_;
  slice.bytes_ = bytes;
  slice.part_of_ = whole_;
  used_ += bytes;
  return slice;
}

TableMemory::~TableMemory() {
  if (data_ == nullptr) return;
  if (part_of_ != nullptr) {
    // What lies between its first and its last whole page. The rest goes with the last slice.
    const auto start = reinterpret_cast<std::uintptr_t>(data_);
    const std::uintptr_t first = whole_pages(start);
    const std::uintptr_t end = (start + bytes_) / kPage * kPage;
    if (is_mapped(part_of_->bytes_) && end > first)
      madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  } else if (is_mapped(bytes_)) {
    munmap(data_, whole_pages(bytes_));
  } else {
    ::operator delete(data_, kCacheLine);
  }
}

TableMemory::TableMemory(TableMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      part_of_(std::move(other.part_of_)) {}

TableMemory& TableMemory::operator=(TableMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(part_of_, other.part_of_);
  return *this;
}

}  // namespace handoff::epp
