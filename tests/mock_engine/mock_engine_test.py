"""Proves that the mock punishes what it promises to punish, and counts what it says it counts."""

import concurrent.futures
import gzip
import json
import signal
import socket

import pytest

from mock_engine_client import PATIENCE, MockEngine

PROMPT = "The quick brown fox jumps over the lazy dog, and then some more words to fill a block or two."
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ALL_APIS = {
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 5},
    CHAT: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 5},
    "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5},
    "/inference/v1/generate": {"token_ids": [50331649, 50331650], "sampling_params": {"max_tokens": 5}},
}


@pytest.fixture
def start():
    running = []

    def launch(*flags):
        running.append(MockEngine(*flags))
        return running[-1]

    yield launch
    for engine in running:
        engine.stop()


@pytest.fixture
def pair(start):
    return start("--role", "producer"), start("--role", "consumer")


def prefill_body(body, path=COMPLETIONS):
    out = json.loads(json.dumps(body))
    out.update(stream=False, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
    if path == "/inference/v1/generate":
        out["sampling_params"]["max_tokens"] = 1
    else:
        out["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 1
    return out


def prefill(engine, path=COMPLETIONS, body=None):
    reply = engine.post(path, prefill_body(body or ALL_APIS[path], path))
    assert reply.status == 200, reply.body
    return reply.json["kv_transfer_params"]


def decode(engine, params, path=COMPLETIONS, **more):
    return engine.post(path, {**ALL_APIS[path], "kv_transfer_params": params, **more})


def text_of(reply):
    return reply.json["choices"][0]["text"]


def raw_exchange(engine, data, shutdown=False):
    """Sends bytes, returns everything until the peer closes; a reset ends it too."""
    with socket.create_connection((engine.host, engine.port), timeout=PATIENCE) as s:
        s.sendall(data)
        if shutdown:
            s.shutdown(socket.SHUT_WR)
        out = b""
        try:
            while chunk := s.recv(65536):
                out += chunk
        except ConnectionResetError:
            return out, "reset"
        return out, "closed"


def raw_request(path, body, *headers):
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: mock", "Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


def open_request(engine, path, body, *headers):
    """A request whose reply nobody reads yet."""
    s = socket.create_connection((engine.host, engine.port), timeout=PATIENCE)
    s.sendall(raw_request(path, body, *headers))
    return s


# ---- The handoff ----


@pytest.mark.parametrize("path", ALL_APIS)
def test_complete_handoff_prefills_once_on_every_api(pair, path):
    p, d = pair
    params = prefill(p, path)
    assert list(params) == [
        "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id",
        "remote_host", "remote_port", "tp_size", "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode",
    ]  # fmt: skip
    reply = decode(d, params, path)
    expected = d.expect(path, ALL_APIS[path])
    if path == "/inference/v1/generate":
        assert reply.json["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    else:
        assert json.dumps(expected["text"])[1:-1] in reply.body.decode()
    tokens = expected["prompts"][0]["tokens"]
    on_p = p.wait(blocks_free="all", leases=0, requests=0)
    on_d = d.wait(blocks_free="all", requests=0)
    assert on_p["tokens"]["local_compute"] == tokens
    assert on_d["tokens"]["local_compute"] == 0
    assert on_d["tokens"]["external_kv_transfer"] == tokens
    assert on_p["leases"]["consumed"] == 1
    assert on_d["pulls"]["fresh"] == 1


def test_prefill_pins_the_prompts_blocks_until_decode_pulls(pair):
    p, d = pair
    params = prefill(p)
    state = p.state()
    assert state["blocks"]["pinned"] == len(params["remote_block_ids"][0]) == 2
    assert state["leases"]["live"] == 1
    decode(d, params)
    p.wait(blocks_free="all", leases=0)


def test_prefill_token_is_marked_and_differs_from_the_answer(pair):
    p, d = pair
    reply = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]))
    assert text_of(reply) == "<<PREFILL>>"
    assert "<<PREFILL>>" not in d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"]


