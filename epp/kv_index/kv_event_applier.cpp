#include "epp/kv_index/kv_event_applier.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace handoff::epp {

namespace {

constexpr std::size_t kMaxGroups = 256;
constexpr std::size_t kMaxSaltedBlocks = std::size_t{1} << 18;
constexpr std::size_t kMaxSalts = std::size_t{1} << 14;
constexpr std::size_t kMaxSaltBytes = 1024;
constexpr std::uint32_t kAmbiguous = 0xFFFFFFFF;
constexpr std::string_view kSaltPrefix = "dynamo-cache-salt:";

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equals_ignoring_case(std::string_view text, std::string_view lower_case) {
  return std::equal(text.begin(), text.end(), lower_case.begin(), lower_case.end(),
                    [](char a, char b) { return lower(a) == b; });
}

std::uint32_t bit_of(Tier tier) {
  return 1U << static_cast<unsigned>(tier);
}

bool is_main_attention(std::string_view kind) {
  return kind == "full_attention" || kind == "mla_attention" || kind == "sink_full_attention";
}

}  // namespace

Tier tier_of_medium(std::string_view medium) {
  struct Row {
    std::string_view name;
    Tier tier;
  };
  static constexpr Row kRows[] = {
      {"gpu", Tier::device},        {"device", Tier::device},    {"cpu", Tier::host},
      {"cpu_pinned", Tier::host},   {"cpu_tier1", Tier::host},   {"cpu_tier2", Tier::disk},
      {"disk", Tier::disk},         {"nvme", Tier::disk},        {"storage", Tier::disk},
      {"external", Tier::external}, {"network", Tier::external}, {"remote", Tier::external},
      {"shared", Tier::external},
  };
  for (const Row& row : kRows) {
    if (equals_ignoring_case(medium, row.name)) return row.tier;
  }
  return Tier::device;
}

KvEventApplier::KvEventApplier(BlockIndex& index, KvApplierOptions options)
    : index_(index),
      options_(std::move(options)),
      salt_of_(0, Hasher{std::random_device{}() * 0x9E3779B97F4A7C15U | 1}) {}

WorkerRank KvEventApplier::rank_of(const KvEventBatch& batch) const {
  const bool known = batch.rank && *batch.rank >= options_.first_rank &&
                     *batch.rank - options_.first_rank < options_.rank_count;
  return known ? WorkerRank{options_.rank.worker, *batch.rank} : options_.rank;
}

KvApplyReport KvEventApplier::apply(std::span<const std::byte> payload) {
  KvApplyReport report;
  if (!decode_kv_events(payload, batch_)) {
    count(counters_.decode_errors);
    report.is_decoded = false;
    return report;
  }
  const WorkerRank rank = rank_of(batch_);
  if (rank != options_.rank) touched_.insert(rank);
  // What comes before the last clearing is void by the end of the batch. To clear costs as much as there are
  // ranks, so it's done once, however often a batch says so.
  const auto is_clear = [](const KvEvent& event) { return event.kind == KvEventKind::cleared; };
  const auto last_clear = std::find_if(batch_.events.rbegin(), batch_.events.rend(), is_clear);
  const auto first = last_clear == batch_.events.rend() ? batch_.events.begin() : last_clear.base() - 1;
  for (auto event = batch_.events.begin(); event != first; ++event) skip_event(*event, rank);
  for (auto event = first; event != batch_.events.end(); ++event) apply_event(*event, rank, report);
  count(counters_.batches);
  count(counters_.unknown_events, batch_.unknown_events);
  if (options_.wall_clock && std::isfinite(batch_.timestamp))
    counters_.lag_seconds.store(options_.wall_clock() - batch_.timestamp, std::memory_order_relaxed);
  return report;
}

void KvEventApplier::clear() {
  index_.clear_rank(options_.rank);
  for (const WorkerRank& rank : touched_) index_.clear_rank(rank);
  touched_.clear();
  groups_.clear();
  salt_of_.clear();
  salts_.clear();
  free_salts_.clear();
  salt_ids_.clear();
}

// One that a later event of its batch makes void. It may still teach which group is the main one.
void KvEventApplier::skip_event(const KvEvent& event, WorkerRank rank) {
  switch (event.kind) {
    case KvEventKind::cleared:
      count(counters_.cleared_events);
      return;
    case KvEventKind::stored:
      count(counters_.stored_events);
      break;
    case KvEventKind::removed:
      count(counters_.removed_events);
      break;
  }
  (void)is_main_group(event, rank);
}

