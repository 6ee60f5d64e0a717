"""The OpenAI side: validation, error bodies, streams, connections."""

import concurrent.futures
import json
import signal
import socket

import pytest

from exchanges import ALL_APIS, CHAT, COMPLETIONS, PROMPT, decode, prefill, raw_exchange, raw_request, text_of
from mock_engine_client import PATIENCE


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


@pytest.mark.parametrize("value, streams", [(True, True), (1, True), (1.0, True), ("true", True), ("On", True), ("Y", True), (0, False),
                                            ("off", False), (2, None), ("", None), ([], None)])
def test_switches_are_read_as_pydantic_reads_them(start, value, streams):
    reply = start().post(COMPLETIONS, {**ALL_APIS[COMPLETIONS], "stream": value})
    assert reply.status == (400 if streams is None else 200)
    if streams is not None:
        assert reply.body.startswith(b"data:") == streams


def test_min_tokens_put_off_ends_and_stop_strings(start):
    engine = start()
    stop = {"stop": ["a", "e", "i", "o", "u"]}
    for more, words, tokens, reason in [({}, " [[eos-first]]", 1, "stop"), ({"min_tokens": 1}, " [[eos-first]]", 1, "length"),
                                        (stop, "", 1, "stop"), ({**stop, "min_tokens": 1}, "", 1, "length")]:
        reply = engine.post(COMPLETIONS, {**ALL_APIS[COMPLETIONS], "prompt": PROMPT + words, "max_tokens": tokens, **more}).json
        assert reply["choices"][0]["finish_reason"] == reason, (more, words)


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
