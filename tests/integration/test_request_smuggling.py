"""Requests that two servers could read differently: refused, the connection closed, and nothing reaches an engine."""

import pytest
from harness.http_client import Truncated, wire

CHUNKED = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GENERATE = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"


def head(*lines, first="POST /v1/models HTTP/1.1", host="Host: h"):
    return "\r\n".join([line for line in (first, host, *lines) if line is not None] + ["", ""]).encode("latin-1")


def nothing_reached_the_engine(front):
    """One loop serves all: had an earlier request been sent on, it would come first."""
    with front.connect() as client:
        client.send(wire("GET", "/canary"))
        exchange = front.decode.next()
        assert exchange.target == "/canary", exchange.head
        exchange.reply()
        client.read_response()


HEADS = {
    "cl-te": head("Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + SMUGGLED,
    "te-cl": head("Transfer-Encoding: chunked", "Content-Length: 4") + b"0\r\n\r\n" + SMUGGLED,
    "two-cl-equal": head("Content-Length: 3", "Content-Length: 3") + b"abc",
    "two-cl-different": head("Content-Length: 3", "Content-Length: 60") + b"abc",
    "cl-list-equal": head("Content-Length: 3, 3") + b"abc",
    "cl-list": head("Content-Length: 3,4") + b"abc",
    "cl-plus": head("Content-Length: +3") + b"abc",
    "cl-minus": head("Content-Length: -3") + b"abc",
    "cl-hex": head("Content-Length: 0x3") + b"abc",
    "cl-space-inside": head("Content-Length: 3 0") + b"abc",
    "cl-empty": head("Content-Length:") + b"abc",
    "cl-letters": head("Content-Length: three") + b"abc",
    "cl-beyond-64-bits": head("Content-Length: 18446744073709551617") + b"a",
    "cl-fraction": head("Content-Length: 3.0") + b"abc",
    "te-other": head("Transfer-Encoding: gzip") + b"0\r\n\r\n",
    "te-identity": head("Transfer-Encoding: identity") + b"0\r\n\r\n",
    "te-list": head("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
    "te-chunked-first": head("Transfer-Encoding: chunked, gzip") + b"0\r\n\r\n",
    "te-chunked-twice": head("Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n",
    "te-two-lines": head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "te-two-lines-other": head("Transfer-Encoding: chunked", "Transfer-Encoding: x") + b"0\r\n\r\n",
    "te-like": head("Transfer-Encoding: xchunked") + b"0\r\n\r\n",
    "te-parameter": head("Transfer-Encoding: chunked;a=b") + b"0\r\n\r\n",
    "te-quoted": head('Transfer-Encoding: "chunked"') + b"0\r\n\r\n",
    "te-empty": head("Transfer-Encoding:") + b"0\r\n\r\n",
    "te-vertical-tab": head("Transfer-Encoding: \x0bchunked") + b"0\r\n\r\n",
    "te-in-1.0": head("Transfer-Encoding: chunked", first="POST /x HTTP/1.0") + b"0\r\n\r\n",
    "te-in-1.0-keep-alive": head("Transfer-Encoding: chunked", "Connection: keep-alive",
                                 first="POST /x HTTP/1.0") + b"0\r\n\r\n",
    "te-and-cl-in-1.0": head("Transfer-Encoding: chunked", "Content-Length: 3", first="POST /x HTTP/1.0") + b"0\r\n\r\n",
    "obs-fold": head("X-A: 1\r\n folded"),
    "obs-fold-tab": head("X-A: 1\r\n\tfolded"),
    "obs-fold-te": head("Transfer-Encoding:\r\n chunked") + b"0\r\n\r\n",
    "obs-fold-first": head(host="  Host: h"),
    "bare-lf": b"GET /v1/models HTTP/1.1\nHost: h\n\n",
    "bare-lf-one-line": b"GET /v1/models HTTP/1.1\r\nHost: h\nX-A: 1\r\n\r\n",
    "bare-lf-end": b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\n",
    "bare-lf-in-value": b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-A: 1\nTransfer-Encoding: chunked\r\n\r\n",
    "bare-cr": b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-A: 1\rX-B: 2\r\n\r\n",
    "nul-in-value": b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-A: 1\0\r\n\r\n",
    "nul-in-name": b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX\0A: 1\r\n\r\n",
    "control-in-value": b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-A: \x01\r\n\r\n",
    "space-before-colon": head("Content-Length : 3") + b"abc",
    "tab-before-colon": head("Content-Length\t: 3") + b"abc",
    "space-in-name": head("Content Length: 3"),
    "no-colon": head("X-Nothing"),
    "empty-name": head(": value"),
    "no-host": head(host=None),
    "two-hosts": head("Host: other"),
    "two-hosts-equal": head("Host: h"),
    "no-target": b"GET HTTP/1.1\r\nHost: h\r\n\r\n",
    "two-spaces": b"GET  /v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
    "tab-after-method": b"GET\t/v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
    "space-in-target": b"GET /v1/models x HTTP/1.1\r\nHost: h\r\n\r\n",
    "control-in-target": b"GET /v1/\x01models HTTP/1.1\r\nHost: h\r\n\r\n",
    "lower-case-protocol": b"GET /v1/models http/1.1\r\nHost: h\r\n\r\n",
    "no-protocol": b"GET /v1/models\r\nHost: h\r\n\r\n",
    "odd-method": b"G(T /v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "garbage": b"\x80\x81\x82",
    "leading-space": b" GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
    "connection-bomb": head("Connection: " + ", ".join(f"x-{i}" for i in range(200))),
    "too-many-empty-lines": b"\r\n" * 40 + b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n",
}


@pytest.mark.parametrize("data", HEADS.values(), ids=HEADS)
def test_ambiguous_head_is_400_and_ends_the_connection(front, data):
    with front.connect() as client:
        client.send(data)
        answer = client.read_response().refused(400, "bad_request")
        assert answer.header("connection") == "close"
        assert client.read_end() == ("fin", b""), "an answer to what was hidden in it?"
    nothing_reached_the_engine(front)


@pytest.mark.parametrize("version", ["2.0", "1.2", "0.9", "3.1"])
def test_other_versions_are_505(front, version):
    with front.connect() as client:
        client.send(wire("GET", "/v1/models", version=version))
        assert client.read_response().refused(505, "http_version_not_supported").header("connection") == "close"
        client.expect_closed()
    nothing_reached_the_engine(front)


@pytest.mark.parametrize("target", ["v1/models", "h:80", "http:///v1/models", "http://", "ftp:/x", "?q"])
def test_target_that_is_no_path_is_400(front, target):
    with front.connect() as client:
        client.request("GET", target).refused(400, "bad_request")
    nothing_reached_the_engine(front)


# Told at once, not when a time-out comes.
@pytest.mark.parametrize("data", [b"POST /v1/models HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nX-A: 1\n\n",
                                  b"GET / HTTP/1.1\nHost: h\n\n"])
def test_bare_line_feeds_are_noticed_without_the_head_s_end(front, data):
    with front.connect() as client:
        client.send(data)
        client.read_response().refused(400, "bad_request")


CHUNKS = {
    "negative": b"-1\r\na\r\n0\r\n\r\n", "negative-zero": b"-0\r\n\r\n", "plus": b"+3\r\nabc\r\n0\r\n\r\n",
    "huge": b"fffffffffffffffff\r\nabc\r\n", "2^64": b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "hex-prefix": b"0x3\r\nabc\r\n0\r\n\r\n", "junk-behind": b"3g\r\nabc\r\n0\r\n\r\n",
    "junk-before": b" 3\r\nabc\r\n0\r\n\r\n", "empty": b"\r\nabc\r\n0\r\n\r\n", "no-digit": b";a=b\r\nabc\r\n0\r\n\r\n",
    "letters": b"xyz\r\nabc\r\n0\r\n\r\n", "bare-lf-after-size": b"3\nabc\r\n0\r\n\r\n",
    "bare-lf-after-data": b"3\r\nabc\n0\r\n\r\n", "data-too-long": b"3\r\nabcd\r\n0\r\n\r\n",
    "data-too-short": b"5\r\nabc\r\n0\r\n\r\n", "fraction": b"3.0\r\nabc\r\n0\r\n\r\n",
    "extension-endless": b"3;" + b"a" * 40000,
    "nul-in-size": b"3\0\r\nabc\r\n0\r\n\r\n", "space-in-size": b"1 2\r\nabc\r\n0\r\n\r\n",
    "trailer-bare-lf": b"3\r\nabc\r\n0\r\nX: 1\n\n",
}


@pytest.mark.parametrize("body", CHUNKS.values(), ids=CHUNKS)
def test_broken_chunks_of_a_generation_request_are_400(front, body):
    with front.connect() as client:
        client.send(GENERATE + body + b"\r\n\r\n" + SMUGGLED)
        answer = client.read_response().refused(400, "bad_request")
        assert answer.header("connection") == "close"
        how, rest = client.read_end()
        assert rest == b""
    nothing_reached_the_engine(front)


@pytest.mark.parametrize("body", CHUNKS.values(), ids=CHUNKS)
def test_broken_chunks_that_stream_through_end_the_engine_s_connection(front, body):
    with front.connect() as client:
        client.send(CHUNKED + b"4\r\ngood\r\n")
        exchange = front.decode.next()
        assert exchange.body_piece() == b"4\r\ngood\r\n"
        client.send(body + b"\r\n\r\n" + SMUGGLED)
        answer = client.read_response().refused(400, "bad_request")
        assert answer.header("connection") == "close"
        how, rest = client.read_end()
        assert rest == b""
        seen = b""
        try:
            while True:
                seen += exchange.body_piece()
        except Exception:  # the engine's side ended
            pass
        assert b"0\r\n\r\n" not in seen, "the engine was told that the body is complete"
        assert b"smuggled" not in seen
        exchange.close()
    nothing_reached_the_engine(front)


ENDLESS = {"size": b"0" * 40000, "extension": b"3;" + b"a" * 40000, "trailer": b"3\r\nabc\r\n0\r\nX: " + b"a" * 40000}


@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS)
def test_chunk_lines_without_an_end_are_400(front, body):
    for request in (GENERATE, CHUNKED):
        with front.connect() as client:
            client.send(request + body)
            if request == CHUNKED:
                exchange = front.decode.next()
            client.read_response().refused(400, "bad_request")
            if request == CHUNKED:
                exchange.close()


VALID = {
    "extension": (b"3;name=value\r\nabc\r\n0\r\n\r\n", b"abc"), "quoted-extension": (b'3;a="b"\r\nabc\r\n0\r\n\r\n', b"abc"),
    "leading-zeros": (b"0003\r\nabc\r\n000\r\n\r\n", b"abc"), "upper-case": (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "trailer": (b"3\r\nabc\r\n0\r\nX-T: 1\r\n\r\n", b"abc"), "empty": (b"0\r\n\r\n", b""),
}


@pytest.mark.parametrize("body,content", VALID.values(), ids=VALID)
def test_unusual_but_valid_chunks_are_framed_anew(front, body, content):
    with front.connect() as client:
        client.send(CHUNKED + body)
        exchange = front.decode.next()
        assert exchange.body() == content and exchange.framing == "chunked"
        assert exchange.header("x-t") is None
        exchange.reply(b"ok")
        assert client.read_response().body == b"ok"


def test_empty_lines_before_a_request_are_skipped(front):
    with front.connect() as client:
        client.send(b"\r\n\r\n" + wire("GET", "/a"))
        front.decode.next().reply(b"a")
        assert client.read_response().body == b"a"
        client.send(b"\r\n")
        client.send(wire("GET", "/b"))
        front.decode.next().reply(b"b")
        assert client.read_response().body == b"b"


def test_a_head_byte_by_byte(front):
    with front.connect() as client:
        for byte in wire("POST", "/bytes", [("X-A", "1")], b"abc"):
            client.send(bytes([byte]))
        exchange = front.decode.next()
        assert exchange.body() == b"abc"
        exchange.reply(b"ok")
        assert client.read_response().body == b"ok"


def test_chunks_byte_by_byte(front):
    with front.connect() as client:
        for byte in CHUNKED + b"3;a=b\r\nabc\r\n0A\r\n0123456789\r\n0\r\nT: x\r\n\r\n":
            client.send(bytes([byte]))
        exchange = front.decode.next()
        assert exchange.body() == b"abc0123456789"
        exchange.reply(b"ok")
        assert client.read_response().body == b"ok"


def test_body_bytes_are_not_taken_for_a_request(front):
    """A body that looks like a request, of a request that is answered without it, is never served."""
    with front.connect() as client:
        client.send(wire("POST", "/v1/completions", [("Content-Type", "application/json"),
                                                     ("x-prefiller-host-port", "bad")], SMUGGLED))
        client.read_response().refused(502, "invalid_epp_metadata")
        client.send(wire("GET", "/after"))
        exchange = front.decode.next()
        assert exchange.target == "/after"
        exchange.reply(b"after")
        assert client.read_response().body == b"after"


def test_unread_body_of_a_refused_request_ends_the_connection(front):
    data = wire("POST", "/v1/completions", [("x-prefiller-host-port", "bad")], b"x" * 100)
    with front.connect() as client:
        client.send(data[:-50])
        answer = client.read_response().refused(502, "invalid_epp_metadata")
        assert answer.header("connection") == "close"
        try:
            client.send(SMUGGLED + SMUGGLED)
        except OSError:
            pass
        try:
            assert client.read_end()[1] == b""
        except Truncated:
            pass
    nothing_reached_the_engine(front)
