"""The whole path: client, real Envoy, Endpoint Picker, decode sidecar, two mock engines."""

import contextlib
import gzip
import json
import signal

import pytest
from harness.envoy_clients import start
from envoy_stack import JSON, Front, Stack, prompt
from epp_process import Epp
from harness.http2_client import Http2Client
from harness.http_client import Connection, Truncated, chunked, wire
from harness.limits import SCALE, wait_until
from harness.scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def shared():
    with contextlib.ExitStack() as stack:
        yield Stack(stack, {})


@pytest.fixture
def stack(shared):
    for engine in (shared.prefill, shared.decode):
        engine.control("POST", "/mock/reset")
    spurious = shared.envoy.counter("spurious_msgs_received")
    yield shared
    shared.epp.tell("tokenizer", "answer")
    for engine in (shared.prefill, shared.decode):
        engine.control("DELETE", "/mock/faults")
    shared.wait_tidy()
    assert shared.envoy.counter("spurious_msgs_received") == spurious


def test_whole_answer(stack):
    reply = stack.post(prompt())
    assert reply.status == 200, reply
    assert json.loads(reply.body)["choices"]
    assert [entry["target"] for entry in stack.prefill.control("GET", "/mock/requests").json["requests"]
            if entry["target"] != "/health"] == ["/v1/completions"]


def test_streamed_answer(stack):
    reply = stack.post(prompt(stream=True))
    assert reply.status == 200
    assert reply.body.endswith(b"data: [DONE]\n\n")


def test_long_prompt(stack):
    reply = stack.post(prompt(filler="x" * 5_000_000))
    assert reply.status == 200, reply


def test_chunked_request(stack):
    body = json.dumps(prompt()).encode()
    with stack.connect() as connection:
        connection.send(wire("POST", "/v1/completions", [JSON, ("Transfer-Encoding", "chunked")]) +
                        chunked([body[:10], body[10:]]))
        assert connection.read_response("POST").status == 200


def test_request_without_body(stack):
    with stack.connect() as connection:
        connection.send(wire("GET", "/v1/models"))
        assert connection.read_response().status == 200


def test_client_cannot_choose_the_prefill_engine(stack):
    reply = stack.post(prompt(), headers=[("x-prefiller-host-port", "127.0.0.1:1"),
                                          ("x-gateway-destination-endpoint", "127.0.0.1:1")])
    assert reply.status == 200


def test_client_leaves_while_tokens_are_waited_for(stack):
    stack.epp.tell("tokenizer", "hold")
    connection = stack.start(prompt(), path="/v1/chat/completions")
    wait_until(lambda: stack.epp.report()["planning"] == 1)
    connection.close()
    stack.epp.wait_tidy()


def test_client_leaves_during_the_answer(stack):
    connection = stack.start(prompt(stream=True, max_tokens=100_000))
    head = connection.read_head()
    assert head.status == 200
    connection.read_chunk(head)
    assert not stack.epp.is_tidy()
    connection.close()
    stack.wait_tidy()


def test_errors_of_the_endpoint_picker_reach_the_client(stack):
    stack.epp.tell("remove", "p0")
    reply = stack.post(prompt())
    assert reply.status == 503
    assert json.loads(reply.body)["error"]["code"] == "no_ready_endpoint"
    assert reply.header("retry-after") == "1"
    stack.epp.endpoint("p0", stack.prefill.port, "prefill")


def test_errors_of_the_engine_reach_the_client(stack):
    reply = stack.post(b"{}")
    assert 400 <= reply.status < 500


def test_endpoint_that_does_not_listen(stack):
    stack.epp.endpoint("d0", stack.sidecar.port, "decode", ready=False)
    stack.epp.endpoint("d9", 1, "decode")
    reply = stack.post(prompt())
    assert reply.status == 503
    stack.epp.tell("remove", "d9")
    stack.epp.endpoint("d0", stack.sidecar.port, "decode")
    assert stack.post(prompt()).status == 200


def test_request_with_trailers(stack):
    body = json.dumps(prompt()).encode()
    with stack.connect() as connection:
        connection.send(wire("POST", "/v1/completions", [JSON, ("Transfer-Encoding", "chunked"), ("Trailer", "x-sum")]) +
                        chunked([body], last=False) + b"0\r\nx-sum: 7\r\n\r\n")
        assert connection.read_response("POST").status == 200


@pytest.fixture
def played(stack):
    """The destination is an engine that the test plays."""
    with ScriptedEngine() as engine:
        stack.epp.endpoint("d0", stack.sidecar.port, "decode", ready=False)
        stack.epp.endpoint("d8", engine.port, "decode")
        yield engine
        stack.epp.tell("remove", "d8")
        stack.epp.endpoint("d0", stack.sidecar.port, "decode")


