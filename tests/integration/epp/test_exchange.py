"""What happens on a stream: order, routes, bookings, and that they end."""

import json

import grpc
import pytest
from conftest import chat
from gateway import Stream
from harness.limits import wait_until

DECODE = {"127.0.0.1:8001", "127.0.0.1:8002"}
PREFILL = {"127.0.0.1:7001", "127.0.0.1:7002"}


def test_streamed_answer_from_first_to_last_message(epp, stream):
    body = chat(stream=True)
    stream.send_headers(headers=[("x-request-id", "r1"), ("x-prefiller-host-port", "6.6.6.6:66")])
    stream.send_body(body[:20], end=False)
    stream.send_body(body[20:])
    assert stream.until_routed() in DECODE
    stream.until(lambda: stream.request.ended)
    assert stream.request.body == body
    assert stream.request.headers.clear_route_cache
    assert stream.request.sets["x-prefiller-host-port"] in PREFILL
    assert "x-prefiller-host-port" not in stream.request.removes
    assert {"x-gateway-inference-objective", "x-dynamo-dp-rank", "x-encoder-hosts-ports"} <= stream.request.removes
    endpoint = stream.request.metadata["envoy.lb"]["x-gateway-destination-endpoint"]
    assert endpoint == stream.request.sets["x-gateway-destination-endpoint"]
    assert epp.load("prefill")["active_prefill_tokens"] == len(body)
    assert epp.load("decode")["active_requests"] == 1

    stream.respond_headers()
    stream.until(lambda: stream.response.headers is not None)
    assert epp.load("prefill")["active_prefill_tokens"] == len(body), "headers come before the first token"
    stream.respond_body(b"data: 1\n\n")
    stream.until(lambda: stream.response.body == b"data: 1\n\n")
    assert epp.load("prefill")["active_prefill_tokens"] == 0
    assert epp.load("decode")["active_requests"] == 1
    stream.respond_body(b"data: [DONE]\n\n", end=True)
    stream.until(lambda: stream.response.ended)
    assert epp.load("decode")["active_requests"] == 0
    stream.close()
    assert stream.until_end() == grpc.StatusCode.OK


def test_long_body_comes_back_byte_by_byte(stream):
    body = chat(filler="".join(chr(97 + i % 26) for i in range(5_000_000)))
    stream.send_headers(headers=[("content-length", str(len(body)))])
    for at in range(0, len(body), 65_536):
        stream.send_body(body[at:at + 65_536], end=False)
    stream.send_body(b"")
    stream.until(lambda: stream.request.ended)
    assert stream.request.body == body
    stream.cancel()


def test_message_larger_than_grpcs_default(stream):
    body = chat(filler="x" * 6_000_000)
    stream.send_headers()
    stream.send_body(body)
    stream.until(lambda: stream.request.ended)
    assert stream.request.body == body
    stream.cancel()


def test_trailers_end_a_body(stream):
    stream.send_headers()
    stream.send_body(chat(), end=False)
    stream.send_trailers()
    stream.until(lambda: stream.request.trailers)
    assert not stream.request.ended
    stream.respond_headers()
    stream.respond_body(b"x")
    stream.respond_trailers()
    stream.until(lambda: stream.response.trailers)
    stream.close()
    assert stream.until_end() == grpc.StatusCode.OK


def test_request_without_body(epp, stream):
    stream.send_headers(path="/v1/models", method="GET", end=True)
    assert stream.until_routed() in DECODE
    assert "x-prefiller-host-port" not in stream.request.sets
    assert "x-prefiller-host-port" in stream.request.removes
    stream.respond_headers(content_type="application/json")
    stream.respond_body(b"{}", end=True)
    stream.until(lambda: stream.response.ended)
    stream.close()


def test_values_in_either_field(stream):
    stream.send_headers(headers=[("content-encoding", "identity")], raw=False)
    stream.send_body(chat())
    assert stream.until_routed() in DECODE
    assert "x-prefiller-host-port" in stream.request.sets
    stream.cancel()


