#include "epp/kv_index/kv_field_decoder.hpp"

#include <algorithm>
#include <limits>
#include <span>

namespace handoff::epp {

namespace {

using Kind = MsgpackCursor::Kind;

std::uint64_t big_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (const std::byte byte : bytes) value = value << 8 | std::to_integer<std::uint64_t>(byte);
  return value;
}

}  // namespace

template <typename Decode>
bool KvFieldDecoder::for_each_member(std::string_view name, Decode&& decode) {
  if (in_.peek() != Kind::map) return in_.skip();
  std::size_t count = 0;
  if (!in_.read_map(count)) return false;
  for (; count > 0; --count) {
    std::string_view key;
    if (!decode_text(key)) return false;
    if (key == name ? !decode() : !in_.skip()) return false;
  }
  return true;
}

bool KvFieldDecoder::skip(std::size_t values) {
  for (; values > 0; --values) {
    if (!in_.skip()) return false;
  }
  return true;
}

KvEvent KvFieldDecoder::begin_event(KvEventKind kind) const {
  KvEvent event;
  event.kind = kind;
  event.hashes.begin = static_cast<std::uint32_t>(batch_.hashes.size());
  event.tokens.begin = static_cast<std::uint32_t>(batch_.tokens.size());
  event.extra_keys.begin = static_cast<std::uint32_t>(batch_.extra_keys.size());
  return event;
}

bool KvFieldDecoder::decode_hash(std::uint64_t& hash) {
  bool negative = false;
  if (in_.peek() != Kind::bytes) return in_.read_integer(hash, negative);
  std::span<const std::byte> bytes;
  if (!in_.read_bytes(bytes) || bytes.empty()) return false;
  // The integer form of a digest is its low 64 bits.
  hash = big_endian(bytes.last(std::min(bytes.size(), sizeof(std::uint64_t))));
  return true;
}

bool KvFieldDecoder::decode_hashes(KvEvent& event) {
  std::size_t count = 0;
  if (!in_.read_array(count) || count > kMaxKvHashes - batch_.hashes.size()) return false;
  event.hashes.count = static_cast<std::uint32_t>(count);
  std::size_t at = batch_.hashes.size();
  batch_.hashes.resize(at + count);
  while (at < batch_.hashes.size()) {
    at += in_.take_large_numbers(std::span(batch_.hashes).subspan(at));
    if (at < batch_.hashes.size() && !decode_hash(batch_.hashes[at++])) return false;
  }
  return true;
}

bool KvFieldDecoder::decode_parent(KvEvent& event) {
  if (in_.peek() == Kind::nil) return in_.read_nil();
  std::uint64_t hash = 0;
  if (!decode_hash(hash)) return false;
  event.parent = hash;
  return true;
}

bool KvFieldDecoder::decode_token(KvEvent& event, std::uint32_t& token) {
  if (in_.peek() != Kind::integer) {
    event.tokens_unusable = true;
    return in_.skip();
  }
  std::uint64_t value = 0;
  bool negative = false;
  if (!in_.read_integer(value, negative)) return false;
  if (negative || value > std::numeric_limits<std::uint32_t>::max()) event.tokens_unusable = true;
  token = static_cast<std::uint32_t>(value);
  return true;
}

bool KvFieldDecoder::decode_tokens(KvEvent& event) {
  if (in_.peek() == Kind::nil) return in_.read_nil();
  std::size_t count = 0;
  if (!in_.read_array(count)) return false;
  event.tokens_are_pairs = count > 0 && in_.peek() == Kind::array;
  std::uint32_t second = 0;
  // resize() and not reserve(): it grows by a factor, so many small events in one batch stay linear.
  std::size_t at = batch_.tokens.size();
  batch_.tokens.resize(at + count + (event.tokens_are_pairs ? 1 : 0));
  const std::size_t end = at + count;
  if (event.tokens_are_pairs) {
    for (; at < end; ++at) {
      std::size_t pair = 0;
      if (!in_.read_array(pair) || pair != 2) return false;
      if (!decode_token(event, batch_.tokens[at]) || !decode_token(event, second)) return false;
    }
    batch_.tokens[end] = second;
  } else {
    while (at < end) {
      at += in_.take_small_numbers(std::span(batch_.tokens).subspan(at, end - at));
      if (at < end && !decode_token(event, batch_.tokens[at++])) return false;
    }
  }
  event.tokens.count = static_cast<std::uint32_t>(batch_.tokens.size() - event.tokens.begin);
  return true;
}

