#include "backends/sglang/leg_bodies.hpp"

namespace handoff::sglang {
namespace {

void set_pairing(sdk::BodyEdit& edit, const Pairing& pairing) {
  edit.set("bootstrap_host", pairing.host);
  edit.set("bootstrap_port", pairing.port);
  edit.set("bootstrap_room", pairing.room);
  edit.set("rid", pairing.rid);
  // Parts of a pairing that only another router would make.
  edit.remove("bootstrap_pair_key");
  edit.remove("bootstrap_attempt_id");
}

}  // namespace

std::vector<handoff_piece> prefill_body(const sdk::Object& body, const Pairing& pairing) {
  sdk::BodyEdit edit(body);
  set_pairing(edit, pairing);
  edit.set("stream", "false");
  edit.remove("stream_options");
  // Decode's ranks, if the client chose one, and a rank that the room already has.
  edit.remove("routed_dp_rank");
  edit.remove("data_parallel_rank");
  edit.remove(kPrefillRankMember);
  return edit.pieces();
}

std::vector<handoff_piece> decode_body(const sdk::Object& body, const Pairing& pairing,
                                       std::optional<std::string_view> prefill_rank) {
  sdk::BodyEdit edit(body);
  set_pairing(edit, pairing);
  if (prefill_rank) {
    edit.set(kPrefillRankMember, *prefill_rank);
  } else {
    edit.remove(kPrefillRankMember);
  }
  return edit.pieces();
}

}  // namespace handoff::sglang
