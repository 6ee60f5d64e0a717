"""The decode leg: its failures (C20), reused connections, start-over (C43, C44) and broken replies."""

import gzip
import json
import threading

import pytest
from harness.http_client import Connection, Truncated, wire
from harness.limits import wait_until
from harness.scripted_engine import HANDOFF, prefill_body

COMPLETION = {"model": "mock-model", "prompt": "Tell me of sheep and other animals", "max_tokens": 6}
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
BOTH_WAYS = pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])
JSON = ("Content-Type", "application/json")


def start_decode(scripted, body=b'{"prompt":"p"}', disaggregated=True):
    """A client whose request has come to decode."""
    client = scripted.start(body, disaggregated=disaggregated)
    if disaggregated:
        scripted.prefill.next().reply(prefill_body())
    leg = scripted.decode.next()
    leg.body()
    return client, leg


# ------------------------------------------------------------------------------------------------------ C20: statuses

@STREAMS
@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503, 599])
def test_c20_error_of_decode_alone_is_relayed_as_it_is(rig, status, stream):
    rig.decode.fault(action="status", status=status, body='{"e": 1}', headers=[["Retry-After", "9"], ["X-Engine", "yes"]])
    answer = rig.post({**COMPLETION, "stream": stream}, disaggregated=False)
    assert (answer.status, answer.body) == (status, b'{"e": 1}')
    assert answer.header("retry-after") == "9" and answer.header("x-engine") == "yes"


@BOTH_WAYS
@STREAMS
def test_c20_decode_refuses_connections(own, stream, disaggregated):
    prefill = own.scripted()
    sidecar = own.sidecar(own.port())
    headers = [JSON] + ([("x-prefiller-host-port", prefill.authority)] if disaggregated else [])
    with sidecar.connect() as client:
        client.send(wire("POST", "/v1/completions", headers, json.dumps({"prompt": "p", "stream": stream}).encode()))
        if disaggregated:
            prefill.next().reply(prefill_body())
        answer = client.read_response().refused(502, "decode_upstream_error")
        assert "decode" in answer.error["message"]
        # The connection is still good.
        assert client.request("GET", "/health").status == 200


def is_refused(port):
    try:
        Connection(port).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def test_decode_dead_after_prefill_is_told_and_counted_as_unreleased(own):
    rig = own.rig({"DYN_SIDECAR_MAX_IDLE_UPSTREAM": "0"})
    rig.decode.control("POST", "/mock/die")
    wait_until(lambda: is_refused(rig.decode.port))
    rig.post(COMPLETION).refused(502, "decode_upstream_error")
    counters = rig.counters_at_end()
    assert counters["background.release.failed"] == 1


@BOTH_WAYS
@pytest.mark.settings(DYN_SIDECAR_READ_TIMEOUT_MS="150")
def test_c20_silent_decode_is_504(scripted, disaggregated):
    client, leg = start_decode(scripted, disaggregated=disaggregated)
    answer = client.read_response().refused(504, "decode_upstream_timeout")
    assert "decode" in answer.error["message"]
    leg.wait_until_dropped()


# ------------------------------------------------------------------------------------------- truncation must be visible

@BOTH_WAYS
@pytest.mark.parametrize("how", ["close", "reset"])
def test_nothing_sent_yet_means_an_error_can_be_told(scripted, how, disaggregated):
    client, leg = start_decode(scripted, disaggregated=disaggregated)
    getattr(leg, how)()
    client.read_response().refused(502, "decode_upstream_error")