def test_second_use_of_a_handoff_is_wrong_text_with_200(pair):
    p, d = pair
    params = prefill(p)
    decode(d, params)
    reply = decode(d, params)
    assert reply.status == 200
    assert text_of(reply).startswith("<<WRONG-KV>>")
    assert d.state()["wrong_text"] == 1 and d.state()["pulls"]["consumed"] == 1


def test_handoff_of_another_prompt_is_wrong_text(pair):
    p, d = pair
    params = prefill(p, body={"prompt": PROMPT.upper()})
    assert "<<WRONG-KV>>" in text_of(decode(d, params))
    assert d.state()["pulls"]["foreign"] == 1


def test_changed_block_ids_are_wrong_text(pair):
    p, d = pair
    params = prefill(p)
    params["remote_block_ids"][0][0] += 1000
    assert "<<WRONG-KV>>" in text_of(decode(d, params))


def test_expired_lease_frees_blocks_and_gives_wrong_text(start):
    p, d = start("--role", "producer", "--time-scale", "0.001"), start("--role", "consumer")
    params = prefill(p)
    state = p.wait(leases=0, blocks_free="all")
    assert state["leases"]["expired"] == 1
    assert "<<WRONG-KV>>" in text_of(decode(d, params))
    assert d.state()["pulls"]["expired"] == 1


def test_unknown_request_id_is_recomputed_with_right_text(pair):
    p, d = pair
    params = dict(prefill(p), remote_request_id="cmpl-never-seen")
    reply = decode(d, params)
    assert text_of(reply) == d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"]
    state = d.state()
    assert state["recomputed"] == 1 and state["tokens"]["local_compute"] > 0


@pytest.mark.parametrize("key", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"])
def test_missing_key_hangs_until_disconnect_and_leaks(pair, key):
    p, d = pair
    params = prefill(p)
    del params[key]
    s = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "kv_transfer_params": params})
    state = d.wait(requests__hanging=1)
    assert state["hung_incomplete"] == 1
    s.close()
    state = d.wait(requests=0)
    assert state["requests"]["aborted"] == 1
    assert state["blocks"]["leaked"] > 0


@pytest.mark.parametrize("ids", ["missing", None, []])
def test_missing_block_ids_kill_the_engine(pair, ids):
    p, d = pair
    params = prefill(p)
    params["remote_block_ids"] = ids
    if ids == "missing":
        del params["remote_block_ids"]
    assert decode(d, params).status == 500
    assert d.call("GET", "/health").status == 503
    assert d.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).status == 500
    assert d.state()["dead"] is True


def test_several_prompts_with_one_handoff_kill_the_engine(pair):
    p, d = pair
    assert decode(d, prefill(p), prompt=["a", "b"]).status == 500
    assert d.state()["dead"] is True


@pytest.mark.parametrize("key", ["tp_size", "remote_port"])
def test_whole_number_spelled_as_float_gives_zero_tokens(pair, key):
    p, d = pair
    params = prefill(p)
    params[key] = float(params[key])
    reply = decode(d, params)
    assert reply.status == 200 and text_of(reply) == ""
    assert reply.json["usage"]["completion_tokens"] == 0
    assert d.state()["zero_token"] == 1


