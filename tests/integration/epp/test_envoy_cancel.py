"""A client that leaves in each phase of its request, in each way that its protocol has: nothing is booked, held or open afterwards."""

import contextlib
import json

import pytest
from harness.envoy_clients import CLIENTS, start
from envoy_stack import Stack, prompt
from harness.limits import wait_until

POLICY = """
default_policy_family: normal
policy_classes:
  - {name: normal, prefill_busy_threshold: 1000000}
  - {name: patient, prefill_busy_threshold: 0}
"""
CHAT = "/v1/chat/completions"  # what the tokenizer is asked about
LONG = "word " * 20_000  # keeps a prefill engine of this pace busy for longer than any test
MANY = 100_000  # tokens that a decode engine of this pace needs as long for


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY, encoding="utf-8")
    settings = {"DYN_ROUTER_POLICY_CONFIG": str(policy), "DYN_EPP_MAX_NUM_BATCHED_TOKENS": "1000"}
    with contextlib.ExitStack() as stack:
        yield Stack(stack, settings, ("--prefill-us-per-token", "2000"), ("--decode-us-per-token", "1000", "--max-running", "1"))


@pytest.fixture
def stack(shared):
    for engine in (shared.prefill, shared.decode):
        engine.control("POST", "/mock/reset")
    shared.decode.fault(match={"header": {"name": "x-hold"}}, action="stall_at", at_body=0)
    with shared.checked():
        yield shared
    assert shared.prefill.state()["leases"]["expired"] == 0, "only the lease's end gave the blocks back"


# Each brings a request into a phase, and returns it when it is there.

def sending_its_head(stack, client):
    if client == "http2":  # whose heads are not split: only the body is missing
        request = CLIENTS[client](stack.envoy.port, CHAT)
        request.send_head(length=100)
    else:
        request = CLIENTS[client](stack.envoy.port, CHAT)
        request.send_part_of_head()
    wait_until(lambda: stack.envoy.counter("http.front.downstream_cx_active") == 1)
    return request


def sending_its_body(stack, client):
    request = CLIENTS[client](stack.envoy.port, CHAT)
    request.send_head(length=1000)
    request.send_body(b'{"messages": [', end=False)
    wait_until(lambda: stack.epp.report()["buffered_bytes"] > 0)
    return request


def being_tokenized(stack, client):
    stack.epp.tell("tokenizer", "hold")
    request = start(client, stack.envoy.port, prompt(), path=CHAT)
    wait_until(lambda: stack.epp.report()["planning"] == 1)
    return request


def waiting_for_a_worker(stack, client):
    request = start(client, stack.envoy.port, prompt(), [("x-dynamo-meta-policy-class", "patient")])
    wait_until(lambda: stack.waiting() == 1)
    return request


def being_prefilled(stack, client):
    request = start(client, stack.envoy.port, prompt(prompt=LONG))
    stack.prefill.wait(requests__running=1)
    return request


def handed_over(stack, client):
    """Decode has it, and has not taken the blocks."""
    request = start(client, stack.envoy.port, prompt())
    stack.decode.wait(requests__queued=1)
    return request


def before_its_first_token(stack, client):
    """The answer has begun, with nothing in it."""
    request = start(client, stack.envoy.port, prompt(stream=True, max_tokens=MANY), [("x-hold", "1")])
    assert request.read_head() == 200
    return request


def being_decoded(stack, client):
    """As a whole: its first byte is its last."""
    request = start(client, stack.envoy.port, prompt(max_tokens=MANY))
    stack.decode.wait(requests__running=1)
    return request


def streaming(stack, client):
    request = start(client, stack.envoy.port, prompt(stream=True, max_tokens=MANY))
    assert request.read_some() == 200
    return request


PHASES = (sending_its_head, sending_its_body, being_tokenized, waiting_for_a_worker, being_prefilled, handed_over,
          before_its_first_token, being_decoded, streaming)


# Phases of waiting, with what another client's request must be doing, and the proof that nobody waits any more.
WAITS = {
    waiting_for_a_worker: (being_prefilled, lambda stack: stack.waiting() == 0),
    handed_over: (being_decoded, lambda stack: stack.decode.state()["requests"]["queued"] == 0),
}


@pytest.mark.parametrize("client,how", [(client, how) for client in CLIENTS for how in CLIENTS[client].ways_to_leave])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_client_leaves(stack, phase, client, how):
    in_the_way, is_over = WAITS.get(phase, (None, None))
    other = in_the_way(stack, "http1") if in_the_way else None
    request = phase(stack, client)
    assert not stack.envoy.is_idle()
    request.leave(how)
    if other:
        wait_until(lambda: is_over(stack))
        other.close()
    if how == "reset_stream":  # its connection goes on
        wait_until(lambda: stack.epp.report()["planning"] == 0)
        stack.epp.tell("tokenizer", "answer")
        again = request.connection.post("/v1/completions", json.dumps(prompt()).encode())
        request.connection.until(lambda: again in request.connection.ended)
        assert request.connection.headers[again][":status"] == "200"
    request.close()
