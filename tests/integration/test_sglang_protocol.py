"""The SGLang protocol end to end, by the case numbers of backends/sglang/PROTOCOL.md. Engine time-outs are the real ones
(300 s) unless a test says otherwise: a room that is gone sooner was ended by the sidecar."""

import concurrent.futures
import contextlib
import json
import time

import pytest
from conftest import MOCK, Rig
from harness.http_client import Truncated
from harness.scripted_engine import ScriptedEngine
from harness.sidecar import Sidecar, run
from mock_engine_client import MockEngine

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
PROMPT = "Tell me of sheep and other animals"
BODIES = {
    CHAT: {"model": "mock-model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6},
    COMPLETIONS: {"model": "mock-model", "prompt": PROMPT, "max_tokens": 6},
    GENERATE: {"text": PROMPT, "sampling_params": {"max_new_tokens": 6}},
}
PATHS = pytest.mark.parametrize("path", list(BODIES))
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SETTINGS = {"DYN_SIDECAR_BACKEND": "sglang", "DYN_SIDECAR_READY_INTERVAL_MS": "3600000"}
# Far below any time-out of an engine, far above what a slow machine needs.
SOON = 20


class SglangRig(Rig):
    def wait_tidy(self, started_over=False):
        for engine in (self.prefill, self.decode):
            engine.wait(requests=0, blocks_free="all", sglang__rooms__live=0, sglang__waiting_peers=0)

    def legs(self, engine):
        return [entry for entry in super().legs(engine) if entry["leg"] != "plain" or entry["target"] in BODIES]

    def aborts(self, engine):
        log = engine.control("GET", "/mock/requests").json["requests"]
        return [json.loads(entry["body"]) for entry in log if entry["target"] == "/abort_request"]


@contextlib.contextmanager
def sglang_rig(settings=None, prefill=(), decode=()):
    flags = ("--engine", "sglang", "--disaggregation-mode")
    with MockEngine(*flags, "prefill", *prefill, binary=MOCK) as p, MockEngine(*flags, "decode", *decode, binary=MOCK) as d, \
            Sidecar(d.port, {**SETTINGS, **(settings or {})}) as sidecar:
        yield SglangRig(sidecar, p, d)
        if sidecar.process.poll() is None:
            sidecar.stop()
        sidecar.check_undamaged()


@pytest.fixture(scope="module")
def engines():
    with sglang_rig() as rig:
        yield rig


@pytest.fixture
def pd(engines):
    """Shared engines; each test must leave them without a room."""
    for engine in (engines.prefill, engines.decode):
        engine.control("POST", "/mock/reset")
    engines.since = engines.sidecar.mark()
    yield engines
    for engine in (engines.prefill, engines.decode):
        engine.control("DELETE", "/mock/faults")
    engines.wait_tidy()
    for engine in (engines.prefill, engines.decode):
        state = engine.state()
        assert state["deaths"] == 0 and state["wrong_text"] == 0
        assert state["sglang"]["missing_room"] == 0 and state["sglang"]["aborts"]["of_all"] == 0


@pytest.fixture
def played(settings):
    """Engines that the test plays."""
    with ScriptedEngine() as prefill, ScriptedEngine() as decode, \
            Sidecar(decode.port, {**SETTINGS, "DYN_SIDECAR_SGLANG_BOOTSTRAP_PORT": "8998", **settings}) as sidecar:
        sidecar.wait_log("engine_health", healthy="true")
        yield Rig(sidecar, prefill, decode)
        if sidecar.process.poll() is None:
            prefill.stop()
            decode.stop()
            sidecar.stop()
        sidecar.check_undamaged()


def text_of(path, response):
    body = response.json
    if path == GENERATE:
        return body["text"]
    choice = body["choices"][0]
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"]


def streamed_text(path, response):
    events = [json.loads(event) for event in response.events() if event != "[DONE]"]
    if path == GENERATE:
        return events[-1]["text"]
    part = (lambda c: c["text"]) if path == COMPLETIONS else (lambda c: c["delta"].get("content") or "")
    return "".join(part(choice) for event in events for choice in event["choices"])


def good_prefill(path=CHAT):
    if path == GENERATE:
        return b'{"text":"x","meta_info":{"finish_reason":{"type":"length","length":1}}}'
    return b'{"choices":[{"index":0,"finish_reason":"length"}]}'


EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"\xc3\xa9"}}]}\n\n'


