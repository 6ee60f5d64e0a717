"""Engines and sidecars that die under a request, before and after they have taken it: what its client is told, streamed or not, over
HTTP/1.1 and HTTP/2, and that nobody else keeps anything of it."""

import contextlib
import json
import signal

import pytest
from harness.envoy_clients import CLIENTS, ask, start
from envoy_stack import Front, prompt, start_engine
from harness.limits import wait_until
from harness.sidecar import Sidecar
from reserved_ports import ReservedPort

POLICY = """
default_policy_family: normal
policy_classes:
  - {name: normal, prefill_busy_threshold: 1000000}
  - {name: patient, prefill_busy_threshold: 0}
"""
LONG = "word " * 20_000  # keeps a prefill engine of this pace busy for longer than any test
MANY = 100_000  # tokens that a decode engine of this pace needs as long for
# A handoff whose decode engine is dead is left to its lease, of 30 s at scale 1.
PREFILL = ("--prefill-us-per-token", "2000", "--time-scale", "0.02")
DECODE = ("--decode-us-per-token", "1000", "--max-running", "1")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    with contextlib.ExitStack() as stack:
        yield Front(stack, {"DYN_ROUTER_POLICY_CONFIG": str(policy), "DYN_EPP_MAX_NUM_BATCHED_TOKENS": "1000"})


class Parts:
    """Engines and sidecars of one test. The Endpoint Picker is not told of their deaths: it learns of such things later."""

    def __init__(self, stack, front):
        self._stack = stack
        self.epp = front.epp
        self.envoy = front.envoy
        self.waiting = front.waiting
        self.prefill = self._engine("producer", *PREFILL)
        self.epp.endpoint("p0", self.prefill.port, "prefill")
        stack.callback(self.epp.tell, "remove", "p0")
        self.decode, self.sidecar = self.add_decode("d0")

    def _engine(self, role, *flags):
        side_channel = self._stack.enter_context(ReservedPort())  # nobody else gets it when the engine has died
        return self._stack.enter_context(start_engine(role, "--side-channel-port", str(side_channel), *flags))

    def add_decode(self, name):
        decode = self._engine("consumer", *DECODE)
        sidecar = self._stack.enter_context(Sidecar(decode.port))
        self.epp.endpoint(name, sidecar.port, "decode")
        self._stack.callback(self.epp.tell, "remove", name)
        return decode, sidecar

    @staticmethod
    def kill(part):
        part.process.kill()
        part.process.wait()

    def wait_tidy(self):
        self.epp.wait_tidy()
        wait_until(self.envoy.is_idle)
        for engine in (self.prefill, self.decode):
            if engine.process.poll() is None:
                engine.wait(requests=0, blocks_free="all", leases=0)


@pytest.fixture
def parts(shared):
    spurious = shared.envoy.counter("spurious_msgs_received")
    with contextlib.ExitStack() as stack:
        made = Parts(stack, shared)
        yield made
        made.wait_tidy()
    assert shared.envoy.counter("spurious_msgs_received") == spurious


def is_refused(reply, status, code):
    return (reply.status, reply.error["code"], reply.error["type"]) == (status, code, "server_error")


clients = pytest.mark.parametrize("client", CLIENTS)
kinds = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@clients
@kinds
def test_prefill_that_is_gone(parts, client, stream):
    parts.kill(parts.prefill)
    reply = ask(client, parts.envoy.port, prompt(stream=stream))
    assert is_refused(reply, 502, "prefill_upstream_unavailable"), reply
    assert parts.decode.state()["decode_requests"] == 0


@clients
@kinds
def test_prefill_dies_while_it_computes(parts, client, stream):
    request = start(client, parts.envoy.port, prompt(prompt=LONG, stream=stream))
    parts.prefill.wait(requests__running=1)
    parts.kill(parts.prefill)
    reply = request.read()
    assert is_refused(reply, 502, "prefill_upstream_unavailable"), reply
    assert parts.decode.state()["decode_requests"] == 0
    request.close()


@clients
def test_prefill_dies_before_its_blocks_are_taken(parts, client):
    """vLLM fails such a request in its own words, and never answers from blocks that it has not got."""
    other = start("http1", parts.envoy.port, prompt(max_tokens=MANY))
    parts.decode.wait(requests__running=1)
    request = start(client, parts.envoy.port, prompt())
    parts.decode.wait(requests__queued=1)
    parts.kill(parts.prefill)
    other.leave("close")
    reply = request.read()
    assert reply.complete and reply.status in (200, 500), reply
    if reply.status == 200:
        assert json.loads(reply.body)["choices"][0]["finish_reason"] == "error", reply
    request.close()


