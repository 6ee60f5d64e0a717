"""SGLang: what fails, is held, or is left, and what is aborted for it (S20 to S48 of backends/sglang/PROTOCOL.md). What is the
same for every protocol is in test_every_protocol.py."""

import json
import threading
import time

import pytest
from harness.http_client import Truncated
from harness.scripted_engine import ScriptedEngine
from harness.sglang_rig import (  # noqa: F401, F811 (fixtures)
    BODIES, CHAT, EVENT, GENERATE, PATHS, SOON, STREAMS, aborted_rid, engines, good_prefill, pd, played, sglang_rig,
)


# ------------------------------------------------------------------------------------------------- S20: prefill's failures

@STREAMS
@pytest.mark.parametrize("status", [400, 429])
def test_s20_prefills_4xx_is_the_answer_and_decode_is_aborted(pd, status, stream):
    pd.prefill.fault(action="status", status=status, body={"object": "error", "code": status}, headers=[["Retry-After", "3"]],
                     match={"role": "prefill"})
    began = time.monotonic()
    answer = pd.post({**BODIES[CHAT], "stream": stream}, CHAT)
    assert (answer.status, answer.json["code"], answer.header("retry-after")) == (status, status, "3")
    pd.wait_tidy()
    assert time.monotonic() - began < SOON
    assert len(pd.aborts(pd.decode)) == 1 and pd.aborts(pd.prefill) == []


@STREAMS
@pytest.mark.parametrize("status, wanted", [(500, 500), (503, 503), (507, 502)])
def test_s20_prefills_5xx(pd, status, wanted, stream):
    pd.prefill.fault(action="engine_error" if status == 500 else "status", status=status, body="secret", match={"role": "prefill"})
    answer = pd.post({**BODIES[CHAT], "stream": stream}, CHAT).refused(wanted, "prefill_upstream_error")
    assert b"secret" not in answer.body
    pd.wait_tidy()


@PATHS
def test_s21_an_abort_inside_a_200_is_a_failure(pd, path):
    pd.prefill.fault(action="engine_error", status=0, match={"role": "prefill"})
    pd.post(BODIES[path], path).refused(502, "invalid_prefill_handoff")
    pd.wait_tidy()


def test_s23_prefill_that_refuses_connections(pd):
    with ScriptedEngine() as gone:
        address = gone.authority
    answer = pd.post(BODIES[CHAT], CHAT)  # so that the engine's part is known
    assert answer.status == 200
    client = pd.connect()
    client.send(pd.bytes_of(BODIES[CHAT], CHAT, [("x-prefiller-host-port", address)], disaggregated=False))
    client.read_response("POST").refused(502, "auxiliary_upstream_error")
    client.close()
    pd.wait_tidy()


def test_s23_prefill_that_is_gone_after_it_was_learned():
    with sglang_rig() as pd:
        assert pd.post(BODIES[CHAT], CHAT).status == 200
        pd.prefill.stop()
        began = time.monotonic()
        pd.post(BODIES[CHAT], CHAT).refused(502, "prefill_upstream_unavailable")
        pd.decode.wait(requests=0, blocks_free="all", sglang__rooms__live=0)
        assert time.monotonic() - began < SOON
        pd.post(BODIES[CHAT], CHAT).refused(502, "auxiliary_upstream_error")  # forgotten: asked again


def test_s25_prefill_that_stalls():
    with sglang_rig({"DYN_SIDECAR_READ_TIMEOUT_MS": "300"}) as pd:
        pd.prefill.fault(action="stall", match={"role": "prefill"})
        answer = pd.post(BODIES[CHAT], CHAT)
        assert answer.status == 504, answer
        pd.wait_tidy()
        assert len(pd.aborts(pd.prefill)) == len(pd.aborts(pd.decode)) == 1


# -------------------------------------------------------------------------------------------------- S30: decode's failures

@STREAMS
def test_s30_decode_that_refuses_first_ends_prefill(pd, stream):
    pd.decode.fault(action="status", status=429, body={"object": "error", "code": 429}, headers=[["Retry-After", "2"]],
                    match={"role": "decode"})
    answer = pd.post({**BODIES[CHAT], "stream": stream}, CHAT)
    assert (answer.status, answer.json["code"], answer.header("retry-after")) == (429, 429, "2")
    pd.wait_tidy()
    assert len(pd.aborts(pd.prefill)) == 1