def aborted_rid(engine):
    """The id of the abort that comes next."""
    call = engine.next()
    assert (call.method, call.target) == ("POST", "/abort_request"), call.head
    body = call.json
    assert body["abort_all"] is False
    call.reply()
    return body["rid"]


# ------------------------------------------------------------------------------------------ S01: without a routing header

@PATHS
def test_s01_no_header_is_the_engines_own_answer(pd, path):
    answer = pd.post({**BODIES[path], "n": 3}, path, disaggregated=False)
    assert answer.status == 400 and b"bootstrap room id" in answer.body
    assert pd.legs(pd.prefill) == []
    pd.decode.control("POST", "/mock/reset")


# ------------------------------------------------------------------------------------------------ S02, S03: the answer

@PATHS
def test_s02_answer_is_decodes(pd, path):
    answer = pd.post(BODIES[path], path)
    assert answer.status == 200, answer
    assert text_of(path, answer) == pd.decode.expect(path, BODIES[path])["text"]
    prefill, decode = pd.prefill.state(), pd.decode.state()
    assert prefill["prefill_requests"] == decode["decode_requests"] == 1
    assert decode["tokens"]["local_compute"] == 0 and decode["tokens"]["external_kv_transfer"] > 0
    pd.wait_tidy()
    assert pd.aborts(pd.prefill) == pd.aborts(pd.decode) == []


@PATHS
def test_s03_streams(pd, path):
    answer = pd.post({**BODIES[path], "stream": True}, path)
    assert answer.status == 200 and answer.header("content-type").startswith("text/event-stream")
    assert answer.events()[-1] == "[DONE]"
    assert streamed_text(path, answer) == pd.decode.expect(path, BODIES[path])["text"]
    pd.wait_tidy()
    assert pd.aborts(pd.decode) == []


def test_s03_usage_and_stream_options_are_decodes(pd):
    answer = pd.post({**BODIES[CHAT], "stream": True, "stream_options": {"include_usage": True}}, CHAT)
    usage = json.loads(answer.events()[-2])["usage"]
    assert usage["completion_tokens"] == 6


@STREAMS
@pytest.mark.parametrize("path, field", [(COMPLETIONS, "prompt"), (GENERATE, "text")])
def test_s10_batches(pd, path, field, stream):
    prompts = ["first prompt", "another one", "and a third"]
    request = {**BODIES[path], field: prompts, "stream": stream}
    answer = pd.post(request, path)
    assert answer.status == 200, answer
    expected = [choice["text"] for choice in pd.decode.expect(path, {**request, "stream": False})["choices"]]
    if not stream:
        texts = [item["text"] for item in (answer.json if path == GENERATE else answer.json["choices"])]
        assert texts == expected
    assert pd.prefill.state()["sglang"]["rooms"]["created"] == 3
    pd.wait_tidy()


def test_s10_a_batch_whose_client_leaves_is_aborted_item_by_item(pd):
    pd.prefill.fault(action="delay", ms=600000, match={"role": "prefill"})
    client = pd.start({**BODIES[GENERATE], "text": ["a b c", "d e f"]}, GENERATE)
    pd.decode.wait(sglang__rooms__live=2)
    client.close()
    pd.wait_tidy()
    assert len({abort["rid"] for abort in pd.aborts(pd.decode)}) == 2


# --------------------------------------------------------------------------------------------------- the pair of requests

def test_s04_both_legs_run_at_once_with_one_pairing(played):
    body = b'{ "messages" : [], "max_tokens":700,"stream" : true,"seed":9007199254740993, "x":1e400 }'
    with played.start(body, CHAT, [("x-custom", "kept"), ("authorization", "Bearer k")]) as client:
        prefill, decode = played.prefill.next(), played.decode.next()
        first, second = prefill.json, decode.json
        for name in ("bootstrap_host", "bootstrap_port", "bootstrap_room", "rid"):
            assert first[name] == second[name], name
        assert (first["bootstrap_host"], first["bootstrap_port"]) == ("127.0.0.1", 8998)
        assert 0 <= first["bootstrap_room"] < 2**63 and len(first["rid"]) == 32
        assert (first["stream"], second["stream"]) == (False, True)
        assert first["max_tokens"] == second["max_tokens"] == 700
        assert decode.body().startswith(body[:-2])
        for leg in (prefill, decode):
            assert leg.header("x-custom") == "kept" and leg.header("authorization") == "Bearer k"
            assert leg.header("x-prefiller-host-port") is None
        decode.begin_stream()
        decode.chunk(EVENT)
        decode.chunk(b"data: [DONE]\n\n")
        decode.end_stream()
        client.expect_silence()
        prefill.reply(good_prefill())
        assert client.read_response().body == EVENT + b"data: [DONE]\n\n"


