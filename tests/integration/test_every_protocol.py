"""The conformance suite: what holds for every protocol, run against each. Where protocols must differ, harness/protocols.py
says how. After each test no engine has a request, block, lease or room left."""

import concurrent.futures
import contextlib
import json

import pytest
from conftest import MOCK, Rig
from harness.http_client import Truncated
from harness.protocols import PROTOCOLS
from mock_engine_client import MockEngine
from reserved_ports import ReservedPort

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PROMPT = "Tell me of sheep and other animals, large and small, of the field and of the house, and of their names"  # two blocks
BLOCK = 16
COMPLETION = {"model": "mock-model", "prompt": PROMPT, "max_tokens": 6}
BODIES = {COMPLETIONS: COMPLETION,
          CHAT: {"model": "mock-model", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6}}
SECRET = "the-prompt-is-quoted-here"
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
LEAVING = pytest.mark.parametrize("leave", ["close", "reset", "finish_sending"])
NEVER_MS = 600_000


class ProtocolRig(Rig):
    def __init__(self, protocol, sidecar, prefill, decode, leases_may_end=False):
        super().__init__(sidecar, prefill, decode)
        self.protocol = protocol
        self.leases_may_end = leases_may_end

    def fail_prefill(self, **fault):
        """Of the generation request only, not of the questions about the engine."""
        self.prefill.fault(match={"path": COMPLETIONS}, **fault)

    def fail_decode(self, **fault):
        self.decode.fault(match={"path": COMPLETIONS}, **fault)

    def legs(self, engine):
        return [leg for leg in super().legs(engine) if leg["target"].startswith("/v1/")]

    def decode_has_nothing(self):
        """A failed prefill costs decode nothing: it is not asked, or rid of the request before it computes anything."""
        self.wait_tidy()
        if self.protocol.concurrent:
            assert self.decode.state()["tokens"]["generation"] == 0
        else:
            assert self.legs(self.decode) == []

    def protocol_timeout(self, answer, role):
        """Where both engines wait for each other, either may be the one whose time is over first."""
        roles = ("prefill", "decode") if self.protocol.concurrent else (role,)
        assert answer.status == 504 and answer.error["code"] in [f"{one}_upstream_timeout" for one in roles], answer
        assert any(one in answer.error["message"] for one in roles)

    def wait_tidy(self, started_over=False):
        """Nothing is left. Where it takes an engine's time-out, that is over now; all else must be gone without."""
        protocol = self.protocol
        engines = [engine for engine in (self.decode, self.prefill) if engine is not None]
        leases = protocol.leases_hold_no_blocks or (self.leases_may_end and not protocol.time_outs_never_matter)
        if protocol.engines_wait_in_vain:
            self.wait_for(engines, requests=0)  # what they have is theirs to hand over, until here
        if protocol.engines_wait_in_vain or leases:
            self.set_times_up(engines, waits=True, leases=False)
            self.wait_for(engines[:1], requests=0)  # who would still ask for what is kept
            self.wait_for(engines, **{name: 0 for name in protocol.no_request if name.startswith("transfers")})
            self.set_times_up(engines, waits=True, leases=leases)
        self.wait_for(engines, **protocol.no_request)
        self.set_times_up(engines, waits=False, leases=False)

    @staticmethod
    def wait_for(engines, **conditions):
        for engine in engines:
            engine.wait(**conditions)

    @staticmethod
    def set_times_up(engines, **kinds):
        for engine in engines:
            engine.times_up(**kinds)

    def gone(self, client, leave):
        """The client has left, and the sidecar knows it. A half-close counts as leaving."""
        getattr(client, leave)()
        assert self.exchange_line(path=COMPLETIONS).fields["outcome"] == "client_gone"


@pytest.fixture(scope="module", params=PROTOCOLS, ids=str)
def protocol(request):
    return request.param


