"""The program: endpoints that come and go, health, TLS, start and stop."""

import signal
import ssl
import socket

import grpc
import pytest
from conftest import chat
from epp_process import Epp
from gateway import Stream
from harness.limits import wait_until
from test_exchange import assert_refused

READINESS = ["", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"]


@pytest.fixture
def own(request):
    """An Endpoint Picker for this test only, without endpoints."""
    marker = request.node.get_closest_marker("settings")
    made = Epp(dict(marker.kwargs) if marker else {})
    yield made
    made.stop()


def ask(epp, **members):
    stream = Stream(epp.channel)
    stream.send_headers()
    stream.send_body(chat(**members))
    return stream


def test_nothing_is_known_yet(own):
    stream = ask(own)
    stream.until_end()
    assert_refused(stream, 503, "no_ready_endpoint")


def test_no_endpoints(own):
    own.tell("synced", 1)
    stream = ask(own)
    stream.until_end()
    assert_refused(stream, 503, "no_ready_endpoint")


def test_half_a_pair(own):
    own.tell("synced", 1)
    own.endpoint("d0", 8001, "decode")
    stream = ask(own)
    stream.until_end()
    assert_refused(stream, 503, "no_ready_endpoint")
    own.wait_tidy()
    assert own.report()["counts"]["compensated"] == 1


@pytest.mark.settings(DYN_EPP_ON_NO_PREFILL="decode-only")
def test_half_a_pair_where_that_is_enough(own):
    own.tell("synced", 1)
    own.endpoint("d0", 8001, "decode")
    stream = ask(own)
    assert stream.until_routed() == "127.0.0.1:8001"
    assert "x-prefiller-host-port" not in stream.request.sets
    stream.cancel()
    own.wait_tidy()


def test_endpoint_that_is_not_ready_gets_nothing(own):
    own.tell("synced", 1)
    own.endpoint("p0", 7001, "prefill")
    own.endpoint("d0", 8001, "decode", ready=False)
    own.endpoint("d1", 8002, "decode")
    for _ in range(5):
        stream = ask(own)
        assert stream.until_routed() == "127.0.0.1:8002"
        stream.cancel()
    own.wait_tidy()


def test_endpoint_leaves_under_a_request(own):
    own.tell("synced", 1)
    own.endpoint("p0", 7001, "prefill")
    own.endpoint("d0", 8001, "decode")
    stream = ask(own, stream=True)
    stream.until(lambda: stream.request.ended)
    own.tell("remove", "d0")
    own.tell("remove", "p0")
    stream.respond_headers()
    stream.respond_body(b"x", end=True)
    stream.until(lambda: stream.response.ended)
    stream.close()
    own.wait_tidy()


def test_endpoint_leaves_while_tokens_are_waited_for(own):
    own.tell("synced", 1)
    own.endpoint("p0", 7001, "prefill")
    own.endpoint("d0", 8001, "decode")
    own.tell("tokenizer", "hold")
    stream = ask(own)
    wait_until(lambda: own.report()["planning"] == 1)
    own.tell("remove", "p0")
    own.tell("tokenizer", "release")
    stream.until_end()
    assert_refused(stream, 503, "no_ready_endpoint")
    own.wait_tidy()


@pytest.mark.settings(DYN_EPP_TOPOLOGY_MODE="aggregated")
def test_aggregated(own):
    own.tell("synced", 1)
    own.endpoint("w0", 8001, "none")
    stream = ask(own, stream=True)
    assert stream.until_routed() == "127.0.0.1:8001"
    assert "x-prefiller-host-port" in stream.request.removes
    assert own.load("aggregated")["active_prefill_tokens"] > 0
    stream.respond_headers()
    stream.respond_body(b"x")
    stream.until(lambda: stream.response.body)
    assert own.load("aggregated")["active_prefill_tokens"] == 0
    assert own.load("aggregated")["active_requests"] == 1
    stream.respond_body(b"", end=True)
    stream.until(lambda: stream.response.ended)
    own.wait_tidy()


@pytest.mark.settings(DYN_ROUTER_CONDITIONAL_DISAGG="true", DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD="1000")
def test_short_prompts_stay_with_decode(own):
    own.tell("synced", 1)
    own.endpoint("p0", 7001, "prefill")
    own.endpoint("d0", 8001, "decode")
    short = ask(own)
    short.until_routed()
    assert "x-prefiller-host-port" not in short.request.sets
    short.cancel()
    own.wait_tidy()
    prompt = "x" * 2000
    long = ask(own, filler=prompt)
    long.until_routed()
    assert long.request.sets["x-prefiller-host-port"] == "127.0.0.1:7001"
    long.cancel()
    own.wait_tidy()
    again = ask(own, filler=prompt)
    again.until_routed()
    assert "x-prefiller-host-port" not in again.request.sets, "decode has it now"
    again.cancel()
    own.wait_tidy()


def test_equal_requests_get_equal_workers(own):
    own.tell("synced", 1)
    for i in range(4):
        own.endpoint(f"p{i}", 7001 + i, "prefill")
        own.endpoint(f"d{i}", 8001 + i, "decode")
    for id_ in ("a", "b", "c"):
        picks = set()
        for _ in range(3):
            stream = Stream(own.channel)
            stream.send_headers(path="/v1/responses", headers=[("x-request-id", id_)])
            stream.send_body(chat())
            picks.add((stream.until_routed(), stream.request.sets["x-prefiller-host-port"]))
            stream.cancel()
            own.wait_tidy()
        assert len(picks) == 1


# Prefill of an answer that isn't streamed is released when it should be over.
def test_prefill_is_released_by_estimate(own):
    own.tell("synced", 1)
    own.endpoint("p0", 7001, "prefill")
    own.endpoint("d0", 8001, "decode")
    learned = ask(own, stream=True, filler="a" * 1000)
    learned.until(lambda: learned.request.ended)
    learned.respond_headers()
    learned.respond_body(b"x", end=True)
    learned.until(lambda: learned.response.ended)
    learned.close()
    own.wait_tidy()
    stream = ask(own, filler="b" * 1000)
    stream.until(lambda: stream.request.ended)
    wait_until(lambda: own.load("prefill")["active_requests"] == 0)
    assert own.load("decode")["active_requests"] == 1
    stream.cancel()
    own.wait_tidy()


def test_health_under_every_name_on_both_ports(own):
    for channel in (own.channel, own.health_channel):
        assert own.health("liveness", channel) == "SERVING"
        for name in READINESS:
            assert own.health(name, channel) == "NOT_SERVING"
        with pytest.raises(grpc.RpcError) as error:
            own.health("other", channel)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND
    own.tell("synced", 1)
    for channel in (own.channel, own.health_channel):
        for name in READINESS:
            wait_until(lambda name=name, channel=channel: own.health(name, channel) == "SERVING")
    own.tell("synced", 0)
    wait_until(lambda: own.health("readiness") == "NOT_SERVING")


@pytest.mark.settings(DYN_EPP_DRAIN_DELAY_MS="600000")
def test_drain(own):
    own.tell("synced", 1)
    own.endpoint("p0", 7001, "prefill")
    own.endpoint("d0", 8001, "decode")
    wait_until(lambda: own.health("readiness") == "SERVING")
    early = ask(own)
    early.until(lambda: early.request.ended)
    own.process.send_signal(signal.SIGTERM)
    wait_until(lambda: own.health("readiness") == "NOT_SERVING")
    assert own.health("liveness") == "SERVING"
    late = ask(own)
    late.until_routed()
    own.process.send_signal(signal.SIGTERM)
    assert own.process.wait() == 0


def test_open_streams_end_before_the_program(own):
    own.tell("synced", 1)
    own.endpoint("p0", 7001, "prefill")
    own.endpoint("d0", 8001, "decode")
    stream = ask(own)
    stream.until(lambda: stream.request.ended)
    own.process.send_signal(signal.SIGTERM)
    own.wait_log("draining")
    stream.respond_headers()
    stream.respond_body(b"x", end=True)
    stream.until(lambda: stream.response.ended)
    assert own.process.poll() is None
    stream.close()
    assert stream.until_end() == grpc.StatusCode.OK
    assert own.process.wait() == 0


@pytest.mark.settings(DYN_SECURE_SERVING="true")
def test_tls_with_a_certificate_of_its_own(own):
    pem = ssl.get_server_certificate(("127.0.0.1", own.port))
    credentials = grpc.ssl_channel_credentials(pem.encode())
    channel = grpc.secure_channel(f"127.0.0.1:{own.port}", credentials,
                                  options=[("grpc.ssl_target_name_override", "handoff-epp")])
    assert own.health("liveness", channel) == "SERVING"
    stream = Stream(channel)
    stream.send_headers()
    stream.send_body(chat())
    stream.until_end()
    assert_refused(stream, 503, "no_ready_endpoint")
    channel.close()


def test_port_in_use_stops_the_start():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match="it ended with"):
            Epp({"DYN_EPP_GRPC_PORT": str(port)})