@PATHS
@pytest.mark.parametrize("status", [500, 503])
def test_s31_an_error_in_decodes_stream_has_a_status(pd, path, status):
    pd.decode.fault(action="engine_error", status=status, message="secret", match={"role": "decode"})
    answer = pd.post({**BODIES[path], "stream": True}, path).refused(status, "decode_upstream_error")
    assert b"secret" not in answer.body
    pd.wait_tidy()


def test_s31_an_error_that_follows_good_events_before_prefill_is_done(played):
    with played.start({**BODIES[CHAT], "stream": True}, CHAT) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        rid = decode.json["rid"]
        decode.begin_stream()
        decode.chunk(EVENT)
        decode.chunk(b'data: {"error":{"object":"error","message":"x","code":500}}\n\n')
        client.read_response("POST").refused(500, "decode_upstream_error")
        prefill.wait_until_dropped()
        assert aborted_rid(played.prefill) == rid == aborted_rid(played.decode)


@STREAMS
@PATHS
def test_s31_a_client_error_in_decodes_answer_is_shown(pd, path, stream):
    """As without a stream, where the engine gives it a status by itself."""
    pd.decode.fault(action="engine_error", status=422, message="no such field", match={"role": "decode"})
    answer = pd.post({**BODIES[path], "stream": stream}, path)
    told = answer.json.get("error", answer.json)
    assert (answer.status, told["message"], answer.header("content-type")) == (422, "no such field", "application/json")
    pd.wait_tidy()


@pytest.mark.parametrize("event, status", [(b'event: error\ndata: {"error":{"code":503}}\n\n', 503),
                                           (b': ping\n\ndata:{"error":{"code":504}}\n\n', 504),
                                           (b'id: 1\r\ndata: {"object":"error","code":500}\r\n\r\n', 500)])
def test_s31_an_error_event_may_have_other_lines(played, event, status):
    with played.start({**BODIES[CHAT], "stream": True}, CHAT) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        decode.begin_stream()
        decode.chunk(event)
        client.read_response("POST").refused(status, "decode_upstream_error")
        prefill.wait_until_dropped()
        aborted_rid(played.prefill)
        aborted_rid(played.decode)


@pytest.mark.parametrize("inside", [True, False], ids=["in the event", "in the head"])
def test_s70_what_a_200_calls_retryable_is_tried_once_more(played, inside):
    typed = [("x-sglang-retryable", "true"), ("x-sglang-pd-reason", "PD_TRANSFER_FAILED")]
    with played.start({**BODIES[CHAT], "stream": True}, CHAT) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        room = prefill.json["bootstrap_room"]
        decode.begin_stream([("Content-Type", "text/event-stream"), *([] if inside else typed)])
        decode.chunk(b'data: {"error":{"message":"x","code":503%s}}\n\n' % (b',"retryable":true' if inside else b""))
        prefill.wait_until_dropped()
        again = []
        for engine in (played.prefill, played.decode):
            calls = [engine.next(), engine.next()]
            next(call for call in calls if call.target == "/abort_request").reply()
            again.append(next(call for call in calls if call.target == CHAT))
        assert again[0].json["bootstrap_room"] == again[1].json["bootstrap_room"] != room
        again[0].reply(good_prefill())
        again[1].begin_stream()
        again[1].chunk(EVENT)
        again[1].end_stream()
        answer = client.read_response("POST")
        assert (answer.status, answer.body) == (200, EVENT)
    counters = played.counters_at_end()
    assert counters["backend.started_over"] == 1 and counters.get("backend.pd_transfer_failed", 0) == (0 if inside else 1)


def test_s32_decode_that_breaks_after_its_head(played):
    with played.start({**BODIES[CHAT], "stream": True}, CHAT) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        rid = decode.json["rid"]
        decode.begin_stream()
        decode.chunk(EVENT[:5])
        decode.reset()
        client.read_response("POST").refused(502, "decode_upstream_error")
        prefill.wait_until_dropped()
        assert aborted_rid(played.prefill) == rid == aborted_rid(played.decode)


