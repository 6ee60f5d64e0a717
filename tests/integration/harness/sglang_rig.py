"""A sidecar between SGLang engines, for the tests of backends/sglang/PROTOCOL.md. Engine time-outs are the real ones (300 s)
unless a test says otherwise: a room that is gone sooner was ended by the sidecar."""

import contextlib
import json

import pytest
from conftest import MOCK, Rig
from harness.scripted_engine import ScriptedEngine
from harness.sidecar import Sidecar
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
