#pragma once

#include <cstdint>
#include <string_view>

namespace handoff::epp {

// The finalizer of splitmix64: every input bit reaches every output bit. Fixed, because tie-breaks are
// documented to repeat across builds and machines, which std::hash does not promise.
constexpr std::uint64_t mix64(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// FNV-1a over the bytes, then mixed. For identifiers of a few dozen bytes.
constexpr std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  }
  return mix64(hash);
}

// A double in [0, 1) from the upper 53 bits.
constexpr double unit_interval(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace handoff::epp
