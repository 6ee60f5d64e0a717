"""Bounds: bodies, heads, time, memory (C18), at the limit and one above it."""

import pytest
from harness.descriptors import without_descriptors
from harness.http_client import wire
from harness.scripted_engine import prefill_body

JSON = ("Content-Type", "application/json")
HINT = pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])
FRAMING = pytest.mark.parametrize("framing", ["fixed", "chunked"])
SMALL = pytest.mark.settings(DYN_SIDECAR_MAX_REQUEST_BYTES="1000")


def body_of(size, framing):
    body = b'{"prompt":"%s"}' % (b"x" * (size - 13))
    assert len(body) == size
    return body if framing == "fixed" else [body[:400], body[400:]]


@SMALL
@HINT
@FRAMING
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1%2Fcompletions"])
def test_c18_body_at_the_limit_and_above(scripted, framing, disaggregated, path):
    headers = [JSON] + ([scripted.hint] if disaggregated else [])
    with scripted.connect() as client:
        client.send(wire("POST", path, headers, body_of(1000, framing)))
        if disaggregated and "%" not in path:
            scripted.prefill.next().reply(prefill_body())
        leg = scripted.decode.next()
        assert leg.body().startswith(body_of(1000, "fixed")[:-1])
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"
    with scripted.connect() as client:
        client.send(wire("POST", path, headers, body_of(1001, framing)))
        answer = client.read_response().refused(413, "pd_request_too_large")
        assert answer.header("connection") == "close"
        client.expect_closed()
    scripted.prefill.expect_nothing()
    scripted.decode.expect_nothing()


@SMALL
@FRAMING
@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
def test_c18_larger_bodies_stream_through_elsewhere(scripted, framing, content_type):
    body = b"[" + b"1," * 500_000 + b"1]"
    with scripted.connect() as client:
        client.send(wire("POST", "/v1/embeddings", [("Content-Type", content_type)],
                         body if framing == "fixed" else [body[:100], body[100:900], body[900:]]))
        leg = scripted.decode.next()
        assert leg.body() == body and leg.framing == framing
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"
        assert client.request("GET", "/health").status == 200


@SMALL
def test_c18_claimed_length_is_refused_at_once(scripted):
    with scripted.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON, ("Content-Length", "18446744073709551615")]))
        client.read_response().refused(413, "pd_request_too_large")


def test_default_limit_takes_many_mebibytes(scripted):
    with scripted.connect() as client:
        client.send(scripted.bytes_of(b'{"prompt":"%s"}' % (b"x" * 30_000_000), disaggregated=False))
        leg = scripted.decode.next()
        assert len(leg.body()) == 30_000_013
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"


# ------------------------------------------------------------------------------------------------------------- heads

SMALL_HEADS = pytest.mark.settings(DYN_SIDECAR_MAX_HEADER_BYTES="2000")