@clients
@kinds
def test_decode_that_is_gone(parts, client, stream):
    parts.kill(parts.decode)
    reply = ask(client, parts.envoy.port, prompt(stream=stream))
    assert is_refused(reply, 502, "decode_upstream_error"), reply


@clients
@kinds
def test_decode_dies_before_its_first_token(parts, client, stream):
    """A stream's head is out by then, as vLLM sends it at once: all that is left is to cut the answer visibly."""
    other = start("http1", parts.envoy.port, prompt(max_tokens=MANY))  # for whose end the next one waits
    parts.decode.wait(requests__running=1)
    request = start(client, parts.envoy.port, prompt(stream=stream))
    parts.decode.wait(requests__queued=1)
    if stream:
        assert request.read_head() == 200
    parts.kill(parts.decode)
    reply = request.read()
    if stream:
        assert not reply.complete and reply.body == b"", reply
    else:
        assert is_refused(reply, 502, "decode_upstream_error"), reply
    assert is_refused(other.read(), 502, "decode_upstream_error")
    request.close()
    other.close()


@clients
def test_decode_dies_during_the_answer(parts, client):
    request = start(client, parts.envoy.port, prompt(stream=True, max_tokens=MANY))
    assert request.read_some() == 200
    parts.kill(parts.decode)
    reply = request.read()
    assert not reply.complete and b"[DONE]" not in reply.body, reply
    request.close()


@clients
@kinds
def test_sidecar_that_is_gone(parts, client, stream):
    """Envoy's own words."""
    parts.kill(parts.sidecar)
    reply = ask(client, parts.envoy.port, prompt(stream=stream))
    assert reply.status == 503 and reply.complete and reply.body.startswith(b"upstream connect error"), reply
    assert parts.prefill.state()["prefill_requests"] == 0


@clients
@kinds
def test_sidecar_dies_during_prefill(parts, client, stream):
    request = start(client, parts.envoy.port, prompt(prompt=LONG, stream=stream))
    parts.prefill.wait(requests__running=1)
    parts.kill(parts.sidecar)
    reply = request.read()
    assert reply.status == 503 and reply.complete and reply.body.startswith(b"upstream connect error"), reply
    request.close()


@clients
def test_sidecar_dies_during_the_answer(parts, client):
    request = start(client, parts.envoy.port, prompt(stream=True, max_tokens=MANY))
    assert request.read_some() == 200
    parts.kill(parts.sidecar)
    reply = request.read()
    assert not reply.complete and b"[DONE]" not in reply.body, reply
    request.close()


@clients
def test_sidecar_that_is_told_to_stop_ends_its_answers(parts, client):
    request = start(client, parts.envoy.port, prompt(stream=True, max_tokens=200))
    assert request.read_some() == 200
    parts.sidecar.signal(signal.SIGTERM)
    parts.sidecar.wait_log("draining")
    reply = request.read()
    assert reply.complete and reply.body.endswith(b"data: [DONE]\n\n"), reply
    assert parts.sidecar.wait_exit() == 0
    request.close()


@clients
@pytest.mark.parametrize("how", ["unready", "removed"])
def test_decode_worker_that_goes_while_the_request_waits_for_prefill(parts, client, how):
    """The request goes to another, though the first was booked for it."""
    other = start("http1", parts.envoy.port, prompt(prompt=LONG))
    parts.prefill.wait(requests__running=1)
    request = start(client, parts.envoy.port, prompt(), [("x-dynamo-meta-policy-class", "patient")])
    wait_until(lambda: parts.waiting() == 1)
    assert parts.epp.load("decode")["active_requests"] == 2
    second, _ = parts.add_decode("d1")
    if how == "removed":
        parts.epp.tell("remove", "d0")
    else:
        parts.epp.endpoint("d0", parts.sidecar.port, "decode", ready=False)
    parts.kill(parts.sidecar)
    other.close()
    assert request.read().status == 200
    assert second.wait(requests=0, blocks_free="all")["decode_requests"] == 1
    assert parts.epp.report()["counts"]["rebooked"] > 0
    request.close()