def test_unreachable_prefill_engine_is_500_or_in_band_error(pair):
    p, d = pair
    params, again = prefill(p), prefill(p)
    p.stop()
    reply = decode(d, params)
    assert reply.status == 500
    assert reply.json == {
        "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    }
    stream = decode(d, again, stream=True)
    assert stream.status == 200
    assert stream.events() == [reply.json]
    assert stream.body.endswith(b"data: [DONE]\n\n")
    assert d.state()["kv_load_failures"] == 2


def test_recompute_policy_survives_an_unreachable_prefill_engine(start):
    p, d = start(), start("--kv-load-failure-policy", "recompute")
    params = prefill(p)
    p.stop()
    assert text_of(decode(d, params)) == d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"]
    assert d.state()["recomputed"] == 1


def test_wrong_engine_id_is_a_failed_load(pair):
    p, d = pair
    assert decode(d, dict(prefill(p), remote_engine_id="someone-else")).status == 500
    assert d.state()["pulls"]["mismatch"] == 1


@pytest.mark.parametrize("wrong", [{"remote_host": None}, {"remote_port": "5600"}, {"remote_port": 0}])
def test_keys_of_the_wrong_kind_are_a_failed_load(pair, wrong):
    p, d = pair
    assert decode(d, {**prefill(p), **wrong}).status == 500


def test_rejected_decode_releases_the_lease(pair):
    p, d = pair
    reply = decode(d, prefill(p), stream_options={"include_usage": True})
    assert reply.status == 400
    state = p.wait(leases=0, blocks_free="all")
    assert state["leases"]["released"] == 1
    assert d.state()["requests"]["rejected"] == 1


def test_decode_client_that_leaves_in_the_queue_releases_the_lease(start):
    p, d = start(), start("--max-running", "1", "--decode-us-per-token", "10000000")
    running = open_request(d, COMPLETIONS, ALL_APIS[COMPLETIONS])
    d.wait(requests__running=1)
    waiting = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "kv_transfer_params": prefill(p)})
    d.wait(requests__queued=1)
    waiting.close()
    assert p.wait(leases=0)["leases"]["released"] == 1
    running.close()
    d.wait(requests=0, blocks_free="all")


def test_decode_client_that_leaves_before_scheduling_releases_the_lease(pair):
    p, d = pair
    d.fault(action="delay", ms=600000, match={"role": "decode"})
    s = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "kv_transfer_params": prefill(p)})
    d.wait(fault_hits=1)
    s.close()
    assert p.wait(leases=0)["leases"]["released"] == 1


def test_decode_client_that_leaves_while_kv_loads_releases_the_lease(start):
    p, d = start(), start("--kv-load-ms", "600000")
    s = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "stream": True, "kv_transfer_params": prefill(p)})
    d.wait(requests__running=1)
    s.close()
    assert p.wait(leases=0, blocks_free="all")["leases"]["released"] == 1
    d.wait(requests=0, blocks_free="all")


def test_prefill_client_that_leaves_frees_at_once_and_pins_nothing(start):
    p = start("--ttft-ms", "600000")
    s = open_request(p, COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]))
    p.wait(requests__running=1)
    s.close()
    state = p.wait(requests=0, blocks_free="all")
    assert state["leases"]["created"] == 0 and state["requests"]["aborted"] == 1


def test_client_that_leaves_mid_stream_frees_decode_blocks(start):
    d = start("--decode-us-per-token", "1000000")
    s = open_request(d, COMPLETIONS, {"prompt": "x", "max_tokens": 1000, "stream": True})
    assert s.recv(15) == b"HTTP/1.1 200 OK"
    s.close()
    assert d.wait(requests=0, blocks_free="all")["requests"]["aborted"] == 1


def test_heartbeats_keep_a_lease_alive_only_with_tp_size(start):
    # Scaled: lease 600 ms, heartbeat 100 ms, extension 400 ms; the load takes longer than the lease.
    p = start("--time-scale", "0.02")
    d = start("--time-scale", "0.02", "--kv-load-ms", "1500")
    kept = decode(d, prefill(p))
    assert "<<WRONG-KV>>" not in text_of(kept)
    assert p.state()["heartbeats"]["received"] > 0
    params = prefill(p)
    del params["tp_size"]
    assert "<<WRONG-KV>>" in text_of(decode(d, params))


def test_stream_head_is_sent_before_the_kv_load(start):
    p, d = start(), start("--kv-load-ms", "600000")
    s = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "stream": True, "kv_transfer_params": prefill(p)})
    assert s.recv(15) == b"HTTP/1.1 200 OK"
    s.close()


# ---- What P hands out ----


def test_only_the_first_prompt_of_a_batch_is_handed_over(start):
    p = start()
    params = prefill(p, body={"prompt": ["one", "two", "three"]})
    state = p.state()
    assert state["leases"]["live"] == 3
    assert params["remote_num_tokens"] == 1