@pytest.mark.parametrize("subset,expected", [
    (["127.0.0.1:8002"], {"127.0.0.1:8002"}),
    ("10.0.0.1:1, 127.0.0.1:8001", {"127.0.0.1:8001"}),
    (["127.0.0.1"], DECODE),
])
@pytest.mark.parametrize("has_body", [True, False])
def test_subset(stream, subset, expected, has_body):
    stream.send_headers(subset=subset, end=not has_body)
    if has_body:
        stream.send_body(chat())
    assert stream.until_routed() in expected
    stream.cancel()


@pytest.mark.parametrize("subset", [[], ["127.0.0.1:7001"], ["10.1.1.1:8001"], ""])
@pytest.mark.parametrize("has_body", [True, False])
def test_subset_without_a_ready_endpoint(stream, subset, has_body):
    stream.send_headers(subset=subset, end=not has_body)
    if has_body:
        stream.send_body(chat())
    assert stream.until_end() == grpc.StatusCode.OK
    assert_refused(stream, 503, "no_ready_endpoint")


def assert_refused(stream, status, code):
    assert stream.immediate.status.code == status
    error = json.loads(stream.immediate.body)["error"]
    assert error["code"] == code
    assert error["type"] == ("rate_limit_error" if status == 429 else
                             "server_error" if status >= 500 else "invalid_request_error")
    headers = {option.header.key: option.header.raw_value.decode() for option in stream.immediate.headers.set_headers}
    assert headers["content-type"] == "application/json"
    assert headers.get("retry-after") == ("1" if status in (429, 503) else None)


@pytest.mark.settings(DYN_EPP_MAX_REQUEST_BODY_BYTES="1000")
@pytest.mark.parametrize("announced", [True, False])
def test_body_beyond_the_limit(stream, announced):
    stream.send_headers(headers=[("content-length", "1001")] if announced else [])
    if not announced:
        stream.send_body(b"x" * 600, end=False)
        stream.send_body(b"x" * 600, end=False)
    assert stream.until_end() == grpc.StatusCode.OK
    assert_refused(stream, 413, "request_too_large")


@pytest.mark.settings(DYN_EPP_REQUEST_BODY_TIMEOUT_MS="100")
def test_body_that_stops_coming(stream):
    stream.send_headers()
    stream.send_body(b"{", end=False)
    assert stream.until_end() == grpc.StatusCode.OK
    assert_refused(stream, 408, "request_timeout")


@pytest.mark.settings(DYN_EPP_STRICT_MODEL="true", DYN_EPP_MODEL_ALIASES="alias")
def test_strict_model(epp):
    for model, known in (("m", True), ("alias", True), ("other", False)):
        stream = Stream(epp.channel)
        stream.send_headers()
        stream.send_body(chat(model=model))
        if known:
            stream.until_routed()
            stream.cancel()
        else:
            stream.until_end()
            assert_refused(stream, 404, "model_not_found")


@pytest.mark.settings(DYN_EPP_INJECT_CACHE_SALT="true")
def test_salt_is_the_only_edit(stream):
    body = chat()
    stream.send_headers(headers=[("x-tenant-id", "blue"), ("content-length", str(len(body)))])
    stream.send_body(body)
    stream.until(lambda: stream.request.ended)
    assert stream.request.body == b'{"cache_salt":"dynamo-cache-salt:blue",' + body[1:]
    assert "content-length" in stream.request.removes
    stream.cancel()


@pytest.mark.parametrize("modes", [(1, 4), (0, 4), (2, 4), (3, 4), (5, 4), (4, 5)])
def test_modes_that_cannot_work(epp, modes):
    stream = Stream(epp.channel, modes=modes)
    stream.send_headers()
    assert stream.until_end() == grpc.StatusCode.FAILED_PRECONDITION
    assert "FULL_DUPLEX_STREAMED" in stream.details


def test_without_protocol_configuration(epp):
    stream = Stream(epp.channel, modes=None)
    stream.send_headers()
    stream.send_body(chat())
    stream.until(lambda: stream.request.ended)
    stream.cancel()