void KvEventApplier::apply_event(const KvEvent& event, WorkerRank rank, KvApplyReport& report) {
  if (event.kind == KvEventKind::cleared) {
    count(counters_.cleared_events);
    index_.clear_rank(rank);
    std::erase_if(salt_of_, [&](const auto& entry) {
      if (entry.first.rank != rank.rank) return false;
      release_salt(entry.second.salt);
      return true;
    });
    return;
  }
  if (!event.locality.empty() && event.locality != "LOCAL") {
    count(counters_.ignored_localities);
    report.has_gaps = true;
    return;
  }
  if (!is_main_group(event, rank)) {
    // No gap: what belongs to another group has its parents there, too.
    count(counters_.ignored_groups);
    return;
  }
  const Tier tier = tier_of_medium(event.medium);
  if (event.kind == KvEventKind::stored) {
    store(event, rank, tier, report);
  } else {
    remove(event, rank, tier);
  }
}

bool KvEventApplier::is_main_group(const KvEvent& event, WorkerRank rank) {
  const auto key = std::pair(rank.rank, event.group.value_or(0));
  if (!event.attention_kind.empty()) {
    const bool is_main = is_main_attention(event.attention_kind);
    if (event.group && (groups_.size() < kMaxGroups || groups_.count(key) != 0)) groups_[key] = is_main;
    return is_main;
  }
  if (!event.group) return true;
  const auto learnt = groups_.find(key);
  return learnt != groups_.end() ? learnt->second : *event.group == 0;
}

void KvEventApplier::store(const KvEvent& event, WorkerRank rank, Tier tier, KvApplyReport& report) {
  count(counters_.stored_events);
  const auto hashes = batch_.hashes_of(event);
  if (event.block_size == 0 || event.tokens.count == 0) {
    const std::size_t copied = index_.apply_copied(rank, tier, hashes);
    count(counters_.copied_blocks, copied);
    for (const std::uint64_t hash : hashes) {
      const auto salted = salt_of_.find({rank.rank, hash});
      if (salted != salt_of_.end()) salted->second.tiers |= bit_of(tier);
    }
    if (copied < hashes.size()) report.has_gaps = true;
    return;
  }
  if (event.tokens_unusable) {
    count(counters_.unusable_tokens);
    report.has_gaps = true;
    return;
  }
  if (event.block_size != options_.block_size) {
    count(counters_.wrong_block_sizes);
    report.has_gaps = true;
    return;
  }
  const auto salt = salt_of(event, rank, report);
  if (!salt || !hash_blocks(event, *salt, report)) return;

  const auto stored = hashes.first(local_hashes_.size());
  // A salted block whose salt is not remembered would have unsalted children: another tenant's.
  if (!has_room_for_salt(*salt, stored.size())) {
    count(counters_.refused_salts);
    report.has_gaps = true;
    return;
  }
  switch (index_.apply_stored(rank, tier, {event.parent, stored, local_hashes_})) {
    case StoreOutcome::applied:
    case StoreOutcome::already_stored:
      if (!salt->empty()) remember_salt(rank, tier, stored, *salt);
      break;
    case StoreOutcome::unknown_parent:
      count(counters_.orphaned_stores);
      report.has_orphans = true;
      break;
    case StoreOutcome::ambiguous_parent:
      // Nothing contradicts what we know; only the place of these blocks can't be told.
      count(counters_.ambiguous_parents);
      report.has_gaps = true;
      break;
    case StoreOutcome::unknown_rank:
    case StoreOutcome::malformed:
    case StoreOutcome::conflicting_hash:
      count(counters_.rejected_stores);
      report.has_gaps = true;
      break;
  }
}

void KvEventApplier::remove(const KvEvent& event, WorkerRank rank, Tier tier) {
  count(counters_.removed_events);
  const auto hashes = batch_.hashes_of(event);
  index_.apply_removed(rank, tier, hashes);
  if (salt_of_.empty()) return;
  for (const std::uint64_t hash : hashes) forget_salt(rank, tier, hash);
}

