"""Client, real Envoy, Endpoint Picker, sidecar, two engines: that a request comes back as the engine answered it, whatever it
looks like, and leaves nothing behind."""

import gzip
import json
import shutil
import socket
import subprocess

import pytest
from harness.limits import PATIENCE
from harness.stack import CHAT, QUICK, answered, chat, expected_text, start_stack, wait_tidy


@pytest.fixture(scope="module")
def shared():
    with start_stack(flags=QUICK) as stack:
        yield stack


@pytest.fixture
def stack(shared):
    engines = (*shared.prefills, *shared.decodes)
    for engine in engines:
        engine.control("POST", "/mock/reset")
    yield shared
    states = wait_tidy(shared)
    assert not any(state["wrong_text"] or state["deaths"] or state["misrouted"] for state in states)


def legs(stack):
    """Prefill and decode requests, by engine."""
    return ([engine.state()["prefill_requests"] for engine in stack.prefills],
            [engine.state()["decode_requests"] for engine in stack.decodes])


def test_answer_of_a_pair(stack):
    body = chat("What does a pair of engines say?")
    answer = answered(stack, body)
    assert answer["choices"][0]["message"]["content"] == expected_text(stack, body)
    prefills, decodes = legs(stack)
    assert sum(prefills) == sum(decodes) == 1
    computed = [engine.state()["tokens"]["local_compute"] for engine in stack.decodes]
    assert sum(computed) == 0, "decode computed the prompt again"


def test_streamed_answer(stack):
    body = chat("And piece by piece?", stream=True)
    status, headers, data = stack.post(CHAT, body)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in data.decode().splitlines()
              if line.startswith("data: ") and line != "data: [DONE]"]
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    assert text == expected_text(stack, body) and data.rstrip().endswith(b"data: [DONE]")
    assert sum(legs(stack)[1]) == 1


def test_completions_and_token_prompts(stack):
    for prompt in ("plain text", [50331649, 50331650]):
        body = {"model": "mock-model", "prompt": prompt, "max_tokens": 4}
        answer = answered(stack, body, "/v1/completions")
        assert answer["choices"][0]["text"] == expected_text(stack, body, "/v1/completions")
    assert sum(legs(stack)[0]) == 2


def test_body_arrives_as_it_was_sent(stack):
    raw = b'{"model" : "mock-model", "temperature":1.0, "seed":9007199254740993, "messages":[{"role":"user","content":"\\u00e9"}],"x":1e400}'
    status, _, data = stack.post(CHAT, raw)
    assert status in (200, 400), data  # 1e400 is the engine's to judge
    seen = [entry for engine in stack.decodes for entry in engine.control("GET", "/mock/requests").json["requests"]
            if entry["method"] == "POST"]
    assert len(seen) <= 1
    for entry in seen:
        assert '"seed":9007199254740993' in entry["body"] and '"model" : "mock-model"' in entry["body"]


def test_requests_without_a_body_reach_an_engine(stack):
    connection = stack.connect()
    connection.request("GET", "/v1/models")
    response = connection.getresponse()
    assert response.status == 200 and json.loads(response.read())["data"][0]["id"] == "mock-model"
    connection.close()
    assert legs(stack) == ([0, 0], [0, 0])


def test_engines_errors_come_through(stack):
    status, _, data = stack.post(CHAT, chat("x", max_tokens=-1))
    assert status == 400 and json.loads(data)["error"]["type"] == "BadRequestError"
    status, _, data = stack.post(CHAT, b"{not json")
    assert status == 400
    assert stack.post("/nowhere", {})[0] == 404


def test_client_can_not_choose_the_engines(stack):
    evil = {"x-gateway-destination-endpoint": "127.0.0.1:1", "x-prefiller-host-port": "127.0.0.1:1"}
    answered(stack, chat("spoofed"), headers=evil)
    prefills, decodes = legs(stack)
    assert sum(prefills) == sum(decodes) == 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_http2_client(stack):
    body = chat("over HTTP/2")
    done = subprocess.run(["curl", "-s", "--http2-prior-knowledge", "-w", "%{http_version} %{http_code}", "-H",
                           "content-type: application/json", "-d", json.dumps(body), stack.url + CHAT],
                          capture_output=True, text=True, timeout=PATIENCE, check=True)
    answer, version = done.stdout.rsplit("}", 1)
    assert version == "2 200"
    assert json.loads(answer + "}")["choices"][0]["message"]["content"] == expected_text(stack, body)


def test_gzip_passes_untouched(stack):
    for engine in stack.decodes:
        engine.fault(match={"path": CHAT}, action="gzip", always=True)
    body = chat("compressed")
    status, headers, data = stack.post(CHAT, body, {"Accept-Encoding": "gzip"})
    for engine in stack.decodes:
        engine.control("DELETE", "/mock/faults")
    assert status == 200 and headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(data))["choices"][0]["message"]["content"] == expected_text(stack, body)


def test_request_trailers_end_the_body(stack):
    body = json.dumps(chat("with trailers")).encode()
    request = (f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
               f"Trailer: x-sum\r\nConnection: close\r\n\r\n").encode()
    half = len(body) // 2
    for piece in (body[:half], body[half:]):
        request += f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    request += b"0\r\nx-sum: 1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", stack.port), timeout=PATIENCE) as client:
        client.sendall(request)
        answer = b""
        while data := client.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 200")
    assert expected_text(stack, chat("with trailers")).encode() in answer


def test_client_that_leaves_frees_everything(stack):
    for engine in stack.decodes:
        engine.fault(match={"role": "decode"}, action="stall_at", at_body=1)
    connection = stack.connect()
    connection.request("POST", CHAT, json.dumps(chat("gone", stream=True)), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()
    wait_tidy(stack)
    for engine in stack.decodes:
        engine.control("DELETE", "/mock/faults")


def test_client_that_leaves_during_prefill_frees_everything(stack):
    for engine in stack.prefills:
        engine.fault(match={"role": "prefill"}, action="stall")
    connection = stack.connect()
    connection.request("POST", CHAT, json.dumps(chat("gone early")), {"Content-Type": "application/json"})
    served = [engine for engine in stack.prefills]
    seen = lambda: any(e["leg"] == "prefill" for engine in served  # noqa: E731
                       for e in engine.control("GET", "/mock/requests").json["requests"])
    from harness.limits import wait_until
    wait_until(seen)
    connection.close()
    wait_tidy(stack)
    for engine in stack.prefills:
        engine.control("DELETE", "/mock/faults")


def test_large_request():
    """5 MB, of which a tenth is prompt: the bytes are the point, and engines take their time for each token."""
    flags = (*QUICK, "--max-model-len", "400000", "--blocks", "30000")
    with start_stack(flags=flags, renderer_flags=("--max-model-len", "400000", "--blocks", "30000")) as stack:
        body = chat("word " * 100_000, metadata={"attached": "x" * 4_500_000})
        answer = answered(stack, body)
        assert answer["usage"]["prompt_tokens"] > 160_000
        assert answer["choices"][0]["message"]["content"] == expected_text(stack, body)
        wait_tidy(stack)
