#include "epp/selection/active_blocks.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace handoff::epp {

struct ActiveBlocks::Node {
  struct Owners {
    Slot slot;
    std::uint32_t requests;
    // Sum of the owners' fractions: with one request left, exactly that request's fraction.
    std::uint64_t fractions;
  };

  Node* parent = nullptr;
  Node* first_child = nullptr;
  Node* next_sibling = nullptr;
  Node* previous_sibling = nullptr;
  std::uint32_t terminals = 0;
  std::vector<std::uint64_t> edge;
  std::vector<Owners> owners;  // sorted by slot

  std::vector<Owners>::iterator find(Slot slot) {
    return std::lower_bound(owners.begin(), owners.end(), slot,
                            [](const Owners& entry, Slot wanted) { return entry.slot < wanted; });
  }

  void link(Node* new_parent) {
    parent = new_parent;
    previous_sibling = nullptr;
    next_sibling = new_parent->first_child;
    if (next_sibling != nullptr) next_sibling->previous_sibling = this;
    new_parent->first_child = this;
  }

  void unlink() {
    if (previous_sibling != nullptr) {
      previous_sibling->next_sibling = next_sibling;
    } else {
      parent->first_child = next_sibling;
    }
    if (next_sibling != nullptr) next_sibling->previous_sibling = previous_sibling;
  }
};

namespace {

std::size_t common_prefix(std::span<const std::uint64_t> left, std::span<const std::uint64_t> right) {
  const auto mismatch = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return static_cast<std::size_t>(mismatch.first - left.begin());
}

// A shared block weighs 1; one with a single owner weighs what that owner says.
std::uint64_t block_weight(std::uint32_t requests, std::uint64_t fractions) {
  if (requests == 0) return 0;
  return requests == 1 ? fractions : ActiveBlocks::kWholeBlock;
}

}  // namespace

std::size_t ActiveBlocks::HeadKeyHash::operator()(const HeadKey& key) const noexcept {
  // The hash is already well mixed unless a caller invents it; the multiplication spreads the pointer.
  const auto parent = reinterpret_cast<std::uintptr_t>(key.parent);
  return static_cast<std::size_t>(key.hash ^ (static_cast<std::uint64_t>(parent) * 0x9e3779b97f4a7c15ULL));
}

ActiveBlocks::ActiveBlocks(std::size_t max_blocks)
    : max_blocks_(max_blocks), root_(std::make_unique<Node>()) {}
ActiveBlocks::~ActiveBlocks() = default;

ActiveBlocks::Node* ActiveBlocks::child(const Node* parent, std::uint64_t hash) const {
  const auto found = nodes_.find(HeadKey{parent, hash});
  return found == nodes_.end() ? nullptr : found->second.get();
}

void ActiveBlocks::add_prefix_depths(std::span<const std::uint64_t> hashes,
                                     std::span<std::uint32_t> depths) const {
  const Node* node = root_.get();
  while (!hashes.empty()) {
    const Node* next = child(node, hashes.front());
    if (next == nullptr) return;
    const std::size_t length = common_prefix(next->edge, hashes);
    // Every owner of a node owns its ancestors too, so the sum along the path is the contiguous prefix.
    for (const auto& entry : next->owners) depths[entry.slot] += static_cast<std::uint32_t>(length);
    if (length < next->edge.size()) return;
    hashes = hashes.subspan(length);
    node = next;
  }
}

ActiveBlocks::Node* ActiveBlocks::acquire(Slot slot, std::span<const std::uint64_t> hashes) {
  if (hashes.empty()) return nullptr;
  Node* node = root_.get();
  while (!hashes.empty()) {
    Node* next = child(node, hashes.front());
    if (next == nullptr) {
      if (hashes.size() > max_blocks_ - stored_blocks_) return nullptr;
      node = add_child(node, hashes);
      break;
    }
    const std::size_t length = common_prefix(next->edge, hashes);
    if (length < next->edge.size()) {
      if (hashes.size() - length > max_blocks_ - stored_blocks_) return nullptr;
      split(next, length);
      next = next->parent;
    }
    hashes = hashes.subspan(length);
    node = next;
  }
  add_owner(slot, node);
  return node;
}

