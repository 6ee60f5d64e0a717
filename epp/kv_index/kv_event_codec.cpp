#include "epp/kv_index/kv_event_codec.hpp"

#include <limits>

#include "epp/kv_index/kv_field_decoder.hpp"

namespace handoff::epp {

namespace {

using Kind = MsgpackCursor::Kind;

class BatchDecoder : private KvFieldDecoder {
 public:
  using KvFieldDecoder::KvFieldDecoder;

  bool decode() {
    if (in_.peek() == Kind::map) return decode_map_batch();
    std::size_t count = 0;
    if (!in_.read_array(count) || count < 2 || !in_.read_real(batch_.timestamp) || !decode_events())
      return false;
    if (count > 2 && !decode_rank()) return false;
    return skip(count > 3 ? count - 3 : 0) && in_.at_end();
  }

 private:
  // One snapshot of vLLM published batches as maps.
  bool decode_map_batch() {
    std::size_t count = 0;
    if (!in_.read_map(count)) return false;
    bool has_events = false;
    for (; count > 0; --count) {
      std::string_view key;
      if (!in_.read_text(key)) return false;
      bool good = true;
      if (key == "ts") {
        good = in_.read_real(batch_.timestamp);
      } else if (key == "events") {
        good = !has_events && decode_events();
        has_events = true;
      } else if (key == "data_parallel_rank" || key == "attn_dp_rank") {
        good = decode_rank();
      } else {
        good = in_.skip();
      }
      if (!good) return false;
    }
    return has_events && in_.at_end();
  }

  bool decode_rank() {
    if (in_.peek() != Kind::integer) return in_.skip();
    std::uint64_t rank = 0;
    bool negative = false;
    if (!in_.read_integer(rank, negative)) return false;
    if (!negative && rank <= std::numeric_limits<std::uint32_t>::max())
      batch_.rank = static_cast<std::uint32_t>(rank);
    return true;
  }

  bool decode_events() {
    std::size_t count = 0;
    if (!in_.read_array(count) || count > kMaxKvEvents) return false;
    for (; count > 0; --count) {
      if (in_.peek() == Kind::map ? !decode_map_event() : !decode_array_event()) return false;
    }
    return true;
  }

  static std::optional<KvEventKind> kind_of(std::string_view type) {
    if (type == "BlockStored") return KvEventKind::stored;
    if (type == "BlockRemoved") return KvEventKind::removed;
    if (type == "AllBlocksCleared") return KvEventKind::cleared;
    return std::nullopt;
  }

  // --- maps: {"type": ..., field: value ...}, in any order ---

  bool decode_map_event() {
    const MsgpackCursor start = in_;
    std::size_t count = 0;
    std::string_view key;
    std::string_view type;
    if (!in_.read_map(count)) return false;
    // Every known writer puts the type first. From others it is looked for, because it says what the fields
    // mean.
    const bool is_first = count > 0 && in_.read_text(key) && key == "type" && in_.read_text(type);
    if (!is_first) {
      in_ = start;
      if (!find_type(type)) return false;
    }
    const auto kind = kind_of(type);
    if (!kind) {
      // An event without a type is no event; one with a new type is none that concerns us.
      ++batch_.unknown_events;
      return !type.empty() && (!is_first || skip(2 * (count - 1)));
    }
    if (!is_first) {
      in_ = start;
      if (!in_.read_map(count)) return false;
    }
    KvEvent event = begin_event(*kind);
    std::uint32_t seen = 0;
    for (std::size_t i = is_first ? 1 : 0; i < count; ++i) {
      if (!in_.read_text(key) || !decode_field(key, event, seen)) return false;
    }
    if (*kind != KvEventKind::cleared && (seen & kSawHashes) == 0) return false;
    batch_.events.push_back(event);
    return true;
  }

  // Reads over the whole map.
  bool find_type(std::string_view& type) {
    std::size_t count = 0;
    if (!in_.read_map(count)) return false;
    for (; count > 0; --count) {
      std::string_view key;
      if (!in_.read_text(key)) return false;
      if (key == "type" ? !in_.read_text(type) : !in_.skip()) return false;
    }
    return true;
  }

  static constexpr std::uint32_t kSawHashes = 1;
  static constexpr std::uint32_t kSawTokens = 2;
  static constexpr std::uint32_t kSawExtraKeys = 4;
  static constexpr std::uint32_t kSawMedia = 8;

  // A field of lists must come once: its values lie one after the other in the batch's vectors.
  static bool first_time(std::uint32_t& seen, std::uint32_t field) {
    const bool first = (seen & field) == 0;
    seen |= field;
    return first;
  }

