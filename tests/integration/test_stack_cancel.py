"""A client that leaves, with each engine's own protocol behind Envoy: neither engine goes on with it, and nothing is held or booked.

What is the same for all of them is in epp/test_envoy_cancel.py, with vLLM's protocol.
"""

import pytest
from harness.envoy_clients import CLIENTS, start
from harness.stack import CHAT, answered, chat, start_stack, wait_tidy

# Slow enough that no test waits for the end of what it cancels; and what was cancelled keeps nobody else from being prefilled.
PACE = ("--prefill-us-per-token", "5000", "--decode-us-per-token", "5000", "--one-prefill-at-a-time=false")
LONG = chat("word " * 8000)
MANY = 10_000


@pytest.fixture(scope="module", params=["sglang", "trtllm"])
def shared(request):
    with start_stack(engine=request.param, prefills=1, decodes=1, flags=PACE, settings={"DYN_USE_KV_EVENTS": "false"}) as stack:
        yield stack


@pytest.fixture
def stack(shared):
    engines = (*shared.prefills, *shared.decodes)
    for engine in engines:
        engine.control("POST", "/mock/reset")
    yield shared
    for state in wait_tidy(shared):
        assert not state["wrong_text"] and not state["deaths"] and not state["misrouted"], state
        assert not state.get("cancelled_in_transfer"), state
    for engine in engines:
        if shared.engine == "sglang":
            engine.wait(sglang__rooms__live=0, sglang__waiting_peers=0)
            assert engine.state()["sglang"]["aborts"]["of_all"] == 0
    answered(shared, chat("afterwards"))


def being_prefilled(stack, client):
    request = start(client, stack.port, LONG, path=CHAT)
    stack.prefills[0].wait(requests__running=1)
    return request


def prefilled_for_a_stream(stack, client):
    request = start(client, stack.port, {**LONG, "stream": True}, path=CHAT)
    stack.prefills[0].wait(requests__running=1)
    return request


def being_decoded(stack, client):
    # TensorRT-LLM's decode is left to its first byte, as blocks may still be on their way; of a whole answer that is its end.
    tokens = 100 if stack.engine == "trtllm" else MANY
    request = start(client, stack.port, chat("as a whole", max_tokens=tokens), path=CHAT)
    stack.prefills[0].wait(requests__finished=1)
    stack.decodes[0].wait(requests__running=1)
    return request


def streaming(stack, client):
    request = start(client, stack.port, chat("piece by piece", max_tokens=MANY, stream=True), path=CHAT)
    assert request.read_some() == 200
    return request


@pytest.mark.parametrize("client,how", [(client, how) for client in CLIENTS for how in CLIENTS[client].ways_to_leave])
@pytest.mark.parametrize("phase", [being_prefilled, prefilled_for_a_stream, being_decoded, streaming],
                         ids=lambda phase: phase.__name__)
def test_client_leaves(stack, phase, client, how):
    request = phase(stack, client)
    request.leave(how)
    wait_tidy(stack)
    request.close()
