"""The TensorRT-LLM personality: what a context and a generation worker answer, and what they punish."""

import concurrent.futures
import hashlib
import hmac
import json

import pytest
from mock_engine_client import MockEngine

CHAT = "/v1/chat/completions"
BODY = {"model": "mock-model", "messages": [{"role": "user", "content": "Tell me of sheep"}], "max_tokens": 5}
FIRST_ID = 2**50


@pytest.fixture
def pair():
    """pair(flags of both, of context, of generation)"""
    engines = []

    def make(both=(), context=(), generation=()):
        for role, flags in (("producer", context), ("consumer", generation)):
            engines.append(MockEngine("--engine", "trtllm", "--role", role, *both, *flags))
        return engines[-2:]

    yield make
    for engine in engines:
        engine.stop()


def context_of(engine, number=0, body=BODY, **more):
    params = {"request_type": "context_only", "disagg_request_id": FIRST_ID + number, **more}
    return engine.post(CHAT, {**body, "disaggregated_params": params})


def generation_body(reply, body=BODY, **changes):
    params = {**reply.json["choices"][0]["disaggregated_params"], "request_type": "generation_only", **changes}
    return {**body, "prompt_token_ids": reply.json["prompt_token_ids"], "disaggregated_params": params}


def text_of(reply):
    return reply.json["choices"][0]["message"]["content"]


def test_handoff_gives_the_right_text_and_frees_context(pair):
    context, generation = pair()
    reply = context_of(context)
    assert context.state()["leases"]["live"] == 1
    params = reply.json["choices"][0]["disaggregated_params"]
    assert params["ctx_request_id"] > 2**53 and params["disagg_request_id"] == FIRST_ID
    answer = generation.post(CHAT, generation_body(reply))
    assert text_of(answer) == generation.expect(CHAT, BODY)["text"]
    assert text_of(answer).startswith(text_of(reply)), "generation replays the first token"
    context.wait(blocks_free="all", leases=0)
    assert generation.state()["tokens"]["local_compute"] == 0


def test_context_that_stops_at_once_hands_nothing_over(pair):
    context, _ = pair()
    reply = context_of(context, body={**BODY, "messages": [{"role": "user", "content": "[[eos-first]]"}]})
    choice = reply.json["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["disaggregated_params"]["ctx_request_id"] is None
    assert context.state()["leases"]["created"] == 0


def test_streams_carry_no_parameters(pair):
    context, _ = pair()
    events = context_of(context, body={**BODY, "stream": True}).events()
    assert not any("disaggregated_params" in json.dumps(event) for event in events)
    context.times_up()
    context.wait(leases__expired=1, blocks_free="all")


@pytest.mark.parametrize("changes", [{"ctx_request_id": 7}, {"ctx_request_id": float(2**53)}, {"encoded_opaque_state": "AAAA"}],
                         ids=["unknown", "rounded", "state"])
def test_generation_hangs_on_ids_that_nobody_knows(pair, changes):
    context, generation = pair()
    generation.times_up()
    reply = generation.post(CHAT, generation_body(context_of(context), **changes))
    assert reply.status == 500 and "timed out" in reply.json["message"]
    assert generation.state()["hung_incomplete"] == 1
    generation.wait(blocks_free="all", requests=0)


def test_handoff_is_good_for_one_use(pair):
    context, generation = pair()
    body = generation_body(context_of(context))
    assert generation.post(CHAT, body).status == 200
    assert generation.post(CHAT, body).status == 500
    assert generation.state()["duplicate_ids"] == 1
    assert context_of(context).status == 500, "context too"


def test_other_prompt_or_first_token_shows_in_the_text(pair):
    context, generation = pair()
    other = generation_body(context_of(context, 1))
    other["prompt_token_ids"] = other["prompt_token_ids"][:-1]
    assert text_of(generation.post(CHAT, other)).startswith("<<WRONG-KV>>")
    assert text_of(generation.post(CHAT, generation_body(context_of(context, 2), first_gen_tokens=[1]))).startswith("<<WRONG-KV>>")


@pytest.mark.parametrize("more,status", [({"later": 1}, 400), ({"disagg_request_id": 5}, 400), ({"request_type": "x"}, 400),
                                         ({"ctx_request_id": 1.5}, 400), ({"schedule_style": 2}, 400)])
def test_schema_is_strict(pair, more, status):
    context, _ = pair()
    reply = context_of(context, **more)
    assert reply.status == status and reply.json["object"] == "error"


def test_batches_are_refused(pair):
    context, _ = pair()
    assert context_of(context, body={**BODY, "n": 2}).status == 400


def test_signature_is_checked(pair):
    context, generation = pair(generation=("--auth-key", "k"))
    body = generation_body(context_of(context))
    payload = {"ctx_info_endpoint": None, "encoded_opaque_state": body["disaggregated_params"]["encoded_opaque_state"]}
    text = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
    right = "sha256=" + hmac.new(b"k", text, hashlib.sha256).hexdigest()
    for wrong in ({}, {"x-trtllm-disagg-auth": "sha256=00"}, {"x-trtllm-disagg-auth": right[7:]}):
        assert generation.post(CHAT, body, wrong).status == 400
    assert generation.post(CHAT, body, {"x-trtllm-disagg-auth": right}).status == 200
    assert generation.state()["unsigned_requests"] == 3


def test_client_that_leaves_during_the_transfer_costs_blocks(pair):
    context, generation = pair(generation=("--kv-load-ms", "5000"))
    body = generation_body(context_of(context))
    connection = generation.connect()
    connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
    generation.wait(requests__running=1)
    connection.close()
    state = generation.wait(requests=0)
    assert state["cancelled_in_transfer"] == 1 and state["blocks"]["leaked"] > 0


@pytest.mark.parametrize("first", ["context", "generation"])
def test_generation_first_engines_wait_for_each_other(pair, first):
    context, generation = pair()
    info = context.call("GET", "/server_info").json["disaggregated_params"]
    ids = {"disagg_request_id": FIRST_ID, "schedule_style": 1}
    asked = {
        "context": (context, {**BODY, "disaggregated_params": {"request_type": "context_only", **ids}}),
        "generation": (generation, {**BODY, "disaggregated_params": {
            "request_type": "generation_only", **ids, "ctx_request_id": FIRST_ID, "ctx_dp_rank": info["ctx_dp_rank"],
            "ctx_info_endpoint": info["ctx_info_endpoint"][0]}}),
    }
    second = "generation" if first == "context" else "context"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        early = pool.submit(asked[first][0].post, CHAT, asked[first][1])
        asked[first][0].wait(requests__running=1)
        assert not early.done()
        late = pool.submit(asked[second][0].post, CHAT, asked[second][1])
        replies = {first: early.result(), second: late.result()}
    assert text_of(replies["generation"]) == generation.expect(CHAT, BODY)["text"]
    assert replies["context"].status == 200
    context.wait(blocks_free="all", leases=0)


def test_context_without_a_partner_gives_up(pair):
    context, _ = pair(both=("--time-scale", "0.02"))
    assert context_of(context, schedule_style=1).status == 500
    context.wait(blocks_free="all", requests=0)


def test_other_routes(pair):
    context, _ = pair()
    assert context.call("GET", "/health").status == 200
    assert context.call("GET", "/v1/models").json["data"][0]["id"] == "mock-model"
    assert context.call("POST", "/kv_cache_events").json == []
    assert context.call("POST", "/tokenize", {"prompt": "x"}).status == 404
    assert context.call("GET", CHAT).status == 405
    assert context.post(CHAT, BODY, {"x-trtllm-msgpack": "1"}).status == 400
