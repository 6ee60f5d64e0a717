#include "ext_proc_stream_client.hpp"

#include <cstring>
#include <utility>

#include "loopback.hpp"

namespace bench {
namespace {

const std::string kMethod = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

}  // namespace

ExtProcStreamClient::ExtProcStreamClient(Stub& stub, grpc::CompletionQueue& queue, ExtProcClientHost& host,
                                         const ExtProcClientPlan& plan, const ExtProcScript& script,
                                         std::uint64_t number)
    : stub_(stub),
      queue_(queue),
      host_(host),
      plan_(plan),
      script_(script),
      number_(number << 40U),
      due_ns_(plan.with_response ? kMostOnTheWay : 0) {}

void ExtProcStreamClient::begin() {
  if (plan_.distinct) make_distinct(script_, number_++);
  open_ = true;
  writing_ = closing_ = finished_ = read_ended_ = false;
  pieces_sent_ = bytes_back_ = 0;
  headers_answered_ = request_done_ = response_headers_sent_ = response_headers_back_ = false;
  chunks_sent_ = chunks_back_ = waiting_chunks_ = 0;
  rpc_.reset();  // lives in its call's memory, which goes with the context
  context_.emplace();
  // The first message takes the call's headers along, as a gateway's does.
  context_->set_initial_metadata_corked(true);
  rpc_ = stub_.PrepareCall(&*context_, kMethod, &queue_);
  started_ns_ = now_ns();
  rpc_->StartCall(nullptr);
  write(script_.headers);
  rpc_->Read(&incoming_, &read_);
}

void ExtProcStreamClient::send_chunk(std::uint64_t due_ns) {
  if (!open_ || closing_) return;
  const std::uint64_t on_the_way = chunks_sent_ + waiting_chunks_ - chunks_back_;
  if (on_the_way >= kMostOnTheWay) {
    fault_ = "too many chunks on their way: the rate is above what the target can do";
    close();
    return;
  }
  due_ns_[(chunks_sent_ + waiting_chunks_) % kMostOnTheWay] = due_ns;
  ++waiting_chunks_;
  send_next();
}

void ExtProcStreamClient::on_event(Operation operation, bool ok) {
  switch (operation) {
    case Operation::kWrite:
      writing_ = false;
      if (ok) send_next();
      break;
    case Operation::kRead:
      if (ok) {
        on_answer();
        rpc_->Read(&incoming_, &read_);
      } else {
        read_ended_ = true;
        rpc_->Finish(&status_, &finish_);
      }
      break;
    case Operation::kWritesDone:
      writing_ = false;
      break;
    case Operation::kFinish:
      finished_ = true;
      break;
  }
  if (!finished_ || writing_) return;
  open_ = false;
  const bool complete = request_done_ && closing_ && status_.ok() && fault_.empty();
  if (!complete && fault_.empty()) fault_ = status_.ok() ? "the stream ended early" : "the stream failed";
  host_.on_stream_end(*this, complete);
}

void ExtProcStreamClient::send_next() {
  if (writing_ || closing_) return;
  if (pieces_sent_ < script_.pieces.size()) {
    write(script_.pieces[pieces_sent_++]);
  } else if (request_done_ && plan_.with_response && !response_headers_sent_) {
    response_headers_sent_ = true;
    write(script_.response_headers);
  } else if (waiting_chunks_ > 0 && response_headers_sent_) {
    --waiting_chunks_;
    ++chunks_sent_;
    write(script_.chunk);
  }
}

void ExtProcStreamClient::write(const grpc::ByteBuffer& message) {
  writing_ = true;
  rpc_->Write(message, &write_);
}

// Compared as bytes: a driver that builds each message is too slow for the rates it drives.
bool ExtProcStreamClient::is_chunk_answer() const {
  grpc::Slice whole;
  if (incoming_.Length() != script_.chunk_answer.size() || !incoming_.TrySingleSlice(&whole).ok())
    return false;
  return std::memcmp(whole.begin(), script_.chunk_answer.data(), whole.size()) == 0;
}

void ExtProcStreamClient::on_answer() {
  if (response_headers_back_ && is_chunk_answer()) {
    on_chunk_back();
    return;
  }
  if (!check(grpc::SerializationTraits<WireResponse>::Deserialize(&incoming_, &answer_).ok(), "no message"))
    return;
  switch (answer_.response_case()) {
    case WireResponse::kRequestHeaders:
    case WireResponse::kRequestBody:
      on_request_answer(answer_);
      return;
    case WireResponse::kResponseHeaders:
      if (!check(response_headers_sent_ && !response_headers_back_, "response headers out of turn")) return;
      response_headers_back_ = true;
      if (!plan_.paced) send_chunk(now_ns());
      return;
    case WireResponse::kResponseBody: {
      const auto& streamed = answer_.response_body().response().body_mutation().streamed_response();
      if (!check(response_headers_back_ && streamed.body() == script_.chunk_bytes, "a damaged chunk")) return;
      on_chunk_back();
      return;
    }
    default:
      check(false, "an answer that nothing was sent for, or a refusal");
  }
}

void ExtProcStreamClient::on_chunk_back() {
  host_.on_echo(due_ns_[chunks_back_++ % kMostOnTheWay]);
  if (plan_.chunks != 0 && chunks_back_ == plan_.chunks) {
    close();
  } else if (!plan_.paced) {
    send_chunk(now_ns());
  }
}

void ExtProcStreamClient::on_request_answer(const WireResponse& answer) {
  if (answer.has_request_headers()) {
    bool has_destination = false;
    bool has_prefill = false;
    for (const auto& option : answer.request_headers().response().header_mutation().set_headers()) {
      const std::string& name = option.header().key();
      has_destination = has_destination || name == "x-gateway-destination-endpoint";
      has_prefill = has_prefill || name == "x-prefiller-host-port";
    }
    if (!check(has_destination && !headers_answered_, "no destination")) return;
    if (!check(has_prefill == plan_.expects_prefill, "a prefill endpoint missing, or not wanted")) return;
    headers_answered_ = true;
    return;
  }
  const auto& streamed = answer.request_body().response().body_mutation().streamed_response();
  const std::string_view expected = std::string_view(script_.body).substr(bytes_back_);
  if (!check(headers_answered_ && expected.starts_with(streamed.body()), "a damaged body")) return;
  bytes_back_ += streamed.body().size();
  const bool all = bytes_back_ == script_.body.size();
  if (!check(all == streamed.end_of_stream(), "the body's end is wrong") || !all) return;
  request_done_ = true;
  host_.on_decision(started_ns_);
  if (plan_.with_response) {
    send_next();
  } else {
    close();
  }
}

void ExtProcStreamClient::close() {
  if (closing_) return;
  closing_ = true;
  if (!fault_.empty() || writing_) {
    context_->TryCancel();
    return;
  }
  writing_ = true;
  rpc_->WritesDone(&writes_done_);
}

bool ExtProcStreamClient::check(bool holds, std::string_view what) {
  if (holds) return true;
  if (fault_.empty()) fault_ = what;
  close();
  return false;
}

}  // namespace bench