def test_compressed_request_passes_unread(stack, played):
    sent = gzip.compress(json.dumps(prompt()).encode())
    with stack.start(sent, headers=[("Content-Encoding", "gzip")]) as connection:
        exchange = played.next()
        assert exchange.body() == sent and exchange.header("content-encoding") == "gzip"
        packed = gzip.compress(b'{"choices": []}')
        exchange.reply(packed, headers=[("Content-Type", "application/json"), ("Content-Encoding", "gzip")])
        reply = connection.read_response("POST")
        assert reply.status == 200 and reply.header("content-encoding") == "gzip" and reply.body == packed


@pytest.mark.parametrize("pieces", [[], [b"data: 1\n\n"], [b"x" * 70_000, b"y" * 70_000]])
def test_response_trailers(stack, played, pieces):
    with stack.start(prompt(stream=True)) as connection:
        exchange = played.next()
        exchange.begin_stream([("Content-Type", "text/event-stream"), ("Trailer", "x-sum")])
        for piece in pieces:
            exchange.chunk(piece)
        exchange.send(b"0\r\nx-sum: 7\r\n\r\n")
        exchange.done()
        received = b""
        while not received.endswith(b"x-sum: 7\r\n\r\n"):
            data = connection.socket.recv(65536)
            assert data, received[-200:]
            received += data
        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        body = received.split(b"\r\n\r\n", 1)[1]
        assert sum(body.count(byte) for byte in (b"x", b"y")) == sum(piece.count(b"x") + piece.count(b"y") for piece in pieces) + 1
        if pieces == [b"data: 1\n\n"]:
            assert b"data: 1\n\n\r\n0\r\n" in body


def test_trailers_both_ways(stack, played):
    body = json.dumps(prompt()).encode()
    with stack.connect() as connection:
        connection.send(wire("POST", "/v1/completions", [JSON, ("Transfer-Encoding", "chunked"), ("Trailer", "x-sum")]) +
                        chunked([body], last=False) + b"0\r\nx-sum: 7\r\n\r\n")
        exchange = played.next()
        assert exchange.body() == body
        exchange.begin_stream()
        exchange.chunk(b"data: [DONE]\n\n")
        exchange.send(b"0\r\nx-sum: 8\r\n\r\n")
        exchange.done()
        received = b""
        while not received.endswith(b"0\r\nx-sum: 8\r\n\r\n"):
            data = connection.socket.recv(65536)
            assert data, received
            received += data


def test_many_requests_on_one_http2_connection(stack):
    client = Http2Client(stack.envoy.port)
    sent = [client.post("/v1/completions", json.dumps(prompt(stream=number % 2 == 0, filler="x" * size)).encode(),
                        trailers=[("x-sum", "7")] if number % 3 == 0 else [])
            for number, size in enumerate((10, 200_000, 10, 70_000, 0, 62_000, 300, 1_000_000) * 3)]
    client.until(lambda: client.ended >= set(sent))
    assert {client.headers[stream][":status"] for stream in sent} == {"200"}
    assert all(client.data[stream].endswith(b"data: [DONE]\n\n") for stream in sent[::2])
    assert all(json.loads(client.data[stream])["choices"] for stream in sent[1::2])
    client.close()


def pipelined(stack, played, count):
    """A client that reads nothing, with so many requests sent; the first answer is more than its connection takes."""
    connection = Connection(stack.envoy.narrow_port, receive_buffer=4096)
    connection.send(wire("POST", "/v1/completions", [JSON], json.dumps(prompt()).encode()) * count)
    played.next().reply(b"1" * 500_000)
    played.next().reply(b"2")  # asked for when all of the first is in Envoy's hands
    return connection


def test_pipelining_within_envoys_limit(stack, played):
    connection = pipelined(stack, played, 2)
    assert connection.read_response("POST").body == b"1" * 500_000
    connection.send(wire("POST", "/v1/completions", [JSON], json.dumps(prompt()).encode()))
    assert connection.read_response("POST").body == b"2"
    played.next().reply(b"3")
    assert connection.read_response("POST").body == b"3"
    connection.close()


def test_pipelining_beyond_envoys_limit(stack, played):
    """Envoy holds two answers for a client that does not take them; at a third request it ends the connection."""
    before = stack.envoy.counter("http1.response_flood")
    connection = pipelined(stack, played, 3)
    wait_until(lambda: stack.envoy.counter("http1.response_flood") == before + 1)
    assert connection.read_response("POST").body == b"1" * 500_000
    last = connection.read_response("POST")
    assert last.body == b"2" and last.header("connection") is None, "it does not say so"
    assert connection.expect_closed() == "fin"
    played.expect_nothing()
    connection.close()


