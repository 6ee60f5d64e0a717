#include "epp/discovery/worker_id.hpp"

#include <bit>
#include <cstddef>

namespace handoff::epp {
namespace {

constexpr std::uint64_t kJsonSafeBits = 0x001F'FFFF'FFFF'FFFF;

struct SipState {
  // The published constants; a key of zero changes none of them.
  std::uint64_t v0 = 0x736f6d6570736575;
  std::uint64_t v1 = 0x646f72616e646f6d;
  std::uint64_t v2 = 0x6c7967656e657261;
  std::uint64_t v3 = 0x7465646279746573;

  void round() {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }

  void take(std::uint64_t word) {
    v3 ^= word;
    round();
    v0 ^= word;
  }
};

}  // namespace

std::uint64_t worker_id_of(std::string_view name) {
  SipState state;
  std::uint64_t word = 0;
  std::size_t length = 0;
  const auto add = [&](unsigned char byte) {
    word |= std::uint64_t{byte} << (8 * (length % 8));
    if (++length % 8 == 0) {
      state.take(word);
      word = 0;
    }
  };
  for (const char c : name) add(static_cast<unsigned char>(c));
  add(0xFF);
  state.take(word | std::uint64_t{length & 0xFF} << 56);
  state.v2 ^= 0xFF;
  for (int i = 0; i < 3; ++i) state.round();
  return (state.v0 ^ state.v1 ^ state.v2 ^ state.v3) & kJsonSafeBits;
}

}  // namespace handoff::epp
