"""Probes, the admin port, and the way out."""

import signal

import pytest
from harness.http_client import Truncated, wire
from harness.limits import wait_until
from harness.scripted_engine import prefill_body

JSON = ("Content-Type", "application/json")


def get(sidecar, path, admin=False):
    with (sidecar.connect_admin() if admin else sidecar.connect()) as client:
        return client.request("GET", path)


def wait_ready(sidecar, status, path="/ready", admin=False):
    """Readiness follows a poll of the engine; ask until it has been noticed."""
    wait_until(lambda: get(sidecar, path, admin).status == status)


# ------------------------------------------------------------------------------------------------------------- probes

def test_health_is_alive_whatever_the_engine_does(own):
    sidecar = own.sidecar(1)
    sidecar.wait_log("engine_health", healthy="false")
    answer = get(sidecar, "/health")
    assert (answer.status, answer.body) == (200, b"alive\n")
    assert get(sidecar, "/ready").status == 503
    assert get(sidecar, "/livez", admin=True).status == 200
    assert get(sidecar, "/readyz", admin=True).status == 503


def test_ready_follows_the_engines_health(own):
    rig = own.rig({"DYN_SIDECAR_READY_INTERVAL_MS": "20"})
    wait_ready(rig.sidecar, 200)
    rig.decode.control("POST", "/mock/dead", {"dead": True})
    wait_ready(rig.sidecar, 503)
    assert get(rig.sidecar, "/readyz", admin=True).status == 503
    assert get(rig.sidecar, "/health").status == 200
    rig.decode.control("POST", "/mock/dead", {"dead": False})
    wait_ready(rig.sidecar, 200)


def test_ready_asks_the_path_of_the_setting(own):
    decode = own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_READY_PATH": "/v1/models?x=1", "DYN_SIDECAR_READY_INTERVAL_MS": "20"})
    leg = decode.next()
    assert (leg.method, leg.target) == ("GET", "/v1/models?x=1")
    leg.reply(b"[]")
    wait_ready(sidecar, 200)
    leg = decode.next()
    leg.reply(b"[]", "302 Found")
    sidecar.wait_log("engine_health", healthy="false")
    assert get(sidecar, "/ready").status == 503
    decode.next().reply(b"[]")
    sidecar.wait_log("engine_health", sidecar.mark() - 1, healthy="true")


def test_probes_reach_no_engine_and_are_not_logged(rig):
    wait_ready(rig.sidecar, 200)  # the engine has been asked
    for path in ("/health", "/ready", "/health?x", "/%68ealth"):
        assert get(rig.sidecar, path).status == 200
    assert rig.legs(rig.decode) == []
    assert "/health" not in [line.fields.get("path") for line in rig.sidecar.lines if line.name == "exchange"]


def test_probes_of_an_engine_that_is_away_fill_no_log(own):
    sidecar = own.sidecar(1)
    sidecar.wait_log("engine_health", healthy="false")
    assert [get(sidecar, "/ready").status, get(sidecar, "/readyz", admin=True).status] == [503, 503]
    assert get(sidecar, "/v1/models").status == 502
    sidecar.wait_log("exchange", path="/v1/models")
    assert [line.fields["path"] for line in sidecar.lines if line.name == "exchange"] == ["/v1/models"]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics"])
def test_admin_port_serves_only_its_own(rig, path):
    assert get(rig.sidecar, path, admin=True).status == 404
    assert rig.legs(rig.decode) == []


def test_admin_port_off(own):
    sidecar = own.sidecar(1, {"DYN_SIDECAR_ADMIN_PORT": "0"})
    assert sidecar.admin_port == 0
    assert get(sidecar, "/health").status == 200


# ----------------------------------------------------------------------------------------------------------- the way out

def refuses_connections(sidecar):

    def refused():
        try:
            sidecar.connect().close()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            return False
        return False
    wait_until(refused)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drain_delay_then_closed_listener_then_in_flight_work_then_zero(own, number):
    prefill, decode = own.scripted(), own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_DRAIN_DELAY_MS": "1500", "DYN_SIDECAR_READY_INTERVAL_MS": "3600000"})
    sidecar.wait_log("engine_health", healthy="true")
    request = wire("POST", "/v1/completions", [JSON, ("x-prefiller-host-port", prefill.authority)], b"{}")
    streaming, idle = sidecar.connect(), sidecar.connect()
    assert idle.request("GET", "/health").status == 200
    streaming.send(request)
    prefill.next().reply(prefill_body())
    leg = decode.next()
    leg.begin_stream()
    leg.chunk(b"data: 1\n\n")
    answer = streaming.read_head()
    streaming.read_chunk(answer)

    sidecar.signal(number)
    sidecar.wait_log("draining")
    # Not ready, and yet at work: the endpoint is still being taken out of rotation.
    assert get(sidecar, "/ready").status == 503
    assert get(sidecar, "/readyz", admin=True).status == 503
    assert get(sidecar, "/health").status == 200
    with sidecar.connect() as late:
        late.send(request)
        prefill.next().reply(prefill_body())
        decode.next().reply(b"late")
        assert late.read_response().body == b"late"

    refuses_connections(sidecar)
    assert idle.expect_closed() == "fin"
    leg.chunk(b"data: 2\n\n")
    leg.end_stream()
    assert streaming.read_body(answer).body == b"data: 1\n\ndata: 2\n\n"
    assert streaming.expect_closed() == "fin"
    assert sidecar.wait_exit() == 0
    sidecar.check_undamaged()
    assert sidecar.wait_log("stopped").fields["exchanges"]


