#include "tests/plugins/stub_host.hpp"

#include <cstring>

namespace {

handoff_bytes bytes(std::string_view text) {
  return {text.data(), text.size()};
}
std::string text(handoff_bytes span) {
  return span.size == 0 ? std::string() : std::string(span.data, span.size);
}

/// Members of a flat object without escapes, which is all that these tests send.
std::vector<handoff_member> scan_flat(std::string_view object) {
  std::vector<handoff_member> members;
  std::size_t at = 0;
  while ((at = object.find('"', at)) != std::string_view::npos) {
    handoff_member member{};
    member.key_begin = at;
    const auto key_end = object.find('"', at + 1);
    member.name = bytes(object.substr(at + 1, key_end - at - 1));
    member.value_begin = object.find(':', key_end) + 1;
    const auto value_last =
        object[member.value_begin] == '"' ? object.find('"', member.value_begin + 1) : member.value_begin;
    member.value_end = object.find_first_of(",}", value_last);
    member.kind = object[member.value_begin] == '"' ? HANDOFF_JSON_STRING : HANDOFF_JSON_NUMBER;
    members.push_back(member);
    at = member.value_end;
  }
  return members;
}

const char* reply_name(std::uint32_t reply) {
  constexpr const char* kNames[] = {"COLLECT", "HOLD", "RELAY", "STREAM", "DISCARD"};
  return reply < std::size(kNames) ? kNames[reply] : "?";
}

}  // namespace

StubHost::StubHost() {
  api_.struct_size = sizeof(api_);
  api_.abi_major = HANDOFF_ABI_MAJOR;
  api_.abi_minor = HANDOFF_ABI_MINOR;
  api_.json = [](const handoff_host_api*, handoff_bytes, handoff_object* out) {
    out->text_kind = HANDOFF_TEXT_NOT_OBJECT;
    return HANDOFF_OK;
  };
  api_.random = [](const handoff_host_api*, void* out, std::size_t size) { std::memset(out, 7, size); };
  api_.warn = [](const handoff_host_api*, handoff_bytes, handoff_bytes) {};
  api_.count = [](const handoff_host_api*, handoff_bytes) {};
  api_.start = [](handoff_turn* turn, const handoff_leg* leg) { return turn->host->start(*leg); };
  api_.cancel = [](handoff_turn* turn, std::uint32_t leg) {
    turn->host->note("cancel " + std::to_string(leg));
    return HANDOFF_OK;
  };
  api_.relay = [](handoff_turn* turn, std::uint32_t leg) {
    turn->host->note("relay " + std::to_string(leg));
    return HANDOFF_OK;
  };
  api_.respond = [](handoff_turn* turn, const handoff_reply* reply) {
    turn->host->note("respond " + std::to_string(reply->status));
    return HANDOFF_OK;
  };
  api_.write = [](handoff_turn* turn, const handoff_piece*, std::size_t, bool last) {
    turn->host->note(last ? "write last" : "write");
    return HANDOFF_OK;
  };
  api_.fail = [](handoff_turn* turn, const handoff_failure* failure) {
    turn->host->note("fail " + std::to_string(failure->status) + ' ' + text(failure->code));
    return HANDOFF_OK;
  };
  api_.fail_with_leg = [](handoff_turn* turn, std::uint32_t leg) {
    turn->host->note("fail_with_leg " + std::to_string(leg));
    return HANDOFF_OK;
  };
  api_.decode_only = [](handoff_turn* turn, handoff_bytes reason, const handoff_header*, std::size_t) {
    turn->host->note("decode_only " + text(reason));
    return HANDOFF_OK;
  };
  api_.background = [](handoff_turn* turn, const handoff_leg* leg) {
    turn->host->note("background " + text(leg->name));
    return HANDOFF_OK;
  };
}

handoff_status StubHost::start(const handoff_leg& leg) {
  const bool client_body = (leg.flags & HANDOFF_LEG_CLIENT_BODY) != 0;
  note("start " + std::to_string(leg.id) + (leg.role == HANDOFF_ROLE_PREFILL ? " prefill " : " decode ") +
       (leg.target == HANDOFF_TARGET_PREFILL ? "to prefill " : "to local ") + reply_name(leg.reply) + ' ' +
       (client_body ? "the client's body" : body_text(leg.body, leg.piece_count)));
  legs_.push_back({leg.id, leg.reply == HANDOFF_REPLY_RELAY});
  return HANDOFF_OK;
}

std::string StubHost::body_text(const handoff_piece* pieces, std::size_t count) const {
  std::string whole;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& piece = pieces[i];
    if (piece.data != nullptr) {
      whole.append(piece.data, piece.size);
    } else {
      whole.append(body_, piece.offset, piece.size);
    }
  }
  return whole;
}

const handoff_request& StubHost::request(std::string_view path, std::string body, bool has_prefill) {
  path_ = path;
  body_ = std::move(body);
  members_ = scan_flat(body_);
  request_ = {};
  request_.struct_size = sizeof(request_);
  request_.has_prefill = has_prefill ? 1 : 0;
  request_.method = bytes("POST");
  request_.target = bytes(path_);
  request_.path = bytes(path_);
  request_.body.struct_size = sizeof(request_.body);
  request_.body.text_kind = HANDOFF_TEXT_OBJECT;
  request_.body.text = bytes(body_);
  request_.body.members = members_.data();
  request_.body.member_count = members_.size();
  request_.body.close_brace = body_.size() - 1;
  request_.prefill_host = bytes(has_prefill ? "10.0.0.7" : "");
  request_.prefill_port = has_prefill ? 8000 : 0;
  request_.request_id = bytes("request-1");
  return request_;
}

std::string StubHost::run(handoff::sidecar::BackendInstance& instance, const handoff_request& request,
                          std::uint32_t status) {
  log_.clear();
  legs_.clear();
  handoff::sidecar::BackendExchange exchange;
  auto result = instance.begin(request, turn(), exchange);
  if (result != HANDOFF_OK) {
    note("begin returned " + std::to_string(result));
    return log_;
  }
  const auto tell = [&](handoff_event event) {
    event.struct_size = sizeof(event);
    result = exchange.event(event, turn());
    if (result != HANDOFF_OK) note("event returned " + std::to_string(result));
  };
  while (!legs_.empty() && result == HANDOFF_OK) {
    const auto leg = legs_.front();
    legs_.pop_front();
    handoff_event done{};
    done.kind = HANDOFF_EVENT_LEG_DONE;
    done.leg = leg.id;
    done.status = status;
    done.flags = HANDOFF_REQUEST_SENT | HANDOFF_REPLY_STARTED;
    if (leg.relayed) done.flags |= HANDOFF_CLIENT_STARTED;
    tell(done);
  }
  handoff_event over{};
  over.kind = HANDOFF_EVENT_END;
  over.outcome = HANDOFF_OUTCOME_ANSWERED;
  tell(over);
  return log_;
}