  bool decode_field(std::string_view key, KvEvent& event, std::uint32_t& seen) {
    if (key == "block_hashes") return first_time(seen, kSawHashes) && decode_hashes(event);
    if (key == "medium") return decode_text(event.medium);
    if (key == "group_idx") return decode_group(event);
    if (key == "kv_cache_spec_kind") return decode_text(event.attention_kind);
    if (key == "locality") return decode_text(event.locality);
    if (event.kind != KvEventKind::stored) return in_.skip();
    if (key == "parent_block_hash") return decode_parent(event);
    if (key == "token_ids") return first_time(seen, kSawTokens) && decode_tokens(event);
    if (key == "block_size") return decode_block_size(event);
    if (key == "lora_name") return decode_text(event.lora_name);
    if (key == "cache_salt") return decode_text(event.cache_salt);
    if (key == "metadata") return decode_salt_map(event);
    // Both fill the same list.
    if (key == "extra_keys") return first_time(seen, kSawExtraKeys) && decode_extra_keys(event);
    if (key == "block_mm_infos") return first_time(seen, kSawMedia) && decode_media_infos(event);
    return in_.skip();
  }

  // --- arrays: [type, field, field ...]; later versions only appended ---

  bool decode_array_event() {
    std::size_t count = 0;
    std::string_view type;
    if (!in_.read_array(count) || count == 0 || !in_.read_text(type)) return false;
    const auto kind = kind_of(type);
    if (!kind) {
      ++batch_.unknown_events;
      return skip(count - 1);
    }
    KvEvent event = begin_event(*kind);
    bool good = true;
    if (*kind == KvEventKind::stored) {
      good = decode_stored_array(event, count);
    } else if (*kind == KvEventKind::removed) {
      good = decode_removed_array(event, count);
    } else {
      good = skip(count - 1);
    }
    if (good) batch_.events.push_back(event);
    return good;
  }

  bool decode_stored_array(KvEvent& event, std::size_t count) {
    constexpr std::size_t kLeast = 5;  // tag, hashes, parent, tokens, block size
    if (count < kLeast || !decode_hashes(event) || !decode_parent(event) || !decode_tokens(event) ||
        !decode_block_size(event)) {
      return false;
    }
    std::size_t next = kLeast;
    if (next < count && ++next && !in_.skip()) return false;  // lora_id: superseded by the name
    if (next < count && ++next && !decode_text(event.medium)) return false;
    // SGLang puts its salt where vLLM has the adapter's name.
    if (next < count && ++next &&
        !(in_.peek() == Kind::map ? decode_salt_map(event) : decode_text(event.lora_name))) {
      return false;
    }
    if (next < count && ++next && !decode_extra_keys(event)) return false;
    return decode_tail(event, count - next);
  }

  bool decode_removed_array(KvEvent& event, std::size_t count) {
    if (count < 2 || !decode_hashes(event)) return false;
    if (count == 2) return true;
    return decode_text(event.medium) && decode_tail(event, count - 3);
  }

  // Group, attention kind, window, locality. Older versions left some out, so short tails are read by type:
  // the first number is the group and the second the window, a text is a locality or a kind.
  bool decode_tail(KvEvent& event, std::size_t count) {
    constexpr std::size_t kFixed = 4;
    // Only the older ones have media infos, and have them first.
    const bool has_media = count > 0 && in_.peek() == Kind::array;
    if (has_media) {
      --count;
      if (event.kind == KvEventKind::stored ? !decode_media_infos(event) : !in_.skip()) return false;
    }
    if (count >= kFixed && !has_media) {
      return decode_group(event) && decode_text(event.attention_kind) && in_.skip() &&
             decode_text(event.locality) && skip(count - kFixed);
    }
    bool group_is_next = true;
    for (std::size_t i = 0; i < count; ++i) {
      switch (in_.peek()) {
        case Kind::integer:
          if (group_is_next ? !decode_group(event) : !in_.skip()) return false;
          group_is_next = false;
          break;
        case Kind::text: {
          std::string_view text;
          if (!in_.read_text(text)) return false;
          (text == "LOCAL" || text == "REMOTE" ? event.locality : event.attention_kind) = text;
          group_is_next = false;
          break;
        }
        case Kind::nil:
          // In the place of the group: there is none, and a number further on is the window.
          group_is_next = false;
          if (!in_.skip()) return false;
          break;
        default:
          if (!in_.skip()) return false;
      }
    }
    return true;
  }
};

// One huge batch must not cost its memory for ever.
template <typename Value>
void reuse(std::vector<Value>& values) {
  constexpr std::size_t kWorthKeeping = std::size_t{1} << 20;
  if (values.capacity() * sizeof(Value) > kWorthKeeping) std::vector<Value>().swap(values);
  values.clear();
}

}  // namespace

bool decode_kv_events(std::span<const std::byte> payload, KvEventBatch& batch) {
  batch.timestamp = 0;
  batch.rank.reset();
  reuse(batch.events);
  reuse(batch.hashes);
  reuse(batch.tokens);
  reuse(batch.extra_keys);
  batch.unknown_events = 0;
  if (payload.size() > kMaxKvPayloadBytes) return false;
  return BatchDecoder(payload, batch).decode();
}

}  // namespace handoff::epp