@pytest.fixture(scope="module")
def engines(protocol, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    with contextlib.ExitStack() as stack:
        yield tuple(stack.enter_context(MockEngine(*protocol.flags_of(role, store), binary=MOCK)) for role in ("prefill", "decode"))


def settings_of(protocol, prefill, more):
    ports = {name: str(getattr(prefill, port)) for name, port in protocol.engine_ports.items()}
    return {"DYN_SIDECAR_BACKEND": protocol.backend, "DYN_SIDECAR_READY_INTERVAL_MS": "3600000", **protocol.settings, **ports, **more}


@pytest.fixture
def rig(request, protocol, engines, sidecar_pool, settings):
    """`untidy`: leases may end by their time, or the engines count what the test did to them."""
    prefill, decode = engines
    untidy = request.node.get_closest_marker("untidy") is not None
    rig = ProtocolRig(protocol, sidecar_pool.get(decode.port, settings_of(protocol, prefill, settings)), prefill, decode, untidy)
    if {"exchange_line", "gone"} & set(request.function.__code__.co_names):
        rig.let_log_catch_up()
    for engine in engines:
        engine.control("POST", "/mock/reset")
    yield rig
    for engine in engines:
        engine.control("DELETE", "/mock/faults")
    if rig.sidecar.process.poll() is None:
        rig.sidecar.check_undamaged()
    rig.wait_tidy()
    for engine in engines:
        state = engine.state()
        damage = {name: state[name] for name in protocol.damage if state[name]}
        assert not damage and state["blocks"]["leaked"] == 0, damage
        if not untidy and not protocol.leases_hold_no_blocks:
            assert state["leases"]["expired"] == 0, "only the lease's end gave the blocks back"


@pytest.fixture
def own_rig(own, protocol, tmp_path):
    def make(settings=None, prefill=(), decode=()):
        engines = [own.engine(*protocol.flags_of(role, tmp_path, more)) for role, more in (("prefill", prefill), ("decode", decode))]
        return ProtocolRig(protocol, own.sidecar(engines[1].port, settings_of(protocol, engines[0], settings or {})), *engines)

    return make


def text_of(path, answer):
    if not answer.header("content-type").startswith("text/event-stream"):
        choice = answer.json["choices"][0]
        return choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    events = answer.events()
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(c["text"] if path == COMPLETIONS else c["delta"].get("content") or "" for c in choices)


# ---------------------------------------------------------------------------------------------------------- the answer

@STREAMS
@pytest.mark.parametrize("path", list(BODIES))
def test_the_answer_is_decodes_and_prefill_ran_once(rig, path, stream):
    answer = rig.post({**BODIES[path], "stream": stream}, path)
    assert answer.status == 200, answer
    assert text_of(path, answer) == rig.decode.expect(path, BODIES[path])["text"]
    prefill, decode = rig.prefill.state(), rig.decode.state()
    assert prefill["prefill_requests"] == decode["decode_requests"] == 1
    assert decode["tokens"]["local_compute"] <= (0 if rig.protocol.hands_over_the_rest else BLOCK)
    assert decode["tokens"]["external_kv_transfer"] > 0
    assert rig.exchange_line(path=path).fields["mode"] == "disaggregated"


def test_equal_request_ids_do_not_cross(rig):
    bodies = [{**COMPLETION, "prompt": f"{PROMPT}, number {number}"} for number in range(12)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda body: rig.post(body, headers=[("x-request-id", "the same")]), bodies))
    for body, answer in zip(bodies, answers):
        assert text_of(COMPLETIONS, answer) == rig.decode.expect(COMPLETIONS, body)["text"]


def test_unknown_fields_and_headers_reach_both_legs(rig):
    body = {**COMPLETION, "nvext": {"a": [1, 2.50]}, "seed": 9007199254740993}
    assert rig.post(body, headers=[("x-custom", "kept"), ("connection", "x-hop"), ("x-hop", "gone")]).status == 200
    for engine in (rig.prefill, rig.decode):
        (leg,) = rig.legs(engine)
        sent = json.loads(leg["body"])
        assert (sent["nvext"], sent["seed"]) == (body["nvext"], body["seed"])
        headers = {name.lower(): value for name, value in leg["headers"]}
        assert headers["x-custom"] == "kept"
        assert "x-hop" not in headers and "x-prefiller-host-port" not in headers


# ------------------------------------------------------------------------------------------------- what is refused at once

@pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])
def test_handoff_of_a_client_is_400(rig, disaggregated):
    (field,) = rig.protocol.forged
    answer = rig.post({**COMPLETION, **rig.protocol.forged}, disaggregated=disaggregated).refused(400, "invalid_pd_request")
    assert answer.error["param"] == field
    assert rig.legs(rig.prefill) == rig.legs(rig.decode) == []


