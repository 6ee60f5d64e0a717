"""What a client is told when its prefill fails, byte by byte: cases C16 to C19 and the policy of retries and fallback. What is the
same for every protocol is in test_every_protocol.py."""

import socket

import pytest
from harness.scripted_engine import prefill_body
from reserved_ports import ReservedPort

COMPLETION = {"model": "mock-model", "prompt": "Tell me of sheep and other animals", "max_tokens": 6}


# ---------------------------------------------------------------------------------------------------------- statuses

def test_c16_prefills_own_validation_error_is_relayed(rig):
    answer = rig.post({**COMPLETION, "model": "another"})
    assert answer.status == 404
    assert answer.json == rig.prefill.post("/v1/completions", {**COMPLETION, "model": "another"}).json
    assert rig.legs(rig.decode) == []


# ----------------------------------------------------------------------------------------------- C17: unusable replies

@pytest.mark.parametrize("reply", [b"<html>no json</html>", b"", b"[]", b'"text"', b"null", b'{"kv_transfer_params": {',
                                   b'data: {"kv_transfer_params": {}}\n\n', b'{"a":1} {"b":2}', b"\xff\xfe{}",
                                   b"\xef\xbb\xbf{}", b'{"kv_transfer_params": nul}'], ids=repr)
def test_c17_reply_that_is_no_json_object_is_502(scripted, reply):
    with scripted.start({"prompt": "p"}) as client:
        scripted.prefill.next().reply(reply)
        client.read_response().refused(502, "invalid_prefill_handoff")
    scripted.decode.expect_nothing()


@pytest.mark.settings(DYN_SIDECAR_READ_TIMEOUT_MS="150")
@pytest.mark.parametrize("before", ["nothing", "head", "half"])
def test_c17_stall_is_504(scripted, before):
    with scripted.start({"prompt": "p"}) as client:
        leg = scripted.prefill.next()
        leg.body()
        body = prefill_body()
        if before != "nothing":
            leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        if before == "half":
            leg.send(body[:50])
        answer = client.read_response().refused(504, "prefill_upstream_timeout")
        assert "prefill" in answer.error["message"]
        leg.wait_until_dropped()
    scripted.decode.expect_nothing()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("framing", ["length", "chunked", "no-head", "half-head"])
def test_c17_truncated_reply_is_502(scripted, framing, how):
    with scripted.start({"prompt": "p"}) as client:
        leg = scripted.prefill.next()
        leg.body()
        if framing == "length":
            leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + prefill_body())
        elif framing == "chunked":
            leg.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            leg.chunk(prefill_body())
        elif framing == "half-head":
            leg.send(b"HTTP/1.1 200 OK\r\nContent-Le")
        getattr(leg, how)()
        answer = client.read_response().refused(502, "prefill_upstream_unavailable")
        assert "prefill" in answer.error["message"]
    scripted.decode.expect_nothing()


def test_c17_body_until_close_is_a_reply(scripted):
    with scripted.start({"prompt": "p"}) as client:
        leg = scripted.prefill.next()
        leg.body()
        leg.send(b"HTTP/1.0 200 OK\r\n\r\n" + prefill_body())
        leg.close()
        scripted.decode.next().reply(b"{}")
        assert client.read_response().status == 200


# ------------------------------------------------------------------------------------------- C18: size of the reply

@pytest.mark.settings(DYN_SIDECAR_MAX_PREFILL_RESPONSE_BYTES="2000")
@pytest.mark.parametrize("framing", ["fixed", "chunked"])
@pytest.mark.parametrize("extra", [0, 1])
def test_c18_prefill_reply_at_the_limit_and_above(scripted, framing, extra):
    body = prefill_body()
    body = body[:-1] + b" " * (2000 - len(body) + extra) + b"}"
    with scripted.start({"prompt": "p"}) as client:
        leg = scripted.prefill.next()
        if framing == "fixed":
            leg.reply(body)
        else:
            leg.begin_stream()
            leg.chunk(body[:1000])
            leg.chunk(body[1000:])
            leg.end_stream()
        if extra:
            client.read_response().refused(502, "prefill_response_too_large")
            scripted.decode.expect_nothing()
        else:
            scripted.decode.next().reply(b"{}")
            assert client.read_response().status == 200


# ------------------------------------------------------------------------------------------------ C19: transport

def test_c19_unknown_host_is_502(rig):
    answer = rig.post(COMPLETION, disaggregated=False, headers=[("x-prefiller-host-port", "no-such-host.invalid:8000")])
    answer.refused(502, "prefill_upstream_unavailable")