void ActiveBlocks::add_owner(Slot slot, Node* terminal) {
  if (slot >= weights_.size()) weights_.resize(slot + 1, 0);
  ++terminal->terminals;
  for (Node* node = terminal; node != root_.get(); node = node->parent) {
    auto entry = node->find(slot);
    if (entry == node->owners.end() || entry->slot != slot) {
      entry = node->owners.insert(entry, Node::Owners{slot, 0, 0});
    }
    const std::uint64_t before = block_weight(entry->requests, entry->fractions);
    ++entry->requests;
    entry->fractions += kWholeBlock;
    weights_[slot] += node->edge.size() * (block_weight(entry->requests, entry->fractions) - before);
  }
}

void ActiveBlocks::release(Slot slot, Node* terminal, std::uint64_t fraction) {
  if (terminal == nullptr) return;
  --terminal->terminals;
  Node* lowest_kept = nullptr;
  for (Node* node = terminal; node != root_.get();) {
    Node* parent = node->parent;
    const auto entry = node->find(slot);
    assert(entry != node->owners.end() && entry->slot == slot);
    const std::uint64_t before = block_weight(entry->requests, entry->fractions);
    --entry->requests;
    entry->fractions -= fraction;
    // Unsigned wrap-around is intended: the difference may be negative, the sum never is.
    weights_[slot] += node->edge.size() * (block_weight(entry->requests, entry->fractions) - before);
    if (entry->requests == 0) node->owners.erase(entry);
    if (node->owners.empty()) {
      remove_leaf(node);
    } else if (lowest_kept == nullptr) {
      lowest_kept = node;
    }
    node = parent;
  }
  if (lowest_kept != nullptr) merge_with_only_child(lowest_kept);
}

void ActiveBlocks::set_fraction(Slot slot, Node* terminal, std::uint64_t from, std::uint64_t to) {
  if (terminal == nullptr || from == to) return;
  for (Node* node = terminal; node != root_.get(); node = node->parent) {
    const auto entry = node->find(slot);
    assert(entry != node->owners.end() && entry->slot == slot);
    const std::uint64_t before = block_weight(entry->requests, entry->fractions);
    entry->fractions += to - from;
    weights_[slot] += node->edge.size() * (block_weight(entry->requests, entry->fractions) - before);
  }
}

ActiveBlocks::Node* ActiveBlocks::add_child(Node* parent, std::span<const std::uint64_t> edge) {
  auto owned = std::make_unique<Node>();
  Node* node = owned.get();
  node->edge.assign(edge.begin(), edge.end());
  node->link(parent);
  nodes_.emplace(HeadKey{parent, edge.front()}, std::move(owned));
  stored_blocks_ += edge.size();
  return node;
}

// The lower part keeps the node's identity, because bookings point at the ends of edges.
void ActiveBlocks::split(Node* lower, std::size_t length) {
  Node* parent = lower->parent;
  const auto head = nodes_.find(HeadKey{parent, lower->edge.front()});
  std::unique_ptr<Node> lower_owned = std::move(head->second);

  auto upper_owned = std::make_unique<Node>();
  Node* upper = upper_owned.get();
  const auto cut = lower->edge.begin() + static_cast<std::ptrdiff_t>(length);
  upper->edge.assign(lower->edge.begin(), cut);
  upper->owners = lower->owners;
  head->second = std::move(upper_owned);

  lower->unlink();
  upper->link(parent);
  lower->edge.erase(lower->edge.begin(), cut);
  lower->link(upper);
  nodes_.emplace(HeadKey{upper, lower->edge.front()}, std::move(lower_owned));
}

void ActiveBlocks::remove_leaf(Node* node) {
  assert(node->first_child == nullptr && node->terminals == 0);
  stored_blocks_ -= node->edge.size();
  node->unlink();
  nodes_.erase(HeadKey{node->parent, node->edge.front()});
}

void ActiveBlocks::merge_with_only_child(Node* node) {
  Node* only = node->first_child;
  if (node->terminals > 0 || only == nullptr || only->next_sibling != nullptr) return;
  // No request ends here and there is one way on, so both parts have the same owners.
  Node* parent = node->parent;
  auto child_entry = nodes_.extract(HeadKey{node, only->edge.front()});
  const auto head = nodes_.find(HeadKey{parent, node->edge.front()});
  node->edge.insert(node->edge.end(), only->edge.begin(), only->edge.end());
  only->edge = std::move(node->edge);
  node->unlink();
  only->link(parent);
  head->second = std::move(child_entry.mapped());
}

}  // namespace handoff::epp