def test_s33_decode_that_breaks_in_the_stream_is_cut_and_aborted():
    with sglang_rig(decode=("--decode-us-per-token", "20000")) as pd:
        pd.decode.fault(action="reset_at", at_body=3000, match={"role": "decode"})
        with pd.start({**BODIES[CHAT], "stream": True, "max_tokens": 600}, CHAT) as client:
            answer = client.read_head()
            with pytest.raises(Truncated):
                client.read_body(answer)
            assert b"[DONE]" not in answer.body
        pd.wait_tidy()
        assert len(pd.aborts(pd.decode)) == 1


@pytest.mark.parametrize("cut", [0, 20])
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_s34_an_abort_in_a_whole_reply_has_a_status_however_it_is_cut(played, batch, cut):
    body = {**BODIES[GENERATE], **({"text": ["a", "b"]} if batch else {})}
    abort = b'{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"secret","status_code":503}}}'
    reply = b"[" + good_prefill(GENERATE) + b"," + abort + b"]" if batch else abort
    with played.start(body, GENERATE) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        prefill.reply(b"[" + good_prefill(GENERATE) + b"," + good_prefill(GENERATE) + b"]" if batch else good_prefill(GENERATE))
        decode.begin_stream(headers=(("Content-Type", "application/json"),))
        if cut:
            decode.chunk(reply[:cut])
            client.expect_silence()
        decode.chunk(reply[cut:])
        decode.end_stream()
        answer = client.read_response("POST").refused(503, "decode_upstream_error")
        assert b"secret" not in answer.body


# ---------------------------------------------------------------------------------- S40: what is held, and for how long

def test_s40_nothing_is_shown_before_prefill_is_done_and_the_prefix_is_exact(played):
    with played.start({**BODIES[CHAT], "stream": True}, CHAT) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        decode.begin_stream([("Content-Type", "text/event-stream"), ("X-Of", "decode")])
        whole = EVENT * 3 + b"data: [DONE]\n\n"
        decode.chunk(EVENT + EVENT[:EVENT.index(b"\xa9")])  # half a letter
        client.expect_silence()
        prefill.reply(good_prefill())
        answer = client.read_head()
        assert answer.header("x-of") == "decode"
        decode.chunk(whole[len(EVENT) + EVENT.index(b"\xa9"):])
        decode.end_stream()
        assert client.read_body(answer).body == whole