@pytest.mark.parametrize("values", [["no-port"], ["127.0.0.1:0"], ["u@h:1"], ["a:1", "b:1"]], ids=repr)
def test_routing_header_that_names_no_endpoint_is_502(rig, values):
    headers = [("x-prefiller-host-port", value) for value in values]
    rig.post(COMPLETION, headers=headers, disaggregated=False).refused(502, "invalid_epp_metadata")
    assert rig.legs(rig.prefill) == rig.legs(rig.decode) == []


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff{}", b'{"prompt": "a"} x'], ids=repr)
def test_body_that_is_no_object_is_400(rig, body):
    answer = rig.post(body)
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error", answer
    assert rig.legs(rig.prefill) == rig.legs(rig.decode) == []


# ---------------------------------------------------------------------------------------------------- prefill: its status

@STREAMS
@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 499])
def test_prefills_4xx_is_the_clients_answer(rig, status, stream):
    body = json.dumps({"error": {"message": SECRET}})
    rig.fail_prefill(action="status", status=status, body=body, headers=[["Retry-After", "7"], ["X-Engine", "yes"]])
    answer = rig.post({**COMPLETION, "stream": stream})
    assert (answer.status, answer.body.decode()) == (status, body)
    assert answer.header("retry-after") == "7" and answer.header("x-engine") == "yes"
    rig.decode_has_nothing()


@STREAMS
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_prefills_5xx_keeps_its_status_and_not_its_body(rig, status, stream):
    rig.fail_prefill(action="status", status=status, body=SECRET, headers=[["Retry-After", "3"], ["X-Engine", "yes"]])
    answer = rig.post({**COMPLETION, "stream": stream}).refused(status, "prefill_upstream_error")
    assert answer.header("retry-after") == "3" and answer.header("x-engine") is None
    assert answer.error["type"] == "server_error" and "refill" in answer.error["message"]
    assert SECRET not in answer.body.decode()
    rig.decode_has_nothing()


@pytest.mark.parametrize("status", [501, 507, 529, 599, 300, 302, 304, 307])
def test_other_5xx_and_redirects_are_502(rig, own, status):
    trap = own.scripted()
    rig.fail_prefill(action="status", status=status, body=SECRET,
                     headers=[["Location", f"http://127.0.0.1:{trap.port}/v1/completions"]])
    answer = rig.post(COMPLETION).refused(502, "prefill_upstream_error")
    assert answer.header("location") is None and SECRET not in answer.body.decode()
    assert trap.links == [], "a redirect was followed"
    rig.decode_has_nothing()


@pytest.mark.parametrize("status", [400, 413])
def test_early_4xx_of_prefill_is_the_clients_answer(rig, status):
    rig.fail_prefill(action="early_response", status=status, body='{"error":"too large"}')
    answer = rig.post({**COMPLETION, "padding": "x" * 3_000_000})
    assert answer.status == status and answer.body == b'{"error":"too large"}'


def test_interim_responses_of_prefill_are_skipped(rig):
    rig.fail_prefill(action="informational", status=103, count=3, headers=[["Link", "</x>"]])
    answer = rig.post(COMPLETION)
    assert answer.status == 200 and answer.interim == []


# ------------------------------------------------------------------------------------------------- prefill: useless replies

@pytest.mark.untidy
@STREAMS
@pytest.mark.parametrize("reply", ["<html>no json</html>", "", "[]", '"text"', "null", "{", "data: {}\n\n", '{"a":1} {"b":2}'],
                         ids=repr)
def test_reply_that_is_no_json_object_is_502(rig, reply, stream):
    rig.fail_prefill(action="status", status=200, body=reply)
    answer = rig.post({**COMPLETION, "stream": stream})
    if rig.protocol.reads_prefill_reply:
        answer.refused(502, "invalid_prefill_handoff")
    else:
        assert text_of(COMPLETIONS, answer) == rig.decode.expect(COMPLETIONS, COMPLETION)["text"]
    rig.wait_tidy()


@pytest.mark.untidy
@pytest.mark.settings(DYN_SIDECAR_MAX_PREFILL_RESPONSE_BYTES="100000")
@pytest.mark.parametrize("chunked", [False, True])
def test_reply_above_the_limit_is_502(rig, chunked):
    rig.fail_prefill(action="huge_body", bytes=300_000, chunked=chunked)
    rig.post(COMPLETION).refused(502, "prefill_response_too_large")