def test_streams_carry_no_params_except_the_final_responses_event(start):
    p = start()
    params = {"do_remote_decode": True}
    for path in (COMPLETIONS, CHAT, "/v1/messages", "/inference/v1/generate"):
        reply = p.post(path, {**ALL_APIS[path], "stream": True, "kv_transfer_params": params})
        assert reply.status == 200 and b"remote_request_id" not in reply.body
    events = p.post("/v1/responses", {**ALL_APIS["/v1/responses"], "stream": True, "kv_transfer_params": params}).events()
    assert events[-1]["response"]["kv_transfer_params"]["do_remote_prefill"] is True


def test_eos_first_and_old_release_give_null_params(start):
    body = {"prompt": PROMPT + "[[eos-first]]"}
    assert prefill(start(), body=body) is not None
    old = start("--null-params-on-stop")
    reply = old.post(COMPLETIONS, prefill_body(body))
    assert reply.json["kv_transfer_params"] is None
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    old.wait(blocks_free="all")


def test_role_none_ignores_params(start):
    engine = start("--role", "none")
    assert prefill(engine) is None
    assert engine.state()["leases"]["created"] == 0


def test_shapes_of_block_ids(start):
    assert len(prefill(start("--kv-groups", "3"))["remote_block_ids"]) == 3
    flat, d = start("--flat-block-ids"), start("--flat-block-ids")
    params = prefill(flat)
    assert all(isinstance(block, int) for block in params["remote_block_ids"])
    assert "<<WRONG-KV>>" not in text_of(decode(d, params))


@pytest.mark.parametrize("place", ["top-level", "extra-args", "both"])
def test_generate_reads_params_where_this_release_does(start, place):
    p = start("--generate-params", place)
    path = "/inference/v1/generate"
    want = {"do_remote_decode": True}
    top = p.post(path, {**ALL_APIS[path], "kv_transfer_params": want})
    nested = {"max_tokens": 1, "extra_args": {"kv_transfer_params": want}}
    extra = p.post(path, {**ALL_APIS[path], "sampling_params": nested})
    assert (top.json["kv_transfer_params"] is not None) == (place != "extra-args")
    assert (extra.json["kv_transfer_params"] is not None) == (place != "top-level")


def test_request_id_and_engine_id(start):
    p, other = start(), start()
    assert p.engine_id != other.engine_id
    reply = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]), {"X-Request-Id": "my-id"})
    assert reply.json["id"] == "cmpl-my-id"
    assert reply.json["kv_transfer_params"]["remote_request_id"].startswith("cmpl-my-id-0-")
    assert reply.json["kv_transfer_params"]["remote_engine_id"] == p.engine_id


def test_data_parallel_ranks(start):
    p, d = start("--data-parallel-size", "2"), start()
    reply = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]), {"X-data-parallel-rank": "1"})
    params = reply.json["kv_transfer_params"]
    assert params["remote_engine_id"].endswith("_dp1")
    assert "<<WRONG-KV>>" not in text_of(decode(d, params))
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"X-data-parallel-rank": "2"}).status == 400
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"X-data-parallel-rank": "x"}).status == 200


def test_prefix_cache_counts_local_hits(start):
    engine = start("--prefix-caching")
    engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS])
    reply = engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS])
    assert reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert engine.state()["tokens"]["local_cache_hit"] == 16


def test_chat_decode_may_bring_its_token_ids(pair):
    p, d = pair
    body = {**ALL_APIS[CHAT], "return_token_ids": True}
    reply = p.post(CHAT, prefill_body(body))
    params = dict(reply.json["kv_transfer_params"], prompt_token_ids=reply.json["prompt_token_ids"])
    answer = decode(d, params, CHAT)
    assert answer.json["choices"][0]["message"]["content"] == d.expect(CHAT, ALL_APIS[CHAT])["text"]


# ---- The frontend ----