def test_response_bodies_that_are_not_sent(epp):
    stream = Stream(epp.channel, modes=(4, 0))
    stream.send_headers()
    stream.send_body(chat(stream=True))
    stream.until(lambda: stream.request.ended)
    assert epp.load("prefill")["active_requests"] == 1
    stream.respond_headers()
    stream.until(lambda: stream.response.headers is not None)
    assert epp.load("prefill")["active_requests"] == 0
    assert epp.load("decode")["active_requests"] == 1
    stream.close()
    stream.until_end()


def test_observability(epp):
    stream = Stream(epp.channel, modes=(1, 1), observability=True)
    stream.send_headers()
    stream.send_body(chat())
    stream.respond_headers()
    stream.respond_body(b"x", end=True)
    stream.close()
    assert stream.until_end() == grpc.StatusCode.OK
    assert stream.request.headers is None and stream.response.headers is None and stream.immediate is None


@pytest.mark.settings(DYN_EPP_LOG_LEVEL="info")
def test_a_gateway_that_serves_elsewhere_does_not_fill_the_log(epp):
    for _ in range(5):
        stream = Stream(epp.channel)
        stream.send_headers()
        stream.send_body(chat())
        stream.until_routed()
        picked = stream.request.sets["x-gateway-destination-endpoint"]
        other = "127.0.0.1:8001" if picked == "127.0.0.1:8002" else "127.0.0.1:8002"
        stream.respond_headers(served=other)
        stream.respond_body(b"x", end=True, served=other)
        stream.close()
        stream.until_end()
    epp.wait_log("served_elsewhere", booking_moved="true", suppressed="0")
    assert [line.name for line in epp.lines].count("served_elsewhere") == 1


def test_an_observed_request_is_booked_where_it_went(epp):
    def active(role):
        selector = next(each for each in epp.report()["selectors"] if each["role"] == role)
        return {worker["name"]: worker["active_requests"] for worker in selector["workers"] if worker["active_requests"]}

    stream = Stream(epp.channel, modes=(1, 1), observability=True)
    stream.send_headers(headers=[("x-gateway-destination-endpoint", "127.0.0.1:8001"),
                                 ("x-prefiller-host-port", "127.0.0.1:7001")])
    stream.send_body(chat(stream=True))
    wait_until(lambda: active("decode") == {"d0": 1} and active("prefill") == {"p0": 1})
    stream.respond_headers(served="127.0.0.1:8002")
    stream.respond_body(b"x", served="127.0.0.1:8002")
    wait_until(lambda: active("decode") == {"d1": 1} and active("prefill") == {})
    stream.close()
    assert stream.until_end() == grpc.StatusCode.OK
    assert stream.request.headers is None and stream.immediate is None
    epp.wait_tidy()


def test_response_only(stream):
    stream.respond_headers()
    stream.respond_body(b"x" * 150_000, end=True)
    stream.until(lambda: stream.response.ended)
    assert stream.response.body == b"x" * 150_000
    stream.close()
    assert stream.until_end() == grpc.StatusCode.OK


def test_served_endpoint_moves_the_booking(epp, stream):
    stream.send_headers(subset=["127.0.0.1:8001"])
    stream.send_body(chat(stream=True))
    stream.until(lambda: stream.request.ended)
    stream.respond_headers(served="127.0.0.1:8002")
    stream.until(lambda: stream.response.headers is not None)
    decode = next(each for each in epp.report()["selectors"] if each["role"] == "decode")
    assert {worker["name"]: worker["active_requests"] for worker in decode["workers"]} == {"d0": 0, "d1": 1}
    stream.respond_body(b"x", end=True, served="127.0.0.1:8002")
    stream.until(lambda: stream.response.ended)
    stream.close()


def test_growing_answer_is_counted(epp, stream):
    stream.send_headers()
    stream.send_body(chat(stream=True))
    stream.until(lambda: stream.request.ended)
    before = epp.load("decode")["active_decode_blocks"]
    stream.respond_headers()
    stream.respond_body(b"data: {}\n\n" * 64)
    stream.until(lambda: stream.response.body)
    assert epp.load("decode")["active_decode_blocks"] >= before + 3
    stream.cancel()