@pytest.mark.settings(DYN_SIDECAR_CONNECT_TIMEOUT_MS="200")
def test_c19_connection_that_hangs_is_504(rig):
    # A full accept queue drops the handshake, so that connecting hangs.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        try:
            answer = rig.post(COMPLETION, disaggregated=False,
                              headers=[("x-prefiller-host-port", "127.0.0.1:%d" % listener.getsockname()[1])])
            answer.refused(504, "prefill_upstream_timeout")
            assert "prefill" in answer.error["message"]
        finally:
            for filler in fillers:
                filler.close()


def test_c19_reset_at_accept_is_502(own):
    rig = own.rig()
    rig.prefill.fault(action="refuse")
    rig.post(COMPLETION).refused(502, "prefill_upstream_unavailable")


# ----------------------------------------------------------------------------------------------------------- retries

RETRIES = pytest.mark.settings(DYN_SIDECAR_PREFILL_RETRIES="2", DYN_SIDECAR_PREFILL_RETRY_BACKOFF_MS="1")


@RETRIES
@pytest.mark.parametrize("status", [502, 503, 504])
def test_retries_after_passing_failures(rig, status):
    rig.prefill.fault(action="status", status=status, times=2)
    answer = rig.post(COMPLETION)
    assert answer.status == 200
    bodies = [leg["body"] for leg in rig.legs(rig.prefill)]
    assert len(bodies) == 3 and len(set(bodies)) == 1
    assert len(rig.legs(rig.decode)) == 1


@RETRIES
def test_refused_connections_are_retried(own):
    rig = own.rig({"DYN_SIDECAR_PREFILL_RETRIES": "2", "DYN_SIDECAR_PREFILL_RETRY_BACKOFF_MS": "1"})
    with ReservedPort() as port:
        answer = rig.post(COMPLETION, disaggregated=False, headers=[("x-prefiller-host-port", f"127.0.0.1:{port}")])
    answer.refused(502, "prefill_upstream_unavailable")
    assert rig.counters_at_end()["prefill_retries"] == 2


@pytest.mark.settings(DYN_SIDECAR_PREFILL_RETRIES="10", DYN_SIDECAR_PREFILL_RETRY_BACKOFF_MS="300",
                      DYN_SIDECAR_PREFILL_DEADLINE_MS="1000")
def test_the_deadline_is_for_all_tries_together(rig):
    rig.prefill.fault(action="status", status=503)
    rig.post(COMPLETION).refused(503, "prefill_upstream_error")  # what it said, not that the time is over
    tries = len(rig.legs(rig.prefill))
    assert 1 <= tries <= 4, "three pauses are all that there is time for"
    assert rig.exchange_line(path="/v1/completions").fields.get("prefill_retries", "0") == str(tries - 1)


def test_no_retry_by_default(rig):
    rig.prefill.fault(action="status", status=503, times=1)
    rig.post(COMPLETION).refused(503, "prefill_upstream_error")
    assert len(rig.legs(rig.prefill)) == 1


@pytest.mark.settings(DYN_SIDECAR_PREFILL_RETRIES="1", DYN_SIDECAR_PREFILL_RETRY_BACKOFF_MS="60000",
                      DYN_SIDECAR_PREFILL_DEADLINE_MS="600000")
def test_client_that_leaves_during_the_backoff_ends_the_exchange(rig):
    rig.prefill.fault(action="status", status=503)
    client = rig.start(COMPLETION)
    rig.prefill.wait(fault_hits=">=1")
    client.close()
    assert rig.exchange_line(path="/v1/completions").fields["outcome"] == "client_gone"
    assert len(rig.legs(rig.prefill)) == 1


# ---------------------------------------------------------------------------------------------------------- fallback

FALLBACK = pytest.mark.settings(DYN_SIDECAR_ON_PREFILL_FAILURE="decode-only", DYN_SIDECAR_READ_TIMEOUT_MS="20000")


@pytest.mark.settings(DYN_SIDECAR_ON_PREFILL_FAILURE="decode-only", DYN_SIDECAR_PREFILL_DEADLINE_MS="200")
def test_fallback_after_the_deadline(rig):
    rig.prefill.fault(action="stall")
    assert rig.post(COMPLETION).status == 200


@FALLBACK
def test_fallback_after_a_refused_connection(rig):
    with ReservedPort() as port:
        answer = rig.post(COMPLETION, disaggregated=False, headers=[("x-prefiller-host-port", f"127.0.0.1:{port}")])
    assert answer.status == 200


@FALLBACK
@pytest.mark.untidy
def test_no_fallback_from_an_invalid_handoff(rig):
    rig.prefill.fault(action="params_patch", patch={"remote_port": 0})
    rig.post(COMPLETION).refused(502, "invalid_prefill_handoff")
    assert rig.legs(rig.decode) == []


# ------------------------------------------------------------------------------------------- before the reply's proper head