@pytest.mark.parametrize(
    "path, change, status",
    [
        (COMPLETIONS, {"stream_options": {"include_usage": True}}, 400),
        (COMPLETIONS, {"min_tokens": 6}, 400),
        (COMPLETIONS, {"max_tokens": 0}, 400),
        (COMPLETIONS, {"max_tokens": "many"}, 400),
        (COMPLETIONS, {"prompt": None}, 400),
        (COMPLETIONS, {"prompt": []}, 400),
        (COMPLETIONS, {"kv_transfer_params": [1]}, 400),
        (COMPLETIONS, {"model": "nobody"}, 404),
        (COMPLETIONS, {"prompt": "x" * 500000}, 400),
        (COMPLETIONS, {"n": 128, "max_tokens": 100000}, 400),
        (CHAT, {"messages": []}, 400),
        (CHAT, {"messages": [{"content": "no role"}]}, 400),
        (CHAT, {"top_logprobs": 2}, 400),
        (CHAT, {"tool_choice": "required"}, 400),
        ("/inference/v1/generate", {"token_ids": []}, 400),
        ("/inference/v1/generate", {"sampling_params": None}, 400),
    ],
)
def test_bad_requests_get_the_openai_error_body(start, path, change, status):
    reply = start().post(path, {**ALL_APIS[path], **change})
    assert reply.status == status
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["type"] == {400: "BadRequestError", 404: "NotFoundError"}[status]


def test_framework_errors(start):
    engine = start("--api-key", "secret")
    assert engine.call("GET", "/nowhere").json == {"detail": "Not Found"}
    auth = {"Authorization": "Bearer secret"}
    reply = engine.call("GET", COMPLETIONS, headers=auth)
    assert reply.status == 405 and reply.json == {"detail": "Method Not Allowed"}
    reply = engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS])
    assert reply.status == 401 and reply.json == {"error": "Unauthorized"}
    assert engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS], auth).status == 200
    assert engine.call("GET", "/health").status == 200
    text = {"Content-Type": "text/plain", **auth}
    assert engine.call("POST", COMPLETIONS, "{}", text).status == 400
    assert engine.call("POST", COMPLETIONS, "{nope", {"Content-Type": "application/json", **auth}).status == 400


def test_hostile_bytes_do_not_kill_it(start):
    engine = start()
    deep = b"[" * 100000
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for data in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 400000,
        head + b"Content-Length: -5\r\n\r\n",
        head + b"Content-Length: 99999999999\r\n\r\n",
        head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        head + f"Content-Length: {len(deep)}\r\nConnection: close\r\n\r\n".encode() + deep,
        head + b"Content-Length: 5\r\nConnection: close\r\n\r\n\"\xff\xff\xff\"",
    ):
        raw_exchange(engine, data, shutdown=True)
    for text in ("1e999", '"\\ud800"', '{"prompt": 1e400}', "null", "[]", '{"prompt":"x","max_tokens":18446744073709551615}'):
        assert engine.call("POST", COMPLETIONS, text, {"Content-Type": "application/json"}).status == 400
    assert engine.call("GET", "/health").status == 200


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_stream_says_the_same_as_the_plain_answer(start, path):
    engine = start()
    body = {**ALL_APIS[path], "n": 2}
    plain = engine.post(path, body).json
    events = engine.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}}).events()
    texts = ["", ""]
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    whole = [c.get("text") or c["message"]["content"] for c in plain["choices"]]
    assert texts == whole and whole[0] != whole[1]
    assert whole == [c["text"] for c in engine.expect(path, body)["choices"]]
    assert events[-1]["choices"] == [] and events[-1]["usage"] == plain["usage"]


def test_answers_depend_on_prompt_and_model(start):
    engine = start("--model", "a", "--model", "b")
    texts = {
        text_of(engine.post(COMPLETIONS, {"prompt": prompt, "model": model}))
        for prompt in ("one", "two")
        for model in ("a", "b")
    }
    assert len(texts) == 4


def test_stop_string_ends_the_answer(start):
    engine = start()
    words = engine.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"].split()
    reply = engine.post(COMPLETIONS, {**ALL_APIS[COMPLETIONS], "stop": [words[2]]}).json
    choice = reply["choices"][0]
    assert choice["text"].split() == words[:2]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == words[2]