def test_s05_rooms_and_ids_are_never_used_twice(pd):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        requests = [{**BODIES[CHAT], "messages": [{"role": "user", "content": f"number {i}"}]} for i in range(40)]
        answers = list(pool.map(lambda body: pd.post(body, CHAT, [("x-request-id", "the same")]), requests))
    for body, answer in zip(requests, answers):
        assert text_of(CHAT, answer) == pd.decode.expect(CHAT, body)["text"], "answers must not cross"
    legs = [json.loads(leg["body"]) for leg in pd.legs(pd.decode)]
    assert len({leg["bootstrap_room"] for leg in legs}) == len({leg["rid"] for leg in legs}) == 40


def test_s06_clients_cannot_choose_a_room(pd):
    for field, value in (("bootstrap_room", 7), ("bootstrap_host", "evil"), ("bootstrap_port", 1),
                         ("bootstrap_pair_key", "a"), ("bootstrap_attempt_id", "b")):
        for disaggregated in (True, False):
            answer = pd.post({**BODIES[CHAT], field: value}, CHAT, disaggregated=disaggregated)
            answer.refused(400, "invalid_pd_request")
            assert answer.error["param"] == field
    assert pd.legs(pd.prefill) == pd.legs(pd.decode) == []


def test_s06_a_clients_own_id_is_replaced_and_headers_that_set_one_are_removed(pd):
    answer = pd.post({**BODIES[CHAT], "rid": "mine"}, CHAT, [("x-override-bootstrap-room", "7"), ("X-Override-Rid", "a")])
    assert answer.status == 200 and answer.json["id"] != "mine"
    for engine in (pd.prefill, pd.decode):
        (leg,) = pd.legs(engine)
        assert json.loads(leg["body"])["rid"] != "mine"
        assert not [name for name, _ in leg["headers"] if name.lower().startswith("x-override")]


@pytest.mark.parametrize("path, body, field", [
    (CHAT, {**BODIES[CHAT], "n": 2}, "n"),
    (COMPLETIONS, {**BODIES[COMPLETIONS], "n": 3}, "n"),
    (GENERATE, {"text": "a", "sampling_params": {"n": 2}}, "sampling_params.n"),
    ("/v1/responses", {"input": "a"}, None),
    ("/v1/messages", {"messages": [], "max_tokens": 1}, None),
])
def test_s12_what_rooms_cannot_carry_is_refused_at_once(pd, path, body, field):
    answer = pd.post(body, path).refused(400, "unsupported_pd_request")
    assert answer.error["param"] == field
    assert pd.legs(pd.prefill) == pd.legs(pd.decode) == []


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


@pytest.mark.parametrize("fault", [{"action": "sse"}, {"action": "non_json"}, {"action": "huge_body", "bytes": 64 << 20}],
                         ids=["sse", "html", "huge"])
def test_s22_what_is_no_reply_is_a_failure(pd, fault):
    pd.prefill.fault(**fault, match={"role": "prefill"})
    answer = pd.post(BODIES[CHAT], CHAT)
    assert (answer.status, answer.error["code"]) in ((502, "invalid_prefill_handoff"), (502, "prefill_response_too_large"))
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


@pytest.mark.parametrize("at", [10, 300], ids=["in the head", "in the body"])
def test_s24_prefill_that_breaks(pd, at):
    pd.prefill.fault(action="reset_at", at=at, match={"role": "prefill"})
    pd.post(BODIES[CHAT], CHAT).refused(502, "prefill_upstream_unavailable")
    pd.wait_tidy()


def test_s25_prefill_that_stalls():
    with sglang_rig({"DYN_SIDECAR_READ_TIMEOUT_MS": "300"}) as pd:
        pd.prefill.fault(action="stall", match={"role": "prefill"})
        answer = pd.post(BODIES[CHAT], CHAT)
        assert answer.status == 504, answer
        pd.wait_tidy()
        assert len(pd.aborts(pd.prefill)) == len(pd.aborts(pd.decode)) == 1


def test_s26_prefill_that_takes_too_long():
    with sglang_rig({"DYN_SIDECAR_PREFILL_DEADLINE_MS": "300"}, prefill=("--prefill-us-per-token", "10000000")) as pd:
        pd.post(BODIES[CHAT], CHAT).refused(504, "prefill_deadline_exceeded")
        pd.wait_tidy()


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