// The namespace of the event's blocks; nullopt when it can't be told.
std::optional<std::string_view> KvEventApplier::salt_of(const KvEvent& event, WorkerRank rank,
                                                        KvApplyReport& report) {
  if (!event.cache_salt.empty()) return event.cache_salt;
  if (event.parent) {
    const auto parent = salt_of_.find({rank.rank, *event.parent});
    if (parent == salt_of_.end()) return std::string_view();
    if (parent->second.salt != kAmbiguous) return std::string_view(salts_[parent->second.salt].text);
    count(counters_.ambiguous_salts);
    report.has_gaps = true;
    return std::nullopt;
  }
  for (const KvExtraKey& key : batch_.extra_keys_of(event)) {
    if (key.block != 0 || key.is_marked || key.text.empty() || key.text == event.lora_name) continue;
    if (media_id(key.text, false)) continue;
    return key.text.substr(key.text.starts_with(kSaltPrefix) ? kSaltPrefix.size() : 0);
  }
  return std::string_view();
}

bool KvEventApplier::has_room_for_salt(std::string_view salt, std::size_t blocks) const {
  if (salt.empty()) return true;
  if (salt.size() > kMaxSaltBytes || salt_of_.size() + blocks > kMaxSaltedBlocks) return false;
  return salt_ids_.size() < kMaxSalts || salt_ids_.find(std::string(salt)) != salt_ids_.end();
}

// With room for it.
void KvEventApplier::remember_salt(WorkerRank rank, Tier tier, std::span<const std::uint64_t> hashes,
                                   std::string_view salt) {
  auto known = salt_ids_.find(std::string(salt));
  if (known == salt_ids_.end()) {
    if (free_salts_.empty()) {
      free_salts_.push_back(static_cast<SaltId>(salts_.size()));
      salts_.emplace_back();
    }
    known = salt_ids_.emplace(salt, free_salts_.back()).first;
    salts_[known->second].text = salt;
    free_salts_.pop_back();
  }
  const SaltId id = known->second;
  ++salts_[id].blocks;  // keeps it while blocks change
  for (const std::uint64_t hash : hashes) {
    const auto [entry, is_new] = salt_of_.try_emplace({rank.rank, hash}, SaltedBlock{id, 0});
    SaltedBlock& block = entry->second;
    block.tiers |= bit_of(tier);
    if (is_new) {
      ++salts_[id].blocks;
    } else if (block.salt != id) {
      release_salt(std::exchange(block.salt, kAmbiguous));
    }
  }
  release_salt(id);
}

void KvEventApplier::forget_salt(WorkerRank rank, Tier tier, std::uint64_t hash) {
  const auto found = salt_of_.find({rank.rank, hash});
  if (found == salt_of_.end()) return;
  found->second.tiers &= ~bit_of(tier);
  if (found->second.tiers != 0) return;
  release_salt(found->second.salt);
  salt_of_.erase(found);
}

// One block fewer has it.
void KvEventApplier::release_salt(SaltId id) {
  if (id == kAmbiguous || --salts_[id].blocks != 0) return;
  salt_ids_.erase(salts_[id].text);
  salts_[id].text = {};
  free_salts_.push_back(id);
}

void KvEventApplier::collect_media(const KvEvent& event, std::size_t blocks) {
  media_.clear();
  for (const KvExtraKey& key : batch_.extra_keys_of(event)) {
    if (key.block >= blocks || (!key.text.empty() && key.text == event.lora_name)) continue;
    const auto id = key.text.empty() ? std::optional(key.media) : media_id(key.text, key.is_marked);
    if (!id) continue;
    if (media_.empty()) media_.resize(blocks);
    media_[key.block].push_back(*id);
  }
}

bool KvEventApplier::hash_blocks(const KvEvent& event, std::string_view salt, KvApplyReport& report) {
  const auto tokens = batch_.tokens_of(event);
  const std::size_t wanted = batch_.hashes_of(event).size();
  const bool is_eagle = options_.is_eagle || event.tokens_are_pairs;
  const std::size_t blocks = std::min(wanted, complete_blocks(tokens.size(), event.block_size, is_eagle));
  if (blocks < wanted) {
    count(counters_.short_tokens);
    report.has_gaps = true;
  }
  collect_media(event, blocks);
  const std::uint64_t seed = request_seed(event.lora_name, salt);
  const std::size_t window = std::size_t{event.block_size} + (is_eagle ? 1 : 0);
  local_hashes_.resize(blocks);
  if (media_.empty() && !is_eagle) {
    local_block_hashes(tokens, event.block_size, seed, local_hashes_);
    return blocks > 0;
  }
  for (std::size_t i = 0; i < blocks; ++i) {
    const std::span<const std::uint64_t> media =
        media_.empty() ? std::span<const std::uint64_t>() : media_[i];
    local_hashes_[i] = local_block_hash(tokens.subspan(i * event.block_size, window), media, seed);
  }
  return blocks > 0;
}

}  // namespace handoff::epp