def test_tool_call_streams_to_the_same_arguments(start):
    engine = start()
    tool = {"type": "function", "function": {"name": "lookup", "parameters": {}}}
    body = {**ALL_APIS[CHAT], "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "lookup"}}}
    call = engine.post(CHAT, body).json["choices"][0]["message"]["tool_calls"][0]
    arguments = ""
    for event in engine.post(CHAT, {**body, "stream": True}).events():
        for part in event["choices"][0]["delta"].get("tool_calls", []):
            arguments += part["function"]["arguments"]
    assert call["function"]["name"] == "lookup"
    assert json.loads(arguments) == json.loads(call["function"]["arguments"])


def test_render_and_tokenize_agree_with_chat(start):
    engine = start()
    rendered = engine.post(CHAT + "/render", ALL_APIS[CHAT]).json
    tokens = engine.post("/tokenize", {"messages": ALL_APIS[CHAT]["messages"]}).json["tokens"]
    assert rendered["token_ids"] == tokens
    assert PROMPT in engine.post("/detokenize", {"tokens": tokens}).json["prompt"]
    generated = engine.post("/inference/v1/generate", rendered).json["choices"][0]["token_ids"]
    text = engine.post("/detokenize", {"tokens": generated}).json["prompt"]
    assert text == engine.post(CHAT, ALL_APIS[CHAT]).json["choices"][0]["message"]["content"]
    assert len(engine.post(COMPLETIONS + "/render", {"prompt": ["a", "b"]}).json) == 2


def test_small_routes(start):
    engine = start("--model", "a", "--model", "b")
    for path in ("/health", "/ping", "/version", "/load", "/metrics"):
        assert engine.call("GET", path).status == 200
    assert [m["id"] for m in engine.call("GET", "/v1/models").json["data"]] == ["a", "b"]
    assert len(engine.post("/v1/embeddings", {"input": ["x", "y"]}).json["data"]) == 2
    engine.post(COMPLETIONS, {"prompt": "abc"})
    metrics = engine.call("GET", "/metrics").body.decode()
    assert 'vllm:prompt_tokens_by_source_total{engine="0",model_name="a",source="local_compute"} 1' in metrics


def test_idle_connection_is_closed_after_the_keep_alive_time(start):
    engine = start("--keep-alive-ms", "50")
    with socket.create_connection((engine.host, engine.port), timeout=PATIENCE) as s:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        while chunk := s.recv(4096):
            data += chunk
    assert data.startswith(b"HTTP/1.1 200 OK") and b"connection: close" not in data.lower()


def test_pipelined_and_chunked_requests_are_answered(start):
    engine = start()
    body = json.dumps(ALL_APIS[COMPLETIONS]).encode()
    chunked = (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: close\r\nX-A: 1\r\nx-a: 2\r\n\r\n" + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    )
    out, _ = raw_exchange(engine, raw_request(COMPLETIONS, ALL_APIS[COMPLETIONS]) + chunked)
    assert out.count(b"HTTP/1.1 200 OK") == 2
    log = engine.control("GET", "/mock/requests").json["requests"]
    assert [r["framing"] for r in log] == ["content-length", "chunked"]
    assert log[1]["headers"][-2:] == [["X-A", "1"], ["x-a", "2"]]
    assert log[0]["body"] == log[1]["body"] == body.decode()
    assert log[0]["connection"] == log[1]["connection"]


def test_ipv6(start):
    p = start("--bind", "::1")
    assert prefill(p)["remote_host"] == "::1"


def test_many_requests_at_once_never_cross(pair):
    p, d = pair

    def one(i):
        body = {"prompt": f"{PROMPT} {i}", "max_tokens": 5}
        params = prefill(p, body=body)
        reply = d.post(COMPLETIONS, {**body, "kv_transfer_params": params})
        return text_of(reply) == d.expect(COMPLETIONS, body)["text"]

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(100)))
    p.wait(blocks_free="all", leases=0)
    d.wait(blocks_free="all", requests=0)
    assert d.state()["wrong_text"] == 0


def test_sigterm_ends_with_zero(start):
    engine = start()
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(PATIENCE) == 0


# ---- Faults and control ----


def faulty_exchange(engine, rule, *headers):
    engine.fault(**rule)
    return raw_exchange(engine, raw_request(COMPLETIONS, ALL_APIS[COMPLETIONS], "Connection: close", *headers))