def test_answers_given_while_draining_announce_the_close(own):
    decode = own.scripted()
    sidecar = own.sidecar(decode.port)
    client = sidecar.connect()
    client.send(wire("GET", "/x"))
    leg = decode.next()
    sidecar.signal()
    refuses_connections(sidecar)
    leg.reply(b"ok")
    answer = client.read_response()
    assert answer.body == b"ok" and answer.header("connection") == "close"
    client.expect_closed()
    assert sidecar.wait_exit() == 0


@pytest.mark.parametrize("stage", ["prefill", "decode", "pass-through", "streaming", "body"])
def test_c24_drain_timeout_cancels_what_is_left(own, stage):
    prefill, decode = own.scripted(), own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_DRAIN_TIMEOUT_MS": "200"})
    client = sidecar.connect()
    hint = [] if stage == "pass-through" else [("x-prefiller-host-port", prefill.authority)]
    request = wire("POST", "/v1/completions", [JSON, *hint], b"{}")
    client.send(request[:-1] if stage == "body" else request)
    leg = None
    if stage in ("decode", "streaming"):
        prefill.next().reply(prefill_body())
    if stage != "body":
        leg = (prefill if stage == "prefill" else decode).next()
    if stage == "streaming":
        leg.begin_stream()
        leg.chunk(b"data: 1\n\n")
        answer = client.read_head()
        client.read_chunk(answer)
    if stage == "body":  # so that the head has been read
        with sidecar.connect() as other:
            assert other.request("GET", "/health").status == 200
    sidecar.signal()
    if stage == "streaming":
        with pytest.raises(Truncated):
            client.read_body(answer)
    else:
        client.read_response().refused(502, "request_cancelled")
    if leg:
        leg.wait_until_dropped()
    assert sidecar.wait_exit() == 0
    sidecar.wait_log("drain_timeout")
    line = sidecar.wait_log("exchange", path="/v1/completions")
    assert line.fields["outcome"] in ("cancelled", "answered")


def test_c24_cancelled_exchange_leaves_no_block_behind(own):
    rig = own.rig({"DYN_SIDECAR_DRAIN_TIMEOUT_MS": "200"}, decode=("--decode-us-per-token", "20000"))
    client = rig.start({"model": "mock-model", "prompt": "a b c d e f", "max_tokens": 5000, "stream": True})
    client.read_chunk(client.read_head())
    assert rig.sidecar.stop()
    rig.wait_tidy()
    rig.decode.wait(connections=0)
    rig.prefill.wait(connections=0)


def test_second_signal_hurries(own):
    decode = own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_DRAIN_DELAY_MS": "3600000", "DYN_SIDECAR_DRAIN_TIMEOUT_MS": "3600000"})
    client = sidecar.connect()
    client.send(wire("GET", "/x"))
    decode.next()
    sidecar.signal()
    sidecar.wait_log("draining")
    sidecar.signal()
    client.read_response().refused(502, "request_cancelled")
    assert sidecar.wait_exit() == 0


def test_signal_right_after_the_first_log_line_is_caught(own):
    for _ in range(5):
        sidecar = own.sidecar(1)
        sidecar.signal()
        assert sidecar.wait_exit() == 0


def test_signals_that_come_too_late_do_not_spoil_the_exit(own):
    for _ in range(5):
        sidecar = own.sidecar(1)
        sidecar.signal()
        sidecar.wait_log("stopped")
        while sidecar.process.poll() is None:
            sidecar.signal()
        assert sidecar.wait_exit() == 0


def test_idle_process_ends_at_once(own):
    sidecar = own.sidecar(1, {"DYN_SIDECAR_DRAIN_TIMEOUT_MS": "3600000"})
    client = sidecar.connect()
    assert client.request("GET", "/health").status == 200
    sidecar.stop()
    client.expect_closed()


@pytest.mark.parametrize("ignored", [True, False], ids=["ignored", "not-ignored"])
def test_a_hangup_ends_only_who_does_not_ignore_it(own, ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)  # inherited, as from nohup
    try:
        sidecar = own.sidecar(1, {"DYN_SIDECAR_DRAIN_DELAY_MS": "0"})
    finally:
        signal.signal(signal.SIGHUP, before)
    sidecar.process.send_signal(signal.SIGHUP)
    if not ignored:
        assert sidecar.process.wait(60) == 0
        return
    for _ in range(20):
        assert get(sidecar, "/health").status == 200
    assert "draining" not in [line.name for line in sidecar.lines]
