#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "epp/kv_index/shared_parts.hpp"
#include "epp/selection/selection_service.hpp"

namespace handoff::epp {

// A hash map whose copies share what is alike in them (see SharedParts).
template <typename Key, typename Value>
class SharedMap {
 public:
  SharedMap() {
    for (std::size_t i = 0; i < kParts; ++i) parts_.add();
  }

  const Value* find(const Key& key) const {
    const Part& part = parts_[part_of(key)];
    const auto found = part.find(key);
    return found == part.end() ? nullptr : &found->second;
  }
  Value& change(const Key& key) { return parts_.change(part_of(key))[key]; }
  void erase(const Key& key) { parts_.change(part_of(key)).erase(key); }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (std::size_t i = 0; i < kParts; ++i) {
      for (const auto& [key, value] : parts_[i]) visit(key, value);
    }
  }

  SharedMap share() { return SharedMap(parts_.share()); }

 private:
  using Part = std::unordered_map<Key, Value>;
  // A copy is so many counted references; a change copies one part of so many.
  static constexpr std::size_t kParts = 256;

  explicit SharedMap(SharedParts<Part> parts) : parts_(std::move(parts)) {}
  static std::size_t part_of(const Key& key) { return std::hash<Key>()(key) % kParts; }

  SharedParts<Part> parts_;
};

// What can be asked about workers and their addresses: a value, as of one moment.
class WorkerView {
 public:
  struct Known {
    std::string name;
    std::string address;
    std::uint16_t port = 0;
    bool is_prefill = false;
    bool ready = false;

    bool operator==(const Known&) const = default;
  };

  WorkerView() = default;

  // Null when it is not there.
  const Known* find(WorkerId id) const { return workers_.find(id); }
  // By "ip:port". When several have the same address, the smallest id.
  std::optional<WorkerId> destination_at(std::string_view address) const {
    return at(destinations_, address);
  }
  std::optional<WorkerId> prefill_at(std::string_view address) const { return at(prefills_, address); }
  template <typename Visit>
  void for_each_destination(Visit&& visit) const {
    workers_.for_each([&](WorkerId id, const Known& known) {
      if (!known.is_prefill) visit(id, known);
    });
  }
  std::size_t size() const { return size_; }

  // The owner's:
  void put(WorkerId id, Known known);
  void erase(WorkerId id);
  // A copy that later changes don't touch.
  WorkerView share();

 private:
  using Addresses = SharedMap<std::string, std::vector<WorkerId>>;

  WorkerView(SharedMap<WorkerId, Known> workers, Addresses destinations, Addresses prefills, std::size_t size)
      : workers_(std::move(workers)),
        destinations_(std::move(destinations)),
        prefills_(std::move(prefills)),
        size_(size) {}
  static std::optional<WorkerId> at(const Addresses& addresses, std::string_view address);

  SharedMap<WorkerId, Known> workers_;
  Addresses destinations_;
  Addresses prefills_;
  std::size_t size_ = 0;
};

}  // namespace handoff::epp