@pytest.mark.settings(DYN_SIDECAR_MAX_HELD_BYTES="65536")
def test_s41_more_than_the_bound_is_held_by_back_pressure(played):
    with played.start({**BODIES[CHAT], "stream": True}, CHAT) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        decode.begin_stream()
        decode.link.socket.settimeout(1)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 << 20:
                decode.chunk(EVENT * 256)
                sent += len(EVENT) * 256
        client.expect_silence()
        prefill.reply(good_prefill())
        answer = client.read_head()
        while len(answer.body) < sent:
            client.read_chunk(answer)
        assert answer.body[:sent] == EVENT * (sent // len(EVENT))
        client.close()
        aborted_rid(played.decode)


def test_s42_a_decode_that_is_complete_first_waits(played):
    with played.start(BODIES[CHAT], CHAT) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        decode.reply(b'{"answer": 1}')
        client.expect_silence()
        prefill.reply(good_prefill())
        assert client.read_response("POST").body == b'{"answer": 1}'


@pytest.mark.settings(DYN_SIDECAR_MAX_HELD_BYTES="65536")
@pytest.mark.parametrize("prefill_first", [True, False])
def test_s63_a_first_event_above_the_bound_is_merged(played, prefill_first):
    request = {"text": "a b", "return_logprob": True, "stream": True}
    event = b'data: {"text":"' + b"x" * (4 << 20) + b'","meta_info":{"finish_reason":null,"input_token_logprobs":[]}}\n\n'
    with played.start(request, GENERATE) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        if prefill_first:
            prefill.reply(good_prefill(GENERATE))

        def send():
            decode.begin_stream()
            decode.chunk(event)
            decode.chunk(b"data: [DONE]\n\n")
            decode.end_stream()

        sender = threading.Thread(target=send)
        sender.start()
        if not prefill_first:
            client.expect_silence()
            prefill.reply(good_prefill(GENERATE))
        answer = client.read_response("POST")
        sender.join()
        assert answer.status == 200 and answer.body.endswith(b"data: [DONE]\n\n") and len(answer.body) >= len(event)


def test_s64_a_whole_reply_above_what_is_collected_is_called_so(played):
    with played.start({"text": "a b", "return_logprob": True}, GENERATE) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        prefill.reply(good_prefill(GENERATE))
        decode.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n{")
        answer = client.read_response("POST").refused(502, "decode_upstream_error")
        assert answer.error["message"] == "The decode engine's reply is too large."


@pytest.mark.settings(DYN_SIDECAR_MAX_HELD_BYTES="65536")
@pytest.mark.parametrize("prefill_first", [True, False])
def test_s65_a_plain_reply_to_a_streamed_request_is_merged_above_the_bound(played, prefill_first):
    text = "x" * (4 << 20)
    with played.start({"text": "a b", "return_logprob": True, "stream": True}, GENERATE) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        logprobs = b'{"text":"x","meta_info":{"finish_reason":{"type":"length"},"input_token_logprobs":[[null,1,null]]}}'
        if prefill_first:
            prefill.reply(logprobs)
        reply = json.dumps({"text": text, "meta_info": {"input_token_logprobs": []}}).encode()
        sender = threading.Thread(target=decode.reply, args=(reply,))
        sender.start()
        if not prefill_first:
            client.expect_silence()
            prefill.reply(logprobs)
        answer = client.read_response("POST")
        sender.join()
        assert answer.status == 200 and answer.header("content-type") == "application/json"
        assert answer.json == {"text": text, "meta_info": {"input_token_logprobs": [[None, 1, None]]}}


# ------------------------------------------------------------------------------------------------- S45: the client leaves

@pytest.mark.parametrize("leave", ["close", "reset", "finish_sending"])
@STREAMS
def test_s45_before_the_head_both_are_closed_and_aborted(pd, leave, stream):
    pd.prefill.fault(action="delay", ms=600000, match={"role": "prefill"})
    client = pd.start({**BODIES[CHAT], "stream": stream}, CHAT)
    pd.decode.wait(sglang__rooms__live=1)
    getattr(client, leave)()
    pd.wait_tidy()
    assert len(pd.aborts(pd.prefill)) == len(pd.aborts(pd.decode)) == 1
    client.close()


def test_s46_while_streaming_only_decode_is_aborted():
    with sglang_rig(decode=("--decode-us-per-token", "20000")) as pd:
        client = pd.start({**BODIES[CHAT], "stream": True, "max_tokens": 100000}, CHAT)
        client.read_head()
        client.close()
        pd.wait_tidy()
        assert pd.aborts(pd.prefill) == [] and len(pd.aborts(pd.decode)) == 1
        assert pd.decode.state()["sglang"]["aborts"]["matched"] == 1


def test_s47_an_abort_that_is_lost_is_made_good_by_the_closed_connection():
    """It comes before the scheduler has the request; the engine notices the connection later."""
    slow = ("--admission-ms", "1500", "--time-scale", "0.05")
    with sglang_rig(prefill=(*slow, "--prefill-us-per-token", "10000000"), decode=slow) as pd:
        client = pd.start(BODIES[CHAT], CHAT)
        for engine in (pd.prefill, pd.decode):
            engine.wait(requests__queued=1)
        client.close()
        pd.wait_tidy()
        assert pd.decode.state()["sglang"]["aborts"]["lost"] == 1
        assert pd.decode.state()["requests"]["aborted"] == 1


def test_s48_shutdown_cancels_aborts_and_waits_for_them():
    with sglang_rig({"DYN_SIDECAR_DRAIN_TIMEOUT_MS": "200"}) as pd:
        pd.prefill.fault(action="delay", ms=600000, match={"role": "prefill"})
        with pd.start(BODIES[CHAT], CHAT) as client:
            pd.decode.wait(sglang__rooms__live=1)
            pd.sidecar.signal()
            client.read_response("POST").refused(502, "request_cancelled")
            assert pd.sidecar.wait_exit() == 0
        pd.wait_tidy()


def test_s48_shutdown_does_not_wait_for_ever_for_an_abort(played):
    client = played.start(BODIES[CHAT], CHAT)
    played.prefill.next()
    played.decode.next()
    client.close()
    played.decode.next()  # the abort, never answered
    began = time.monotonic()
    played.sidecar.signal()
    assert played.sidecar.wait_exit() == 0
    assert time.monotonic() - began < SOON
