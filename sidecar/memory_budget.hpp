// What one loop may hold of request bodies, collected replies and held answers.
#pragma once

#include <cstddef>
#include <utility>

namespace handoff::sidecar {

/// A count with a bound. Owned by the loop, used on its thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::size_t limit) : limit_(limit) {}
  bool try_take(std::size_t bytes) {
    if (bytes > limit_ - taken_) return false;
    taken_ += bytes;
    return true;
  }
  void give_back(std::size_t bytes) { taken_ -= bytes; }
  std::size_t taken() const { return taken_; }

 private:
  std::size_t limit_;
  std::size_t taken_ = 0;
};

/// A holder's share of a budget; gives it back when destroyed.
class BudgetShare {
 public:
  BudgetShare() = default;
  explicit BudgetShare(MemoryBudget& budget) : budget_(&budget) {}
  BudgetShare(BudgetShare&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), taken_(std::exchange(other.taken_, 0)) {}
  BudgetShare& operator=(BudgetShare&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(taken_, other.taken_);
    return *this;
  }
  ~BudgetShare() {
    if (budget_ != nullptr) budget_->give_back(taken_);
  }
  void release() {
    if (budget_ != nullptr) budget_->give_back(taken_);
    taken_ = 0;
  }
  /// Makes the share at least `bytes`. False: the loop holds too much already.
  bool grow_to(std::size_t bytes) {
    if (bytes <= taken_) return true;
    if (!budget_->try_take(bytes - taken_)) return false;
    taken_ = bytes;
    return true;
  }
  /// Makes the share at most `bytes`.
  void shrink_to(std::size_t bytes) {
    if (bytes >= taken_) return;
    budget_->give_back(taken_ - bytes);
    taken_ = bytes;
  }

 private:
  MemoryBudget* budget_ = nullptr;
  std::size_t taken_ = 0;
};

}  // namespace handoff::sidecar