def test_http2_client_that_leaves(stack):
    """A stream that its client resets, while another on the same connection goes on."""
    client = Http2Client(stack.envoy.port)
    left = client.post("/v1/completions", json.dumps(prompt(stream=True, max_tokens=100_000)).encode())
    client.until(lambda: client.data[left])
    client.reset(left)
    stack.epp.wait_tidy()
    other = client.post("/v1/completions", json.dumps(prompt(stream=True)).encode())
    client.until(lambda: other in client.ended)
    assert client.data[other].endswith(b"data: [DONE]\n\n")
    client.close()


@pytest.fixture
def own():
    with contextlib.ExitStack() as stack:
        made = Stack(stack, {"DYN_EPP_MAX_INFLIGHT_REQUESTS": "1"})
        yield made
        made.epp.wait_tidy()


def test_decode_engine_dies_during_the_answer(own):
    connection = own.start(prompt(stream=True, max_tokens=100_000))
    head = connection.read_head()
    connection.read_chunk(head)
    own.decode.process.kill()
    own.decode.process.wait()
    own.epp.wait_tidy()
    connection.close()


def test_more_requests_than_are_planned_at_a_time(own):
    own.epp.tell("tokenizer", "hold")
    waiting = own.start(prompt(), path="/v1/chat/completions")
    wait_until(lambda: own.epp.report()["planning"] == 1)
    refused = own.post(prompt())
    assert refused.status == 429
    assert json.loads(refused.body)["error"]["type"] == "rate_limit_error"
    assert refused.header("retry-after") == "1"
    waiting.close()


def test_endpoint_picker_dies_during_an_answer(own):
    connection = own.start(prompt(stream=True, max_tokens=100_000))
    head = connection.read_head()
    connection.read_chunk(head)
    own.epp.process.kill()
    own.epp.process.wait()
    with pytest.raises(Truncated):  # visibly: an answer that ends early must not look complete
        while connection.read_chunk(head):
            pass
    own.decode.wait(requests=0, blocks_free="all", leases=0)
    own.prefill.wait(requests=0, blocks_free="all", leases=0)
    own.epp = NoEpp()


def test_endpoint_picker_dies_while_it_plans(own):
    own.epp.tell("tokenizer", "hold")
    with own.start(prompt(), path="/v1/chat/completions") as connection:
        wait_until(lambda: own.epp.report()["planning"] == 1)
        own.epp.process.kill()
        reply = connection.read_response("POST")
        assert reply.status >= 500, reply  # Envoy's own: the request was sent to nobody
    own.epp = NoEpp()
    assert own.decode.control("GET", "/mock/requests").json["requests"][-1]["target"] == "/health"


def test_endpoint_picker_hangs_while_it_plans():
    """Its connection's keepalive ends the request: Envoy times no message in full duplex."""
    with contextlib.ExitStack() as stack:
        front = Front(stack, to_the_picker={"connection_keepalive": {"interval": "0.2s", "timeout": f"{2 * SCALE}s"}})
        front.epp.endpoint("p0", 1, "prefill")
        front.epp.endpoint("d0", 1, "decode")
        front.epp.tell("tokenizer", "hold")
        request = start("http1", front.envoy.port, prompt(), path="/v1/chat/completions")
        wait_until(lambda: front.epp.report()["planning"] == 1)
        front.epp.process.send_signal(signal.SIGSTOP)
        try:
            assert request.read().status == 500
        finally:
            front.epp.process.send_signal(signal.SIGCONT)
        request.close()
        front.epp.wait_tidy()


def test_endpoint_picker_starts_again(own):
    assert own.post(prompt()).status == 200
    own.epp.stop()
    reply = own.post(prompt())
    assert reply.status >= 500
    own.epp = Epp({"DYN_SECURE_SERVING": "true", "DYN_EPP_GRPC_PORT": str(own.epp.port)})
    try:
        own.epp.endpoint("p0", own.prefill.port, "prefill")
        own.epp.endpoint("d0", own.sidecar.port, "decode")
        own.epp.tell("synced", 1)
        wait_until(lambda: own.post(prompt()).status == 200)
        own.epp.wait_tidy()
    finally:
        stopped = own.epp
        own.epp = NoEpp()
        stopped.stop()


class NoEpp:
    def wait_tidy(self):
        pass