@BOTH_WAYS
@pytest.mark.parametrize("junk", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
                                  b"HTCPCP/1.0 418 Teapot\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n",
                                  b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                                  b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n",
                                  b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
                                  b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
                                  b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
                                  b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", b"\x00\x01\x02\x03"], ids=repr)
def test_reply_that_is_no_http_is_502(scripted, junk, disaggregated):
    client, leg = start_decode(scripted, disaggregated=disaggregated)
    leg.send(junk)
    client.read_response().refused(502, "decode_upstream_error")
    leg.wait_until_dropped()


@BOTH_WAYS
@pytest.mark.parametrize("end", [b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"fffffffffffffffff\r\n",
                                 b"\r\n\r\n", b"close", b"reset", b"5\r\nab", b"5"], ids=repr)
def test_stream_that_breaks_has_no_final_chunk(scripted, end, disaggregated):
    client, leg = start_decode(scripted, b'{"prompt":"p","stream":true}', disaggregated)
    leg.begin_stream()
    leg.chunk(b"data: 1\n\n")
    answer = client.read_head()
    assert client.read_chunk(answer) == b"data: 1\n\n"
    if end in (b"close", b"reset"):
        getattr(leg, end.decode())()
    else:
        leg.send(end)
        if end in (b"5\r\nab", b"5"):
            leg.close()
    with pytest.raises(Truncated):
        client.read_body(answer)
    assert b"[DONE]" not in answer.body
    line = scripted.exchange_line(path="/v1/completions")
    assert line.fields["outcome"] == "broken" and line.level == "WARN"


@BOTH_WAYS
@pytest.mark.parametrize("how", ["close", "reset"])
def test_short_fixed_body_is_truncated_for_the_client_too(scripted, how, disaggregated):
    client, leg = start_decode(scripted, disaggregated=disaggregated)
    leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345")
    answer = client.read_head()
    assert answer.header("content-length") == "10"
    getattr(leg, how)()
    with pytest.raises(Truncated):
        client.read_body(answer)


@BOTH_WAYS
def test_silence_within_a_stream_ends_it_visibly(own, disaggregated):
    prefill, decode = own.scripted(), own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_READ_TIMEOUT_MS": "200"})
    headers = [JSON] + ([("x-prefiller-host-port", prefill.authority)] if disaggregated else [])
    with sidecar.connect() as client:
        client.send(wire("POST", "/v1/completions", headers, b"{}"))
        if disaggregated:
            prefill.next().reply(prefill_body())
        leg = decode.next()
        leg.begin_stream()
        leg.chunk(b"data: 1\n\n")
        with pytest.raises(Truncated) as end:
            client.read_response()
        assert end.value.response.body == b"data: 1\n\n"
        leg.wait_until_dropped()


def test_body_until_close_of_the_engine_becomes_chunks(scripted):
    client, leg = start_decode(scripted)
    leg.send(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")
    leg.close()
    answer = client.read_response()
    assert answer.body == b"all of it" and answer.framing == "chunked"
    assert answer.header("connection") is None


def test_body_until_close_that_ends_with_a_reset_is_truncated(scripted):
    client, leg = start_decode(scripted)
    leg.send(b"HTTP/1.1 200 OK\r\n\r\npart of it")
    answer = client.read_head()
    assert client.read_chunk(answer) == b"part of it"
    leg.reset()
    with pytest.raises(Truncated):
        client.read_body(answer)


def test_bytes_behind_a_reply_are_not_the_next_answer(scripted):
    client, leg = start_decode(scripted, disaggregated=False)
    leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    assert client.read_response().body == b"a"
    leg.wait_until_dropped()
    client.send(scripted.bytes_of(b"{}", disaggregated=False))
    leg = scripted.decode.next()
    leg.reply(b"good")
    assert client.read_response().body == b"good"


# --------------------------------------------------------------------------------------------------- early replies

@BOTH_WAYS
def test_early_reply_is_relayed_while_the_body_is_still_going_out(scripted, disaggregated):
    big = b'{"prompt":"%s"}' % (b"x" * 8_000_000)
    client = scripted.start(big, disaggregated=disaggregated)
    if disaggregated:
        scripted.prefill.next().reply(prefill_body())
    leg = scripted.decode.next()
    leg.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
    answer = client.read_response()
    assert (answer.status, answer.body) == (413, b"no")
    leg.wait_until_dropped()


# -------------------------------------------------------------------------------------------------- interim responses

@BOTH_WAYS
@STREAMS
def test_interim_responses_are_not_taken_for_the_answer(rig, disaggregated, stream):
    rig.decode.fault(action="informational", status=103, count=2, headers=[["Link", "</a>"]])
    answer = rig.post({**COMPLETION, "stream": stream}, disaggregated=disaggregated)
    assert answer.status == 200


@BOTH_WAYS
def test_interim_responses_do_not_stop_a_large_body(scripted, disaggregated):
    big = b'{"prompt":"%s"}' % (b"x" * 8_000_000)
    client = scripted.start(big, disaggregated=disaggregated)
    if disaggregated:
        leg = scripted.prefill.next()
        leg.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        leg.reply(prefill_body())
    leg = scripted.decode.next()
    leg.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
    assert b"x" * 8_000_000 in leg.body()
    leg.reply(b"{}")
    answer = client.read_response()
    assert (answer.status, answer.body, answer.interim) == (200, b"{}", [])


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [50_000, 4_000_000])
def test_interim_responses_do_not_stop_an_upload(scripted, size, chunked):
    half = b"x" * size
    framing = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(2 * size))
    with scripted.connect() as client:
        client.send(wire("POST", "/v1/files", [("Content-Type", "application/octet-stream"), framing]))
        engine_spoke = threading.Event()

        def send_body():  # more than sockets hold, so beside the engine that takes it
            client.send(b"%x\r\n%s\r\n" % (size, half) if chunked else half)
            engine_spoke.wait()
            client.send(b"%x\r\n%s\r\n0\r\n\r\n" % (size, half) if chunked else half)

        sender = threading.Thread(target=send_body)
        sender.start()
        leg = scripted.decode.next()
        leg.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
        engine_spoke.set()
        assert leg.body() == half * 2
        sender.join()
        leg.reply(b"taken")
        answer = client.read_response()
        assert (answer.status, answer.body, answer.interim) == (200, b"taken", [])