@pytest.mark.untidy
@pytest.mark.parametrize("kind", ["bad_chunk_size", "chunked_and_length", "garbage_status", "long_length", "short_length",
                                  "no_final_chunk", "oversize_head"])
def test_broken_framing_is_502(rig, kind):
    rig.fail_prefill(action="framing", kind=kind, **({"bytes": 70000} if kind == "oversize_head" else {}))
    answer = rig.post(COMPLETION)
    if kind == "short_length" and not rig.protocol.reads_prefill_reply:  # cut within its framing: nobody looks
        assert answer.status == 200
        return
    assert answer.status == 502
    assert answer.error["code"] in ("prefill_upstream_error", "prefill_upstream_unavailable", "invalid_prefill_handoff",
                                    "prefill_response_too_large")


# ----------------------------------------------------------------------------------------------------- prefill: transport

@STREAMS
def test_prefill_that_cant_be_reached_is_502_and_named(rig, stream):
    code = "auxiliary_upstream_error" if rig.protocol.asks_prefill_first else "prefill_upstream_unavailable"
    with ReservedPort() as port:
        headers = [("x-prefiller-host-port", f"127.0.0.1:{port}")]
        rig.post({**COMPLETION, "stream": stream}, disaggregated=False, headers=headers).refused(502, code)
    if rig.protocol.asks_prefill_first:
        assert rig.legs(rig.decode) == []
    rig.decode_has_nothing()


@pytest.mark.untidy
@STREAMS
@pytest.mark.parametrize("action", ["reset_at", "close_at"])
@pytest.mark.parametrize("at", [0, 10, 300], ids=["before the head", "in the head", "in the body"])
def test_prefill_that_breaks_off_is_502(rig, action, at, stream):
    rig.fail_prefill(action=action, at=at)
    with rig.start({**COMPLETION, "stream": stream}) as client:
        try:
            answer = client.read_response("POST")
        except Truncated as end:
            raise AssertionError(f"no answer, the connection ended with {end.how}") from end
    answer.refused(502, "prefill_upstream_unavailable")
    assert "prefill" in answer.error["message"]


@pytest.mark.untidy
@pytest.mark.settings(DYN_SIDECAR_READ_TIMEOUT_MS="300")
@pytest.mark.parametrize("fault", [{"action": "stall"}, {"action": "stall_at", "at": 10}, {"action": "stall_at", "at": 300}],
                         ids=["before the head", "in the head", "in the body"])
def test_prefill_that_falls_silent_is_504(rig, fault):
    rig.fail_prefill(**fault)
    answer = rig.post(COMPLETION)
    rig.protocol_timeout(answer, "prefill")


@pytest.mark.untidy
@pytest.mark.settings(DYN_SIDECAR_PREFILL_DEADLINE_MS="300", DYN_SIDECAR_READ_TIMEOUT_MS="60000")
@pytest.mark.parametrize("fault", [{"action": "stall"}, {"action": "trickle", "bytes": 1, "every_ms": 20}], ids=["silent", "trickles"])
def test_prefill_that_takes_too_long_is_504(rig, fault):
    rig.fail_prefill(**fault)
    rig.post(COMPLETION).refused(504, "prefill_deadline_exceeded")


# ----------------------------------------------------------------------------------------------------- retries and fallback

RETRIES = pytest.mark.settings(DYN_SIDECAR_PREFILL_RETRIES="2", DYN_SIDECAR_PREFILL_RETRY_BACKOFF_MS="1")


@RETRIES
@pytest.mark.parametrize("status", [502, 503, 504])
def test_only_a_leg_that_may_be_sent_again_is_retried(rig, status):
    rig.fail_prefill(action="status", status=status)
    rig.post(COMPLETION).refused(status, "prefill_upstream_error")
    assert len(rig.legs(rig.prefill)) == (3 if rig.protocol.prefill_may_be_sent_again else 1)


@RETRIES
@pytest.mark.parametrize("status", [500, 501, 400, 429])
def test_no_retry_of_other_failures(rig, status):
    rig.fail_prefill(action="status", status=status)
    rig.post(COMPLETION)
    assert len(rig.legs(rig.prefill)) == 1