bool KvFieldDecoder::decode_block_size(KvEvent& event) {
  if (in_.peek() == Kind::nil) return in_.read_nil();
  std::uint64_t size = 0;
  bool negative = false;
  if (!in_.read_integer(size, negative) || negative || size > std::numeric_limits<std::uint32_t>::max())
    return false;
  event.block_size = static_cast<std::uint32_t>(size);
  return true;
}

bool KvFieldDecoder::decode_group(KvEvent& event) {
  if (in_.peek() != Kind::integer) return in_.skip();
  std::uint64_t group = 0;
  bool negative = false;
  if (!in_.read_integer(group, negative)) return false;
  if (!negative) event.group = group;
  return true;
}

bool KvFieldDecoder::decode_text(std::string_view& text) {
  if (in_.peek() != Kind::text) return in_.skip();
  return in_.read_text(text);
}

bool KvFieldDecoder::decode_salt_map(KvEvent& event) {
  if (in_.peek() != Kind::map) return in_.skip();
  std::size_t count = 0;
  if (!in_.read_map(count)) return false;
  for (; count > 0; --count) {
    std::string_view key;
    if (!decode_text(key)) return false;
    if (key == "cache_salt" ? !decode_text(event.cache_salt) : !in_.skip()) return false;
  }
  return true;
}

bool KvFieldDecoder::add_extra_key(KvEvent& event, const KvExtraKey& key) {
  if (batch_.extra_keys.size() >= kMaxKvExtraKeys) return false;
  batch_.extra_keys.push_back(key);
  ++event.extra_keys.count;
  return true;
}

bool KvFieldDecoder::decode_extra_keys(KvEvent& event) {
  if (in_.peek() != Kind::array) return in_.skip();
  std::size_t blocks = 0;
  if (!in_.read_array(blocks)) return false;
  for (std::size_t block = 0; block < blocks; ++block) {
    if (in_.peek() != Kind::array) {
      if (!in_.skip()) return false;
      continue;
    }
    std::size_t keys = 0;
    if (!in_.read_array(keys)) return false;
    for (; keys > 0; --keys) {
      if (!decode_extra_key(event, static_cast<std::uint32_t>(block))) return false;
    }
  }
  return true;
}

bool KvFieldDecoder::decode_extra_key(KvEvent& event, std::uint32_t block) {
  KvExtraKey key{block, {}, false, 0};
  if (in_.peek() == Kind::text) {
    if (!in_.read_text(key.text)) return false;
  } else if (in_.peek() == Kind::array) {
    std::size_t parts = 0;
    if (!in_.read_array(parts)) return false;
    if (parts == 0 || in_.peek() != Kind::text) return skip(parts);
    if (!in_.read_text(key.text) || !skip(parts - 1)) return false;
    key.is_marked = parts > 1;
  } else {
    return in_.skip();
  }
  return key.text.empty() || add_extra_key(event, key);
}

bool KvFieldDecoder::decode_media_infos(KvEvent& event) {
  if (in_.peek() != Kind::array) return in_.skip();
  std::size_t blocks = 0;
  if (!in_.read_array(blocks)) return false;
  for (std::size_t block = 0; block < blocks; ++block) {
    const bool good = for_each_member("mm_objects", [&] { return decode_media_objects(event, block); });
    if (!good) return false;
  }
  return true;
}

bool KvFieldDecoder::decode_media_objects(KvEvent& event, std::size_t block) {
  if (in_.peek() != Kind::array) return in_.skip();
  std::size_t objects = 0;
  if (!in_.read_array(objects)) return false;
  for (; objects > 0; --objects) {
    const bool good = for_each_member("mm_hash", [&] {
      if (in_.peek() != Kind::integer) return in_.skip();
      KvExtraKey key{static_cast<std::uint32_t>(block), {}, true, 0};
      bool negative = false;
      if (!in_.read_integer(key.media, negative)) return false;
      return add_extra_key(event, key);
    });
    if (!good) return false;
  }
  return true;
}

}  // namespace handoff::epp
