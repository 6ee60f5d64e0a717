#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace handoff::epp {

// Parts of a table that is cheap to copy: copies share them, and whoever changes one gets his own first. So a
// reader's copy is never touched, and costs as much as what changed since the last one was made.
//
// One writer changes it and makes copies with share(), under its lock; copies are only read, which needs
// none.
template <typename Part>
class SharedParts {
 public:
  std::size_t size() const { return parts_.size(); }
  const Part& operator[](std::size_t i) const { return parts_[i]->value; }

  // Valid until the next share().
  Part& change(std::size_t i) {
    auto& found = parts_[i];
    if (found->generation != generation_) found = std::make_shared<Held>(Held{generation_, found->value});
    return found->value;
  }
  void add() { parts_.push_back(std::make_shared<Held>(Held{generation_, {}})); }
  void drop_last() { parts_.pop_back(); }

  SharedParts share() {
    ++generation_;
    return *this;
  }

 private:
  struct Held {
    std::uint64_t generation = 0;  // it was made in; only those of the present one are not shared
    Part value;
  };

  std::vector<std::shared_ptr<Held>> parts_;
  std::uint64_t generation_ = 0;
};

// The same as an array; T is a small value.
template <typename T>
class SharedPages {
 public:
  static constexpr std::size_t kPageSize = 64;

  std::size_t size() const { return size_; }
  const T& operator[](std::size_t i) const { return pages_[i / kPageSize][i % kPageSize]; }
  T& change(std::size_t i) { return pages_.change(i / kPageSize)[i % kPageSize]; }
  void emplace_back() {
    if (size_ % kPageSize == 0) pages_.add();
    ++size_;
    change(size_ - 1) = T{};
  }
  void pop_back() {
    --size_;
    if (size_ % kPageSize == 0) pages_.drop_last();
  }

  SharedPages share() {
    SharedPages copy;
    copy.pages_ = pages_.share();
    copy.size_ = size_;
    return copy;
  }
  // What a copy takes by itself, when about one page in it is not shared any more.
  std::size_t bytes_alone() const {
    return pages_.size() * sizeof(std::shared_ptr<T>) + kPageSize * sizeof(T);
  }

 private:
  SharedParts<std::array<T, kPageSize>> pages_;
  std::size_t size_ = 0;
};

}  // namespace handoff::epp
