#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace handoff::epp {

// Which prompt blocks the running requests of every rank hold: a path-compressed trie over sequence hashes in
// which each node knows its owners per rank. A block that several requests of one rank share counts once
// there.
//
// Owner: LoadLedger. Not thread-safe; used under the partition's lock. It holds exactly what live bookings
// need: the last release of a block removes it, and a split that is no longer needed is merged back, so its
// size follows the live load and never its history.
class ActiveBlocks {
 public:
  // A rank's position in the partition's rank table.
  using Slot = std::uint32_t;
  struct Node;

  // Weights are fixed point, so that sums return to exactly zero: this is the weight of one whole block.
  static constexpr std::uint64_t kWholeBlock = 1ULL << 20;

  // `max_blocks` bounds the stored hashes; see acquire().
  explicit ActiveBlocks(std::size_t max_blocks);
  ~ActiveBlocks();
  ActiveBlocks(const ActiveBlocks&) = delete;
  ActiveBlocks& operator=(const ActiveBlocks&) = delete;

  // Adds to depths[slot] how many leading blocks of `hashes` are active there. `depths` covers all used
  // slots.
  void add_prefix_depths(std::span<const std::uint64_t> hashes, std::span<std::uint32_t> depths) const;

  // Makes one more request of `slot` an owner of these blocks. The returned terminal is given back to
  // release(). Null when there is nothing to hold or the bound is reached: the caller then counts the blocks
  // as unshared.
  Node* acquire(Slot slot, std::span<const std::uint64_t> hashes);

  // `fraction` is the owner's current weight per exclusively owned block (see set_fraction).
  void release(Slot slot, Node* terminal, std::uint64_t fraction);

  // Changes the weight of the blocks that this request alone owns on its rank. Blocks it shares weigh 1.
  void set_fraction(Slot slot, Node* terminal, std::uint64_t from, std::uint64_t to);

  // Sum of the weights of the distinct blocks active on a rank.
  std::uint64_t weight(Slot slot) const { return slot < weights_.size() ? weights_[slot] : 0; }

  std::size_t stored_blocks() const { return stored_blocks_; }
  std::size_t node_count() const { return nodes_.size(); }

 private:
  // A child is found by its parent and its first hash. Hashes are chained, but a caller may hand in any
  // numbers, so the parent is part of the key and edges are compared in full.
  struct HeadKey {
    const Node* parent;
    std::uint64_t hash;
    bool operator==(const HeadKey&) const = default;
  };
  struct HeadKeyHash {
    std::size_t operator()(const HeadKey& key) const noexcept;
  };

  Node* child(const Node* parent, std::uint64_t hash) const;
  Node* add_child(Node* parent, std::span<const std::uint64_t> edge);
  void split(Node* lower, std::size_t length);
  void add_owner(Slot slot, Node* terminal);
  void remove_leaf(Node* node);
  void merge_with_only_child(Node* node);

  const std::size_t max_blocks_;
  std::size_t stored_blocks_ = 0;
  std::vector<std::uint64_t> weights_;
  std::unique_ptr<Node> root_;
  std::unordered_map<HeadKey, std::unique_ptr<Node>, HeadKeyHash> nodes_;
};

}  // namespace handoff::epp