# ---------------------------------------------------------------------------------------- S50: what engines say they are

def test_s50_each_engine_is_asked_once(pd):
    for _ in range(3):
        assert pd.post(BODIES[CHAT], CHAT).status == 200
    asked = [pd.prefill.state(), pd.decode.state()]
    assert sum(state["requests_by_path"].get("/server_info", 0) for state in asked) <= 2


def test_s50_the_port_can_be_configured():
    with MockEngine("--engine", "sglang", "--disaggregation-mode", "prefill", binary=MOCK) as p, \
            MockEngine("--engine", "sglang", "--disaggregation-mode", "decode", binary=MOCK) as d:
        for name in ("DYN_SIDECAR_SGLANG_BOOTSTRAP_PORT", "SGLANG_BOOTSTRAP_PORT"):
            with Sidecar(d.port, {**SETTINGS, name: str(p.side_channel_port)}) as sidecar:
                rig = SglangRig(sidecar, p, d)
                assert rig.post(BODIES[CHAT], CHAT).status == 200
                rig.wait_tidy()
        assert p.state()["requests_by_path"].get("/server_info") is None


@pytest.mark.parametrize("prefill, decode, words", [
    ("decode", "decode", "prefill mode"), ("null", "decode", "prefill mode"), ("prefill", "prefill", "decode mode"),
    ("prefill", "null", "decode mode")])
def test_s51_an_engine_in_another_role_is_a_clear_error(prefill, decode, words):
    with MockEngine("--engine", "sglang", "--disaggregation-mode", prefill, binary=MOCK) as p, \
            MockEngine("--engine", "sglang", "--disaggregation-mode", decode, binary=MOCK) as d, \
            Sidecar(d.port, SETTINGS) as sidecar:
        rig = SglangRig(sidecar, p, d)
        answer = rig.post(BODIES[CHAT], CHAT).refused(502, "engine_role_mismatch")
        assert words in answer.error["message"]
        assert rig.legs(p) == rig.legs(d) == []


@pytest.mark.parametrize("fault", [{"action": "status", "status": 503}, {"action": "non_json"},
                                   {"action": "huge_body", "bytes": 2 << 20}, {"action": "reset_at", "at": 5}],
                         ids=["status", "html", "huge", "reset"])
def test_s52_a_server_info_that_is_none(fault):
    with sglang_rig() as pd:
        pd.prefill.fault(**fault, match={"path": "/server_info"})
        answer = pd.post(BODIES[CHAT], CHAT)
        assert answer.status == 502
        assert answer.error["code"] in ("auxiliary_upstream_error", "engine_role_mismatch")
        assert pd.legs(pd.prefill) == pd.legs(pd.decode) == []
        pd.prefill.control("DELETE", "/mock/faults")
        assert pd.post(BODIES[CHAT], CHAT).status == 200, "what failed is not remembered"


def test_s53_an_engine_that_moved_its_bootstrap_port_is_asked_again():
    with sglang_rig(decode=("--time-scale", "0.01")) as pd:
        assert pd.post(BODIES[CHAT], CHAT).status == 200
        port = pd.prefill.port
        pd.prefill.stop()
        with MockEngine("--engine", "sglang", "--disaggregation-mode", "prefill", "--port", str(port), binary=MOCK) as moved:
            pd.prefill = moved
            answers = [pd.post(BODIES[CHAT], CHAT).status for _ in range(3)]
            assert answers[-1] == 200, answers
            pd.wait_tidy()


def test_s54_versions_that_differ_are_warned_of():
    with sglang_rig(prefill=("--sglang-version", "0.5.18")) as pd:
        assert pd.post(BODIES[CHAT], CHAT).status == 200
        assert "version" in pd.sidecar.wait_log("backend_warning").text


def test_s55_the_clients_key_opens_engines_that_have_one():
    key = ("--api-key", "k")
    with sglang_rig(prefill=key, decode=key) as pd:
        assert pd.post(BODIES[CHAT], CHAT, [("authorization", "Bearer wrong")]).status == 401
        assert pd.post(BODIES[CHAT], CHAT, [("authorization", "Bearer k")]).status == 200


def test_s56_fallback_to_decode_alone_is_not_offered():
    ended = run(settings={"DYN_SIDECAR_BACKEND": "sglang", "DYN_SIDECAR_ON_PREFILL_FAILURE": "decode-only"})
    assert ended.returncode != 0 and "DYN_SIDECAR_ON_PREFILL_FAILURE" in ended.stderr


