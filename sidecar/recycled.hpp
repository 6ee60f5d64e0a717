// Memory of objects that are made and ended for every request.
#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace handoff::sidecar {

/// A base that keeps the memory of the last few ended objects of class `T`, per thread, for the next ones.
/// With many requests at once the allocator's own caches, which hold seven blocks of a size and none above a
/// kilobyte, miss most of the time.
template <class T>
class Recycled {
 public:
  static void* operator new(std::size_t size) {
    auto& kept = kept_blocks();
    if (size == sizeof(T) && kept.count > 0) return kept.blocks[--kept.count];
    return ::operator new(size);
  }
  static void operator delete(void* block, std::size_t size) {
    auto& kept = kept_blocks();
    if (size == sizeof(T) && kept.count < kMost) {
      kept.blocks[kept.count++] = block;
    } else {
      ::operator delete(block);
    }
  }

 private:
#ifdef __SANITIZE_ADDRESS__
  static constexpr std::size_t kMost = 0;  // or it could not tell who uses an object after its end
#else
  static constexpr std::size_t kMost = 64;
#endif
  struct Kept {
    std::array<void*, kMost + 1> blocks;
    std::size_t count = 0;
    ~Kept() {
      while (count > 0) ::operator delete(blocks[--count]);
    }
  };
  static Kept& kept_blocks() {
    thread_local Kept kept;
    return kept;
  }
};

}  // namespace handoff::sidecar