FALLBACK = pytest.mark.settings(DYN_SIDECAR_ON_PREFILL_FAILURE="decode-only", DYN_SIDECAR_READ_TIMEOUT_MS="20000")


@pytest.fixture
def can_fall_back(protocol):
    """Asked for before `rig`: without it the sidecar refuses the setting at its start."""
    if not protocol.decode_can_prefill:
        pytest.skip("this decode engine can't prefill; the setting is refused (test_sglang_engines.py)")


@FALLBACK
@pytest.mark.untidy
@STREAMS
@pytest.mark.parametrize("fault", [{"action": "status", "status": 500}, {"action": "status", "status": 501},
                                   {"action": "status", "status": 503}, {"action": "reset_at", "at": 0},
                                   {"action": "redirect", "location": "/x"}], ids=json.dumps)
def test_fallback_to_decode_only(can_fall_back, rig, fault, stream):
    rig.fail_prefill(**fault)
    body = {**COMPLETION, "stream": stream}
    answer = rig.post(body)
    assert text_of(COMPLETIONS, answer) == rig.decode.expect(COMPLETIONS, COMPLETION)["text"]
    line = rig.exchange_line(path=COMPLETIONS)
    assert (line.fields["mode"], line.fields["reason"]) == ("decode_only", "prefill_failed")
    assert json.loads(rig.legs(rig.decode)[-1]["body"]) == body


@STREAMS
@pytest.mark.parametrize("policy", ["error", "decode-only"])
def test_prefill_where_nobody_listens_is_tried_again_and_then_falls_back(own, protocol, tmp_path, policy, stream):
    """Whichever call to it comes first: a connect that failed has sent nothing, in any protocol."""
    if policy == "decode-only" and not protocol.decode_can_prefill:
        pytest.skip("this decode engine can't prefill; the setting is refused (test_sglang_engines.py)")
    decode = own.engine(*protocol.flags_of("decode", tmp_path))
    with ReservedPort() as port:
        settings = {"DYN_SIDECAR_BACKEND": protocol.backend, **protocol.settings,
                    **{name: str(port.number) for name in protocol.engine_ports},
                    "DYN_SIDECAR_ON_PREFILL_FAILURE": policy, "DYN_SIDECAR_PREFILL_RETRIES": "2",
                    "DYN_SIDECAR_PREFILL_RETRY_BACKOFF_MS": "1"}
        rig = ProtocolRig(protocol, own.sidecar(decode.port, settings), None, decode)
        body = {**COMPLETION, "stream": stream}
        answer = rig.post(body, disaggregated=False, headers=[("x-prefiller-host-port", f"127.0.0.1:{port}")])
        line = rig.exchange_line(path=COMPLETIONS)
    assert line.fields["prefill_retries"] == "2"
    if policy == "error":
        assert answer.status == 502
        assert answer.error["code"] in ("prefill_upstream_unavailable", "auxiliary_upstream_error")
        assert "prefill engine could not be connected to" in answer.error["message"]
    else:
        assert text_of(COMPLETIONS, answer) == decode.expect(COMPLETIONS, COMPLETION)["text"]
        assert (line.fields["mode"], line.fields["reason"]) == ("decode_only", "prefill_failed")
    rig.wait_tidy()


@FALLBACK
@pytest.mark.parametrize("status", [400, 404, 429])
def test_no_fallback_where_the_request_itself_is_at_fault(can_fall_back, rig, status):
    rig.fail_prefill(action="status", status=status, body="{}")
    assert rig.post(COMPLETION).status == status
    rig.decode_has_nothing()


# ------------------------------------------------------------------------------------------------------------ decode

@pytest.mark.untidy
@STREAMS
@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503, 599])
def test_decodes_error_is_relayed_as_it_is(rig, status, stream):
    rig.fail_decode(action="status", status=status, body='{"e": 1}', headers=[["Retry-After", "9"], ["X-Engine", "yes"]])
    answer = rig.post({**COMPLETION, "stream": stream})
    assert (answer.status, answer.body) == (status, b'{"e": 1}')
    assert answer.header("retry-after") == "9" and answer.header("x-engine") == "yes"