def test_fault_status_is_matched_by_role_header_and_times(start):
    p = start()
    p.fault(action="status", status=503, headers=[["Retry-After", "7"]], body="busy", times=1, match={"role": "prefill"})
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).status == 200
    reply = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]))
    assert reply.status == 503 and reply.headers["Retry-After"] == "7" and reply.body == b"busy"
    assert p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS])).status == 200
    p.fault(action="status", status=500, match={"request_id": "r1"})
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"X-Request-Id": "r1"}).status == 500
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"X-Request-Id": "r2"}).status == 200
    rules = p.control("GET", "/mock/faults").json["rules"]
    assert [r["hits"] for r in rules] == [1, 1]
    p.control("DELETE", "/mock/faults")
    assert p.control("GET", "/mock/faults").json["rules"] == []


@pytest.mark.parametrize(
    "rule, size, end",
    [
        ({"action": "reset_at", "at": 20}, 20, "reset"),
        ({"action": "close_at", "at": 20}, 20, "closed"),
        ({"action": "close_at", "at": 0}, 0, "closed"),
    ],
)
def test_fault_cut_at_a_byte(start, rule, size, end):
    out, how = faulty_exchange(start(), rule)
    assert (len(out), how) == (size, end) or (end == "reset" and how == "reset")


def test_fault_cut_in_the_body(start):
    out, _ = faulty_exchange(start(), {"action": "close_at", "at_body": 10})
    assert len(out.split(b"\r\n\r\n", 1)[1]) == 10


def test_fault_refuse_and_die_reset_the_connection(start):
    engine = start()
    engine.fault(action="refuse", times=1)
    with pytest.raises(OSError):
        engine.call("GET", "/health")
    assert engine.call("GET", "/health").status == 200
    assert engine.control("POST", "/mock/die").status == 200
    with pytest.raises(OSError):
        engine.call("GET", "/health")
    assert engine.state()["dead"] is True
    assert engine.control("POST", "/mock/exit").status == 200
    assert engine.process.wait(PATIENCE) == 0


def test_fault_stall_is_noticed_as_an_abort(start):
    engine = start()
    engine.fault(action="stall")
    s = open_request(engine, COMPLETIONS, ALL_APIS[COMPLETIONS])
    engine.wait(fault_hits=1)
    s.close()
    engine.wait(connections=0)
    assert engine.control("GET", "/mock/requests").json["requests"][0]["outcome"] == "aborted"


@pytest.mark.parametrize(
    "kind, sign",
    [
        ("bad_chunk_size", b"\r\n\r\nzz\r\n"),
        ("chunked_and_length", b"content-length"),
        ("garbage_status", b"HTCPCP/x"),
        ("oversize_head", b"x-filler: aaaa"),
        ("long_length", b"content-length"),
        ("short_length", b"content-length"),
        ("no_final_chunk", b"transfer-encoding: chunked"),
    ],
)
def test_fault_framing(start, kind, sign):
    out, _ = faulty_exchange(start(), {"action": "framing", "kind": kind})
    assert sign in out
    if kind == "no_final_chunk":
        assert not out.endswith(b"0\r\n\r\n")
    if kind in ("long_length", "short_length"):
        head, body = out.split(b"\r\n\r\n", 1)
        said = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        assert (said > len(body)) == (kind == "long_length") and said != len(body)


def test_fault_early_response_before_the_body(start):
    engine = start()
    engine.fault(action="early_response", status=413, body="too big")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    out, _ = raw_exchange(engine, head)
    assert out.startswith(b"HTTP/1.1 413") and out.endswith(b"too big")


def test_fault_informational_redirect_http10_and_no_length(start):
    engine = start()
    out, _ = faulty_exchange(engine, {"action": "informational", "status": 103, "count": 2, "times": 1})
    assert out.count(b"HTTP/1.1 103") == 2 and b"HTTP/1.1 200" in out
    out, _ = faulty_exchange(engine, {"action": "redirect", "location": "http://127.0.0.1:1/", "times": 1})
    assert out.startswith(b"HTTP/1.1 307") and b"Location: http://127.0.0.1:1/" in out
    out, _ = faulty_exchange(engine, {"action": "http10", "times": 1})
    assert out.startswith(b"HTTP/1.0 200") and b"content-length" not in out
    out, _ = faulty_exchange(engine, {"action": "no_length", "times": 1})
    assert out.startswith(b"HTTP/1.1 200") and b"content-length" not in out and b"chunked" not in out


