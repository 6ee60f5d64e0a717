#include "backends/sglang/pairing.hpp"

#include <array>

namespace handoff::sglang {
namespace {

constexpr std::uint64_t kRoomMask = (std::uint64_t{1} << 63) - 1;

std::string new_rid(const sdk::Host& host) {
  std::array<unsigned char, 16> bytes{};
  host.random(bytes.data(), bytes.size());
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string rid;
  rid.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    rid += kDigits[byte >> 4];
    rid += kDigits[byte & 15];
  }
  return rid;
}

std::uint64_t new_room(const sdk::Host& host, const PairingTerms& terms) {
  std::uint64_t room = 0;
  host.random(&room, sizeof(room));
  room &= kRoomMask;
  if (!terms.prefill_rank || terms.prefill_ranks < 2) return room;
  room -= room % terms.prefill_ranks;
  room += *terms.prefill_rank;
  return room > kRoomMask ? room - terms.prefill_ranks : room;
}

/// The value, or as many of them as a list.
template <class Make>
std::string repeated(std::optional<std::size_t> items, Make make) {
  if (!items) return make(0);
  std::string out = "[";
  for (std::size_t i = 0; i < *items; ++i) {
    if (i > 0) out += ',';
    out += make(i);
  }
  return out += ']';
}

std::string quoted(std::string_view text) {
  return '"' + std::string(text) + '"';
}

}  // namespace

Pairing new_pairing(const sdk::Host& host, const PairingTerms& terms) {
  Pairing pairing;
  for (std::size_t i = 0; i < terms.items.value_or(1); ++i) pairing.rids.push_back(new_rid(host));
  pairing.rid = repeated(terms.items, [&](std::size_t i) { return quoted(pairing.rids[i]); });
  pairing.room = repeated(terms.items, [&](std::size_t) { return std::to_string(new_room(host, terms)); });
  // A host name of the routing header's grammar has nothing that JSON would escape.
  pairing.host = repeated(terms.items, [&](std::size_t) { return quoted(terms.prefill_host); });
  pairing.port = repeated(terms.items, [&](std::size_t) { return std::to_string(terms.bootstrap_port); });
  return pairing;
}

}  // namespace handoff::sglang