# -------------------------------------------------------------------------------------------- S60: log-probabilities

@STREAMS
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_s60_prompt_logprobs_are_merged(pd, stream, batch):
    prompts = ["first prompt of all", "second"] if batch else "first prompt of all"
    request = {"text": prompts, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 3},
               "stream": stream}
    answer = pd.post(request, GENERATE)
    assert answer.status == 200, answer
    if stream:
        assert answer.events()[-1] == "[DONE]"
        items = [json.loads(event) for event in answer.events()[:-1]]
        assert len(items) == (6 if batch else 3)
    else:
        items = answer.json if batch else [answer.json]
    for item in items:
        meta = item["meta_info"]
        assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"] > 0
        assert meta["input_token_logprobs"][0][0] is None
    assert pd.decode.state()["tokens"]["local_compute"] == 0


@STREAMS
def test_s61_failures_of_merged_answers(pd, stream):
    request = {"text": PROMPT, "return_logprob": True, "stream": stream}
    pd.prefill.fault(action="engine_error", status=500, match={"role": "prefill"}, times=1)
    pd.post(request, GENERATE).refused(500, "prefill_upstream_error")
    pd.decode.fault(action="engine_error", status=503, match={"role": "decode"}, times=1)
    answer = pd.post(request, GENERATE)
    assert answer.status == 503
    pd.wait_tidy()


def test_s62_a_merged_stream_whose_client_leaves_is_aborted():
    with sglang_rig(decode=("--decode-us-per-token", "20000")) as pd:
        request = {"text": PROMPT, "return_logprob": True, "stream": True, "sampling_params": {"max_new_tokens": 5000}}
        client = pd.start(request, GENERATE)
        client.read_chunk(client.read_head())
        client.close()
        pd.wait_tidy()
        assert len(pd.aborts(pd.decode)) == 1


# --------------------------------------------------------------------------------------------- S70: once more, and ranks

def test_s70_what_the_engine_calls_retryable_is_tried_once_more(pd):
    pd.prefill.fault(action="status", status=503, match={"role": "prefill"}, times=1,
                     headers=[["x-sglang-retryable", "true"], ["x-sglang-pd-reason", "PD_CAPACITY_EXHAUSTED"]])
    answer = pd.post(BODIES[CHAT], CHAT)
    assert answer.status == 200, answer
    rooms = [json.loads(leg["body"])["bootstrap_room"] for leg in pd.legs(pd.prefill)]
    assert len(set(rooms)) == 2, "a room is good for one attempt"


def test_s71_a_request_lost_on_a_kept_connection_is_paired_anew(played):
    def once(reply_to):
        with played.start(BODIES[CHAT], CHAT) as client:
            prefill, decode = played.prefill.next(), played.decode.next()
            if reply_to is None:
                rid = decode.json["rid"]
                prefill.reply(good_prefill())
                decode.reply(b"{}")
                assert client.read_response("POST").status == 200
                return rid
            rid = prefill.json["rid"]
            prefill.reset()
            later = [played.prefill.next(), played.prefill.next()]
            abort = next(x for x in later if x.target == "/abort_request")
            again = next(x for x in later if x.target == CHAT)
            assert abort.json["rid"] == rid
            abort.reply()
            assert again.json["rid"] != rid
            decode.wait_until_dropped()
            later = [played.decode.next(), played.decode.next()]
            next(x for x in later if x.target == "/abort_request").reply()
            again.reply(good_prefill())
            next(x for x in later if x.target == CHAT).reply(b"{}")
            assert client.read_response("POST").status == 200
            return rid

    once(None)
    once("prefill")


def test_s72_ranks():
    with sglang_rig(prefill=("--data-parallel-size", "4")) as pd:
        for _ in range(4):
            answer = pd.post(BODIES[CHAT], CHAT, [("x-dynamo-prefill-dp-rank", "3")])
            assert answer.status == 200, answer
        assert pd.prefill.state()["sglang"]["ranks"] == {"3": 4}
        for _ in range(24):
            assert pd.post(BODIES[CHAT], CHAT).status == 200
        assert len(pd.prefill.state()["sglang"]["ranks"]) > 1, "rooms spread over the ranks"


def test_s73_readiness_does_not_run_a_generation_for_every_probe(pd):
    assert pd.sidecar.wait_log("engine_health").fields["healthy"] == "true"
    for _ in range(20):
        with pd.connect() as client:
            assert client.request("GET", "/ready").status == 200
    assert pd.decode.state()["sglang"]["health_generations"] <= 1
