#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "epp/kv_index/kv_event_codec.hpp"
#include "epp/kv_index/msgpack_cursor.hpp"

namespace handoff::epp {

// Reads the fields of events, which maps and arrays have in common, in every spelling. Each decode_*() takes
// one value into the event, or into the batch's lists behind what is there. False: the batch is broken.
class KvFieldDecoder {
 public:
  KvFieldDecoder(std::span<const std::byte> payload, KvEventBatch& batch) : in_(payload), batch_(batch) {}

 protected:
  bool skip(std::size_t values);
  KvEvent begin_event(KvEventKind kind) const;
  bool decode_hashes(KvEvent& event);
  bool decode_parent(KvEvent& event);
  bool decode_tokens(KvEvent& event);
  bool decode_block_size(KvEvent& event);
  bool decode_group(KvEvent& event);
  // A text, or something else in its place that says nothing to us.
  bool decode_text(std::string_view& text);
  bool decode_salt_map(KvEvent& event);
  // Per block null or a list of keys. Texts and (text, offset) pairs count, numbers and bytes are something
  // else.
  bool decode_extra_keys(KvEvent& event);
  // Per block null or {"mm_objects": [{"mm_hash": number, ...}]}.
  bool decode_media_infos(KvEvent& event);

  MsgpackCursor in_;
  KvEventBatch& batch_;

 private:
  bool decode_hash(std::uint64_t& hash);
  bool decode_token(KvEvent& event, std::uint32_t& token);
  bool add_extra_key(KvEvent& event, const KvExtraKey& key);
  bool decode_extra_key(KvEvent& event, std::uint32_t block);
  bool decode_media_objects(KvEvent& event, std::size_t block);

  // Calls decode() at the value of that name in the map that comes next; anything but a map is skipped.
  template <typename Decode>
  bool for_each_member(std::string_view name, Decode&& decode);
};

}  // namespace handoff::epp