@SMALL_HEADS
@pytest.mark.parametrize("where", ["value", "name", "target", "many"])
def test_head_at_the_limit_and_above(scripted, where):
    def request(size):
        bare = len(wire("GET", "/", [("X", "")])) if where != "target" else len(wire("GET", "/"))
        pad = "a" * (size - bare)
        if where == "value":
            return wire("GET", "/", [("X", pad)])
        if where == "name":
            return wire("GET", "/", [(pad + "X", "")])
        if where == "target":
            return wire("GET", "/" + pad)
        lines = [("A", "1")] * ((size - len(wire("GET", "/", [("X", "")]))) // 6)
        short = size - len(wire("GET", "/", [("X", ""), *lines]))
        return wire("GET", "/", [("X", "a" * short), *lines])

    with scripted.connect() as client:
        assert len(request(2000)) == 2000
        client.send(request(2000))
        if where == "many" and request(2000).count(b"\r\n") > 256:
            client.read_response().refused(431, "request_head_too_large")
        else:
            scripted.decode.next().reply(b"ok")
            assert client.read_response().body == b"ok"
    with scripted.connect() as client:
        client.send(request(2001))
        answer = client.read_response().refused(431, "request_head_too_large")
        assert answer.header("connection") == "close"
        client.expect_closed()
    scripted.decode.expect_nothing()


@SMALL_HEADS
def test_head_without_an_end_is_431(scripted):
    with scripted.connect() as client:
        client.send(b"GET / HTTP/1.1\r\nX: " + b"a" * 3000)
        client.read_response().refused(431, "request_head_too_large")


@pytest.mark.parametrize("count,status", [(256, 200), (257, 431)])
def test_number_of_fields(scripted, count, status):
    with scripted.connect() as client:
        client.send(wire("GET", "/", [(f"X-{i}", "1") for i in range(count - 1)]))
        if status == 200:
            assert len(scripted.decode.next().headers) == count
        else:
            client.read_response().refused(431, "request_head_too_large")


# -------------------------------------------------------------------------------------------------------------- time

@pytest.mark.settings(DYN_SIDECAR_CLIENT_BODY_TIMEOUT_MS="150")
@FRAMING
@HINT
def test_c18b_slow_body_is_408(scripted, framing, disaggregated):
    with scripted.connect() as client:
        request = scripted.bytes_of(b"{}" if framing == "fixed" else [b"{", b"}"], disaggregated=disaggregated)
        client.send(request[:-1])
        answer = client.read_response().refused(408, "pd_request_timeout")
        assert answer.header("connection") == "close"
    scripted.prefill.expect_nothing()
    scripted.decode.expect_nothing()


@pytest.mark.settings(DYN_SIDECAR_CLIENT_BODY_TIMEOUT_MS="300")
def test_c18b_trickling_body_is_408_however_lively(scripted):
    with scripted.connect() as client:
        client.send(wire("POST", "/v1/completions", [JSON, ("Content-Length", "100000")]))
        client.socket.settimeout(0.01)
        try:
            while True:
                client.send(b" ")
                try:
                    client._more()
                    break
                except TimeoutError:
                    continue
        except OSError:
            pass
        client.socket.settimeout(60)
        client.read_response().refused(408, "pd_request_timeout")


@pytest.mark.settings(DYN_SIDECAR_CLIENT_HEADER_TIMEOUT_MS="150")
def test_slow_head_is_408(scripted):
    with scripted.connect() as client:
        client.send(b"GET / HTTP/1.1\r\nHo")
        answer = client.read_response().refused(408, "pd_request_timeout")
        assert answer.header("connection") == "close"
        client.expect_closed()


@pytest.mark.settings(DYN_SIDECAR_CLIENT_HEADER_TIMEOUT_MS="150", DYN_SIDECAR_CLIENT_IDLE_TIMEOUT_MS="150")
def test_client_that_sends_nothing_is_closed_without_a_word(scripted):
    with scripted.connect() as client:
        assert client.expect_closed() == "fin"


@pytest.mark.settings(DYN_SIDECAR_READ_TIMEOUT_MS="200")
@FRAMING
def test_upload_that_stops_is_408(scripted, framing):
    with scripted.connect() as client:
        request = wire("PUT", "/up", [("Content-Type", "a/b")], b"x" * 100_000 if framing == "fixed" else [b"abc", b"def"])
        client.send(request[:-4])
        leg = scripted.decode.next()
        answer = client.read_response().refused(408, "pd_request_timeout")
        assert answer.header("connection") == "close"
        leg.wait_until_dropped()


# ------------------------------------------------------------------------------------------------------------- memory

@pytest.mark.settings(DYN_SIDECAR_MAX_BUFFERED_BYTES="1048576")
@HINT
def test_memory_budget_is_503_and_comes_back(scripted, disaggregated):
    holders = []
    for _ in range(2):
        client = scripted.connect()
        client.send(scripted.bytes_of(b'{"prompt":"%s"}' % (b"x" * 400_000), disaggregated=False))
        leg = scripted.decode.next()
        leg.body()
        holders.append((client, leg))
    big = scripted.bytes_of(b'{"prompt":"%s"}' % (b"x" * 600_000), disaggregated=disaggregated)
    with scripted.connect() as client:
        client.send(big)
        answer = client.read_response().refused(503, "sidecar_overloaded")
        assert answer.header("retry-after") == "1"
    for client, leg in holders:
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"
        client.close()
    with scripted.connect() as client:
        client.send(big)
        if disaggregated:
            scripted.prefill.next().reply(prefill_body())
        scripted.decode.next().reply(b"ok")
        assert client.read_response().body == b"ok"


@pytest.mark.settings(DYN_SIDECAR_MAX_CONNECTIONS="2")
def test_connections_above_the_limit_wait(scripted):
    first, second, third = (scripted.connect() for _ in range(3))
    assert first.request("GET", "/health").status == 200
    assert second.request("GET", "/health").status == 200
    third.send(wire("GET", "/health"))
    third.expect_silence()
    first.close()
    assert third.read_response().status == 200
    with scripted.sidecar.connect_admin() as admin:
        assert admin.request("GET", "/livez").status == 200


@pytest.mark.settings(DYN_SIDECAR_MAX_BUFFERED_BYTES="1048576")
def test_claiming_a_size_takes_no_memory_from_others(scripted):
    claims = []
    for _ in range(20):
        client = scripted.connect()
        client.send(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 900000\r\n\r\n{")
        claims.append(client)
    with scripted.connect() as client:
        client.send(scripted.bytes_of(b'{"prompt":"%s"}' % (b"x" * 100_000), disaggregated=False))
        scripted.decode.next().reply(b"ok")
        assert client.read_response().body == b"ok"
    for client in claims:
        client.close()


def test_answer_to_a_stalled_upload_does_not_wait_for_the_rest(rig):
    rig.decode.fault(action="early_response", status=413, body="too much")
    with rig.connect() as client:
        client.send(b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Type: application/octet-stream\r\n"
                    b"Content-Length: 5000000\r\n\r\n" + b"x" * 1000)
        answer = client.read_response()
    assert answer.status == 413 and answer.body == b"too much"


def test_a_sidecar_without_descriptors_says_so_and_goes_on_when_it_has_some(scripted):
    process = scripted.sidecar.process
    body = b'{"prompt":"x"}'
    with scripted.connect() as client:
        assert client.request("GET", "/health").status == 200  # it is served, so its descriptor is there
        with without_descriptors(process):
            for _ in range(2):
                client.send(wire("POST", "/v1/completions", [JSON], body))
                answer = client.read_response().refused(503, "sidecar_overloaded")
                assert answer.header("retry-after") == "1"
            waiting = scripted.connect()  # the system takes it; nobody can accept it yet
            waiting.send(wire("POST", "/v1/completions", [JSON], body))
            client.send(wire("POST", "/v1/completions", [JSON], body))
            client.read_response().refused(503, "sidecar_overloaded")
            scripted.decode.expect_nothing()
        with waiting:
            for each in (waiting, client):
                if each is client:
                    each.send(wire("POST", "/v1/completions", [JSON], body))
                scripted.decode.next().reply(b"ok")
                assert each.read_response().body == b"ok"