# --------------------------------------------------------------------------------------------------------------- gzip

@BOTH_WAYS
def test_compressed_answer_of_decode_is_relayed_as_it_is(rig, disaggregated):
    rig.decode.fault(action="gzip")
    answer = rig.post(COMPLETION, headers=[("Accept-Encoding", "gzip, br")], disaggregated=disaggregated)
    assert answer.header("content-encoding") == "gzip"
    assert json.loads(gzip.decompress(answer.body))["choices"]


def test_prefill_is_not_asked_for_a_compressed_reply(rig):
    rig.prefill.fault(action="gzip")
    answer = rig.post(COMPLETION, headers=[("Accept-Encoding", "gzip, br")])
    assert answer.status == 200
    (first,), (second,) = rig.legs(rig.prefill), rig.legs(rig.decode)
    assert "accept-encoding" not in [name.lower() for name, _ in first["headers"]]
    assert ["Accept-Encoding", "gzip, br"] in second["headers"]


@pytest.mark.untidy
def test_prefill_that_compresses_unasked_is_502(rig):
    rig.prefill.fault(action="gzip", always=True)
    rig.post(COMPLETION).refused(502, "invalid_prefill_handoff")
    assert rig.legs(rig.decode) == []


# -------------------------------------------------------------------------------------------- reused connections: engines

@STREAMS
def test_requests_share_connections_to_the_engines(own, stream):
    rig = own.rig({"DYN_SIDECAR_READY_INTERVAL_MS": "3600000"})
    rig.sidecar.wait_log("engine_health", healthy="true")  # or the health check would be using one
    for _ in range(5):
        assert rig.post({**COMPLETION, "stream": stream}).status == 200
    assert {leg["connection"] for leg in rig.legs(rig.prefill)} == {rig.legs(rig.prefill)[0]["connection"]}
    assert {leg["connection"] for leg in rig.legs(rig.decode)} == {rig.legs(rig.decode)[0]["connection"]}


@STREAMS
def test_engines_that_close_idle_connections_soon(own, stream):
    flags = ("--keep-alive-ms", "50", "--time-scale", "0.2")
    rig = own.rig(prefill=flags, decode=flags)
    with rig.connect() as client:
        for _ in range(20):
            client.send(rig.bytes_of({**COMPLETION, "stream": stream}))
            assert client.read_response().status == 200
            # An idle limit of the engine passes between some of them.
            rig.prefill.wait(connections="<=1")
            if _ % 4 == 0:
                rig.prefill.wait(connections=0)
                rig.decode.wait(connections="<=1")
    rig.wait_tidy(started_over=True)
    assert rig.decode.state()["wrong_text"] == 0


@BOTH_WAYS
@STREAMS
def test_engines_that_close_right_after_each_answer(own, stream, disaggregated):
    rig = own.rig(prefill=("--time-scale", "0.2"), decode=("--time-scale", "0.2"))
    rig.prefill.fault(action="close_idle")
    rig.decode.fault(action="close_idle")
    with rig.connect() as client:
        for _ in range(20):
            client.send(rig.bytes_of({**COMPLETION, "stream": stream}, disaggregated=disaggregated))
            assert client.read_response().status == 200
    rig.wait_tidy(started_over=True)
    assert rig.decode.state()["wrong_text"] == 0


def test_lost_prefill_leg_on_a_reused_connection_is_sent_again(scripted):
    with scripted.connect() as client:
        client.send(scripted.bytes_of(b"{}"))
        first = scripted.prefill.next()
        first.reply(prefill_body())
        scripted.decode.next().reply(b"1")
        assert client.read_response().body == b"1"
        client.send(scripted.bytes_of(b"{}"))
        lost = scripted.prefill.next()
        assert lost.connection == first.connection
        lost.body()
        lost.reset()
        again = scripted.prefill.next()
        assert again.connection != first.connection
        assert again.body() == lost.body() and again.head == lost.head
        again.reply(prefill_body())
        scripted.decode.next().reply(b"2")
        assert client.read_response().body == b"2"