@STREAMS
def test_what_decode_itself_rejects_leaves_nothing(own_rig, protocol, stream):
    rig = own_rig()
    rig.leases_may_end = protocol.failed_decode_leaves_lease
    rig.fail_decode(action="reject", status=400)
    answer = rig.post({**COMPLETION, "stream": stream})
    assert answer.status == 400 and b"rejected by a fault rule" in answer.body
    rig.wait_tidy()
    assert rig.prefill.state()["leases"]["expired"] == (1 if rig.leases_may_end else 0)


@pytest.mark.untidy
@STREAMS
@pytest.mark.parametrize("action", ["reset_at", "close_at"])
def test_decode_that_breaks_off_before_its_answer_is_502(rig, action, stream):
    rig.fail_decode(action=action, at=0)
    answer = rig.post({**COMPLETION, "stream": stream}).refused(502, "decode_upstream_error")
    assert "decode" in answer.error["message"]


@pytest.mark.untidy
@pytest.mark.settings(DYN_SIDECAR_READ_TIMEOUT_MS="300")
def test_decode_that_falls_silent_is_504(rig):
    rig.fail_decode(action="stall")
    answer = rig.post(COMPLETION)
    rig.protocol_timeout(answer, "decode")


def test_decode_that_breaks_in_the_stream_is_cut(own_rig):
    rig = own_rig(decode=("--decode-us-per-token", "2000"))
    rig.fail_decode(action="reset_at", at_body=3000)
    with rig.start({**COMPLETION, "stream": True, "max_tokens": 600}) as client:
        answer = client.read_head()
        with pytest.raises(Truncated):
            client.read_body(answer)
    assert b"[DONE]" not in answer.body
    rig.wait_tidy()


def test_decode_that_cant_be_reached_is_502(own, protocol, tmp_path):
    prefill = own.engine(*protocol.flags_of("prefill", tmp_path))
    code = "auxiliary_upstream_error" if protocol.asks_decode_first else "decode_upstream_error"
    with ReservedPort() as port:
        rig = ProtocolRig(protocol, own.sidecar(port.number, settings_of(protocol, prefill, {})), prefill, None, leases_may_end=True)
        rig.post(COMPLETION).refused(502, code)
    rig.wait_tidy()


# ------------------------------------------------------------------------------------------------------ the client leaves

@LEAVING
@STREAMS
def test_client_leaves_while_prefill_runs(rig, leave, stream):
    rig.fail_prefill(action="delay", ms=500 if rig.protocol.prefill_lingers else NEVER_MS)
    client = rig.start({**COMPLETION, "stream": stream})
    rig.prefill.wait(fault_hits=1)
    rig.gone(client, leave)
    rig.wait_tidy()
    if not rig.protocol.concurrent:
        assert rig.legs(rig.decode) == [] and rig.prefill.state()["leases"]["created"] == 0


@LEAVING
@STREAMS
def test_client_leaves_before_decodes_first_byte(rig, leave, stream):
    rig.fail_decode(action="delay", ms=500 if rig.protocol.decode_lingers else NEVER_MS, when="after")
    client = rig.start({**COMPLETION, "stream": stream})
    rig.decode.wait(decode_requests=1)
    rig.gone(client, leave)
    rig.wait_tidy()
    assert len(rig.legs(rig.decode)) == 1, "what decode got needs no release"


@LEAVING
def test_client_leaves_while_streaming(own_rig, leave):
    rig = own_rig(decode=("--decode-us-per-token", "20000"))
    client = rig.start({**COMPLETION, "max_tokens": 100000, "stream": True})
    answer = client.read_head()
    for _ in range(3):
        assert client.read_chunk(answer)
    rig.gone(client, leave)
    rig.decode.wait(**{**rig.protocol.no_request, "requests__aborted": 1})
    rig.prefill.wait(**rig.protocol.no_request)
    assert rig.prefill.state()["requests"]["finished"] == 1


# ------------------------------------------------------------------------------------------------------------ shutdown

def test_shutdown_tells_the_client_and_frees_the_engines(own_rig):
    rig = own_rig({"DYN_SIDECAR_DRAIN_TIMEOUT_MS": "200"})
    rig.fail_prefill(action="delay", ms=500 if rig.protocol.prefill_lingers else NEVER_MS)
    with rig.start(COMPLETION) as client:
        rig.prefill.wait(fault_hits=1)
        rig.sidecar.signal()
        client.read_response("POST").refused(502, "request_cancelled")
        assert rig.sidecar.wait_exit() == 0
    rig.wait_tidy()
