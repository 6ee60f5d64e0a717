"""SGLang: answers, the pair of requests, log-probabilities (S01 to S12, S60 of backends/sglang/PROTOCOL.md)."""

import concurrent.futures
import json

import pytest
from harness.sglang_rig import (  # noqa: F401, F811 (fixtures)
    BODIES, CHAT, COMPLETIONS, EVENT, GENERATE, PATHS, PROMPT, STREAMS, engines, good_prefill, pd, played, sglang_rig,
    streamed_text, text_of,
)


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


def test_s03_usage_says_what_prefill_had_in_its_cache():
    report = ("--enable-cache-report",)
    with sglang_rig(prefill=("--prefix-caching", *report), decode=report) as pd:
        for cached_before in (False, True):
            usage = pd.post({**BODIES[CHAT], "messages": [{"role": "user", "content": PROMPT * 8}]}, CHAT).json["usage"]
            cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
            assert (cached > usage["prompt_tokens"] // 2) is cached_before, usage


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


def test_s12_a_name_that_is_spelled_by_numbers_is_the_same_name(pd):
    """Two samples in one room end both engines: the rig finds them damaged if this one gets through."""
    for params in (b'{"max_new_tokens":2,"\\u006e":2}', b'{"n":1,"\\u006E":2}', b'[{"\\u006e":2}]'):
        pd.post(b'{"text":"a","sampling_params":' + params + b"}", GENERATE).refused(400, "unsupported_pd_request")
    assert pd.legs(pd.prefill) == pd.legs(pd.decode) == []


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