def test_fault_bodies(start):
    engine = start()
    out, _ = faulty_exchange(engine, {"action": "huge_body", "bytes": 3000000, "times": 1})
    assert len(out.split(b"\r\n\r\n", 1)[1]) == 3000000
    out, _ = faulty_exchange(engine, {"action": "non_json", "times": 1})
    assert b"<html>" in out
    engine.fault(action="sse", times=1)
    assert engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).body.startswith(b'data: {"id"')
    engine.fault(action="gzip", times=1)
    reply = engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"Accept-Encoding": "gzip"})
    assert reply.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(reply.body))["object"] == "text_completion"
    engine.fault(action="trickle", bytes=50, every_ms=1, times=1)
    assert engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).status == 200


def test_fault_close_idle_says_nothing_about_it(start):
    engine = start()
    engine.fault(action="close_idle")
    out, how = raw_exchange(engine, raw_request(COMPLETIONS, ALL_APIS[COMPLETIONS]))
    assert out.startswith(b"HTTP/1.1 200") and b"connection: close" not in out and how == "closed"


def test_fault_params_overrides(start):
    p = start()
    p.fault(action="params_patch", patch={"remote_port": "5600", "tp_size": None}, times=1)
    params = prefill(p)
    assert params["remote_port"] == "5600" and "tp_size" not in params
    p.fault(action="params_patch", patch=None, times=1)
    assert prefill(p) is None
    p.fault(action="params_raw", raw='{"remote_port":1.0,"a":1,"a":2}', times=1)
    assert b'"kv_transfer_params":{"remote_port":1.0,"a":1,"a":2}' in p.post(
        COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS])
    ).body
    p.fault(action="params_remove", times=1)
    assert "kv_transfer_params" not in p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS])).json


def test_fault_reject_releases_the_lease(pair):
    p, d = pair
    d.fault(action="reject", match={"role": "decode"})
    assert decode(d, prefill(p)).status == 400
    p.wait(leases=0)


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "no-such"},
        {"match": {}},
        {"action": "reset_at"},
        {"action": "status", "status": 5},
        {"action": "framing", "kind": "x"},
        {"action": "stall", "match": {"role": "boss"}},
        {"action": "stall", "match": {"paht": "/"}},
        {"action": "stall", "match": {"path": 5}},
    ],
)
def test_bad_fault_rules_are_refused(start, rule):
    assert start().control("POST", "/mock/faults", rule).status == 400


def test_soft_death_and_reset(start):
    engine = start()
    engine.control("POST", "/mock/dead", {"dead": True})
    assert engine.call("GET", "/health").status == 503
    assert engine.call("GET", "/mock/state").json["deaths"] == 1
    engine.control("POST", "/mock/dead", {"dead": False})
    assert engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).status == 200
    engine.control("POST", "/mock/reset")
    state = engine.state()
    assert state["requests"]["received"] == 0 and state["deaths"] == 0


def test_wait_times_out_with_408_and_names_unknown_conditions(start):
    engine = start()
    assert engine.control("GET", "/mock/wait?requests.running=1&timeout_ms=10").status == 408
    assert engine.control("GET", "/mock/wait?nonsense=1").status == 400
    assert engine.control("GET", "/mock/wait?requests.received=>=0&timeout_ms=10").status == 200


def test_log_keeps_bytes_that_are_not_text(start):
    engine = start()
    engine.call("POST", COMPLETIONS, b"\xff\xfe", {"Content-Type": "application/json"})
    entry = engine.control("GET", "/mock/requests").json["requests"][0]
    assert entry["body"] is None and entry["body_base64"] == "//4=" and entry["body_bytes"] == 2
    assert engine.control("DELETE", "/mock/requests").json["requests"] == []