# Each phase in which a client may leave

def test_client_leaves_while_it_sends(epp, stream):
    stream.send_headers()
    stream.send_body(b"{", end=False)
    wait_until(lambda: epp.report()["buffered_bytes"] == 1)
    stream.cancel()


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_client_leaves_while_tokens_are_waited_for(epp, stream, how):
    epp.tell("tokenizer", "hold")
    stream.send_headers()
    stream.send_body(chat())
    wait_until(lambda: epp.report()["planning"] == 1)
    getattr(stream, how)()
    epp.wait_tidy()
    epp.tell("tokenizer", "release")


def test_client_leaves_after_the_route(epp, stream):
    stream.send_headers()
    stream.send_body(chat())
    stream.until(lambda: stream.request.ended)
    assert not epp.is_tidy()
    stream.cancel()


def test_client_leaves_during_the_answer(epp, stream):
    stream.send_headers()
    stream.send_body(chat())
    stream.until(lambda: stream.request.ended)
    stream.respond_headers()
    stream.respond_body(b"x")
    stream.until(lambda: stream.response.body)
    stream.cancel()


def test_gateway_answers_by_itself(epp, stream):
    epp.tell("tokenizer", "hold")
    stream.send_headers()
    stream.send_body(chat())
    wait_until(lambda: epp.report()["planning"] == 1)
    stream.respond_headers(status=504, content_type="text/plain")
    stream.until(lambda: stream.response.headers is not None)
    assert epp.report()["planning"] == 0
    epp.tell("tokenizer", "release")
    assert stream.is_silent()
    stream.cancel()


# The tokenizer

def test_plan_from_another_thread(epp, stream):
    epp.tell("tokenizer", "hold")
    stream.send_headers()
    stream.send_body(chat())
    wait_until(lambda: epp.report()["planning"] == 1)
    assert stream.is_silent()
    epp.tell("tokenizer", "release")
    assert stream.until_routed() in DECODE
    stream.cancel()


@pytest.mark.parametrize("fault", ["refused", "unavailable", "timeout", "garbage"])
def test_without_tokens_it_is_routed_by_size(epp, stream, fault):
    epp.tell("tokenizer", fault)
    body = chat(filler="x" * 4000)
    stream.send_headers()
    stream.send_body(body)
    stream.until(lambda: stream.request.ended)
    assert epp.load("prefill")["active_prefill_tokens"] == len(body) // 4
    stream.cancel()


@pytest.mark.settings(DYN_EPP_TOKENIZER_FALLBACK="error")
@pytest.mark.parametrize("fault,status,code", [
    ("refused", 400, "invalid_request"), ("unavailable", 503, "tokenizer_unavailable"),
    ("timeout", 504, "tokenizer_timeout"), ("garbage", 502, "tokenizer_bad_answer")])
def test_tokenizer_faults_refuse_where_asked_for(epp, stream, fault, status, code):
    epp.tell("tokenizer", fault)
    stream.send_headers()
    stream.send_body(chat())
    assert stream.until_end() == grpc.StatusCode.OK
    assert_refused(stream, status, code)
    assert "okenizer" in json.loads(stream.immediate.body)["error"]["message"], "who it was"


@pytest.mark.settings(DYN_EPP_MAX_INFLIGHT_REQUESTS="2")
def test_more_plans_than_allowed(epp):
    epp.tell("tokenizer", "hold")
    waiting = [Stream(epp.channel) for _ in range(2)]
    for stream in waiting:
        stream.send_headers()
        stream.send_body(chat())
    wait_until(lambda: epp.report()["planning"] == 2)
    refused = Stream(epp.channel)
    refused.send_headers()
    refused.send_body(chat())
    refused.until_end()
    assert_refused(refused, 429, "overloaded")
    epp.tell("tokenizer", "release")
    for stream in waiting:
        stream.until_routed()
        stream.cancel()