def test_lost_prefill_leg_is_sent_again_only_once(scripted):
    with scripted.connect() as client:
        client.send(scripted.bytes_of(b"{}"))
        scripted.prefill.next().reply(prefill_body())
        scripted.decode.next().reply(b"1")
        assert client.read_response().body == b"1"
        client.send(scripted.bytes_of(b"{}"))
        for _ in range(2):
            lost = scripted.prefill.next()
            lost.body()
            lost.reset()
        client.read_response().refused(502, "prefill_upstream_unavailable")
    scripted.prefill.expect_nothing()


def test_c43_lost_decode_leg_on_a_reused_connection_starts_over_with_a_fresh_handoff(scripted):
    fresh = HANDOFF.replace(b"cmpl-77", b"cmpl-78")
    with scripted.connect() as client:
        client.send(scripted.bytes_of(b"{}"))
        scripted.prefill.next().reply(prefill_body())
        first = scripted.decode.next()
        first.reply(b"1")
        assert client.read_response().body == b"1"
        client.send(scripted.bytes_of(b"{}"))
        scripted.prefill.next().reply(prefill_body())
        lost = scripted.decode.next()
        assert lost.connection == first.connection
        assert HANDOFF in lost.body()
        lost.reset()
        scripted.prefill.next().reply(prefill_body(fresh))
        again = scripted.decode.next()
        assert fresh in again.body() and again.connection != first.connection
        again.reply(b"2")
        assert client.read_response().body == b"2"
    scripted.decode.expect_nothing()


def test_c43_starts_over_only_once(scripted):
    with scripted.connect() as client:
        client.send(scripted.bytes_of(b"{}"))
        scripted.prefill.next().reply(prefill_body())
        scripted.decode.next().reply(b"1")
        assert client.read_response().body == b"1"
        client.send(scripted.bytes_of(b"{}"))
        for _ in range(2):
            scripted.prefill.next().reply(prefill_body())
            lost = scripted.decode.next()
            lost.body()
            lost.reset()
        client.read_response().refused(502, "decode_upstream_error")
    scripted.decode.expect_nothing()
    scripted.prefill.expect_nothing()


def test_c43_lost_decode_leg_on_a_new_connection_is_502(scripted):
    client, leg = start_decode(scripted)
    leg.reset()
    client.read_response().refused(502, "decode_upstream_error")
    scripted.prefill.expect_nothing()
    scripted.decode.expect_nothing()


def warm(scripted, client):
    client.send(wire("GET", "/warm"))
    leg = scripted.decode.next()
    leg.reply(b"warm")
    client.read_response()
    return leg.connection


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_lost_idempotent_request_is_sent_again(scripted, method):
    with scripted.connect() as client:
        used = warm(scripted, client)
        body = b"abc" if method == "PUT" else None
        client.send(wire(method, "/thing", [], body))
        lost = scripted.decode.next()
        assert lost.connection == used and lost.body() == (body or b"")
        lost.reset()
        again = scripted.decode.next()
        assert again.body() == (body or b"") and again.connection != used
        again.reply(b"" if method == "HEAD" else b"ok")
        assert client.read_response(method).status == 200


@pytest.mark.parametrize("method", ["POST", "PATCH"])
def test_lost_request_that_may_have_had_an_effect_is_502(scripted, method):
    with scripted.connect() as client:
        warm(scripted, client)
        client.send(wire(method, "/thing", [], b"abc"))
        lost = scripted.decode.next()
        lost.body()
        lost.reset()
        client.read_response().refused(502, "decode_upstream_error")
    scripted.decode.expect_nothing()


def test_reply_that_began_is_never_asked_for_again(scripted):
    with scripted.connect() as client:
        warm(scripted, client)
        client.send(wire("GET", "/thing"))
        lost = scripted.decode.next()
        lost.send(b"HTTP/1.1 200 OK\r\n")
        lost.close()
        client.read_response().refused(502, "decode_upstream_error")
    scripted.decode.expect_nothing()


def test_connection_header_close_of_the_engine_is_heeded(scripted):
    with scripted.connect() as client:
        client.send(wire("GET", "/a"))
        leg = scripted.decode.next()
        leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\na")
        answer = client.read_response()
        assert answer.body == b"a" and answer.header("connection") is None
        leg.wait_until_dropped()
        client.send(wire("GET", "/b"))
        scripted.decode.next().reply(b"b")
        assert client.read_response().body == b"b"
