"""The program: endpoints that come and go, health, TLS, start and stop."""

import contextlib
import os
import resource
import signal
import ssl
import socket
import struct
import subprocess
import threading

import grpc
import pytest
from conftest import chat
from epp_process import DEFAULTS, Epp
from gateway import FULL_DUPLEX, METHOD, Stream, header_map
from harness.descriptors import without_descriptors
from harness.limits import BRIEF, PATIENCE, wait_until
from harness.sidecar import BIN, environment
from messages import ext_proc
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


def test_health_is_watched_on_both_ports(own):
    for channel in (own.channel, own.health_channel):
        unknown = own.watch_health("other", channel)
        assert next(unknown) == "SERVICE_UNKNOWN"
        unknown.close()
        watches = [own.watch_health(name, channel) for name in ("", "readiness", "liveness")]
        assert [next(watch) for watch in watches] == ["NOT_SERVING", "NOT_SERVING", "SERVING"]
        own.tell("synced", 1)
        assert [next(watch) for watch in watches[:2]] == ["SERVING", "SERVING"]
        own.tell("synced", 0)
        assert [next(watch) for watch in watches[:2]] == ["NOT_SERVING", "NOT_SERVING"]
        for watch in watches:
            watch.close()


def test_who_watches_health_does_not_hold_up_the_end(own):
    watches = [own.watch_health("liveness", channel) for channel in (own.channel, own.health_channel)]
    assert [next(watch) for watch in watches] == ["SERVING", "SERVING"]
    own.process.send_signal(signal.SIGTERM)
    for watch in watches:
        with pytest.raises(grpc.RpcError) as error:
            next(watch)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert own.process.wait(PATIENCE) == 0


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


def make_certificate(folder, name, curve="P-256"):
    """A certificate and its key, put in place of the last one in one step each."""
    files = folder / "tls.crt", folder / "tls.key"
    new = [file.with_suffix(file.suffix + ".new") for file in files]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-out", new[0], "-keyout", new[1]], check=True, capture_output=True)
    for made, file in zip(new, files):
        made.rename(file)
    return files


def test_a_certificate_that_is_replaced(tmp_path):
    certificate, key = make_certificate(tmp_path, "first")
    epp = Epp({"DYN_SECURE_SERVING": "true", "DYN_EPP_TLS_CERT_PATH": str(certificate), "DYN_EPP_TLS_KEY_PATH": str(key)})
    try:
        served = lambda: ssl.get_server_certificate(("127.0.0.1", epp.port)).strip()  # noqa: E731
        assert served() == certificate.read_text().strip()
        make_certificate(tmp_path, "second")
        wait_until(lambda: served() == certificate.read_text().strip())
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{epp.port}", credentials,
                                 options=[("grpc.ssl_target_name_override", "second")]) as channel:
            assert epp.health("liveness", channel) == "SERVING"
    finally:
        assert epp.stop() == 0


def test_a_certificate_is_kept_when_its_replacement_cannot_be_served(tmp_path):
    certificate, key = make_certificate(tmp_path, "first")
    first = certificate.read_text().strip()
    (tmp_path / "other").mkdir()
    other_key = make_certificate(tmp_path / "other", "other")[1]
    epp = Epp({"DYN_SECURE_SERVING": "true", "DYN_EPP_TLS_CERT_PATH": str(certificate), "DYN_EPP_TLS_KEY_PATH": str(key)})
    try:
        served = lambda: ssl.get_server_certificate(("127.0.0.1", epp.port)).strip()  # noqa: E731
        assert served() == first
        other_key.rename(key)
        reason = epp.wait_log("certificate_kept").fields["reason"]
        assert reason.startswith(f"DYN_EPP_TLS_KEY_PATH: {key} ") and "mismatch" in reason, reason
        assert served() == first
        make_certificate(tmp_path, "second")
        epp.wait_log("certificate_replaced")
        assert served() == certificate.read_text().strip() != first
    finally:
        assert epp.stop() == 0


def test_a_certificate_is_kept_when_no_handshake_succeeds_with_the_new_one(tmp_path):
    certificate, key = make_certificate(tmp_path, "first")
    first = certificate.read_text().strip()
    epp = Epp({"DYN_SECURE_SERVING": "true", "DYN_EPP_TLS_CERT_PATH": str(certificate), "DYN_EPP_TLS_KEY_PATH": str(key)})
    try:
        make_certificate(tmp_path, "second", "brainpoolP256r1")
        reason = epp.wait_log("certificate_kept").fields["reason"]
        assert f"{certificate} can't be served: a TLS handshake with it fails" in reason, reason
        assert ssl.get_server_certificate(("127.0.0.1", epp.port)).strip() == first
    finally:
        assert epp.stop() == 0


def start_in_vain(settings):
    """What it says of settings that it does not start with."""
    done = subprocess.run([str(BIN / "handoff-epp")], capture_output=True, text=True, timeout=PATIENCE, check=False,
                          env=environment({**DEFAULTS, **settings}))
    assert done.returncode == 2, done
    return done.stderr


def certificate_variants(folder):
    """name -> certificate, key, the setting that is at fault, what is said."""
    made = {name: make_certificate(folder / name, name) for name in ("one", "other")}
    certificate, key = made["one"]
    for curve in ("secp256k1", "brainpoolP384r1"):
        (folder / curve).mkdir()
        made[curve] = make_certificate(folder / curve, curve, curve)
    junk, empty, fifo, cut, chain, locked = (folder / name for name in ("junk", "empty", "fifo", "cut", "chain", "locked"))
    junk.write_text("junk")
    empty.write_text("")
    os.mkfifo(fifo)
    cut.write_bytes(certificate.read_bytes()[:200])
    chain.write_bytes(certificate.read_bytes() + certificate.read_bytes()[:200] + b"\n-----END CERTIFICATE-----\n")
    subprocess.run(["openssl", "ec", "-aes128", "-passout", "pass:x", "-in", key, "-out", locked], check=True, capture_output=True)
    of_certificate, of_key = "DYN_EPP_TLS_CERT_PATH", "DYN_EPP_TLS_KEY_PATH"
    return {
        "junk": (junk, key, of_certificate, "no certificate in PEM form"),
        "empty": (empty, key, of_certificate, "no certificate in PEM form"),
        "cut": (cut, key, of_certificate, "no certificate in PEM form"),
        "broken chain": (chain, key, of_certificate, "damaged certificate in its chain"),
        "a key": (key, key, of_certificate, "no certificate in PEM form"),
        "FIFO": (fifo, key, of_certificate, "is not a regular file"),
        "junk key": (certificate, junk, of_key, "no private key in PEM form"),
        "certificate as key": (certificate, certificate, of_key, "no private key in PEM form"),
        "key with passphrase": (certificate, locked, of_key, "without a passphrase"),
        "FIFO as key": (certificate, fifo, of_key, "is not a regular file"),
        "secp256k1": (*made["secp256k1"], of_certificate, "can't be served: a TLS handshake with it fails"),
        "Brainpool": (*made["brainpoolP384r1"], of_certificate, "can't be served: a TLS handshake with it fails"),
        "another's key": (certificate, made["other"][1], of_key, "can't be used with the certificate: key values mismatch"),
    }


def test_a_certificate_that_cannot_be_served_stops_the_start(tmp_path):
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints: []", encoding="utf-8")
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    for name, (certificate, key, setting, said) in certificate_variants(tmp_path).items():
        text = start_in_vain({"DYN_SECURE_SERVING": "true", "DYN_EPP_TLS_CERT_PATH": str(certificate),
                              "DYN_EPP_TLS_KEY_PATH": str(key), "DYN_EPP_ENDPOINTS_FILE": str(endpoints)})
        path = certificate if setting.endswith("CERT_PATH") else key
        assert text.startswith(f"handoff-epp: cannot start: {setting}: {path} ") and said in text, (name, text)
        assert text.count("\n") == 1, (name, text)


def test_settings_that_contradict_each_other_are_told(tmp_path):
    folder = tmp_path / "certificate"
    folder.mkdir()
    certificate, key = make_certificate(folder, "one")
    epp = Epp({"DYN_SECURE_SERVING": "false", "DYN_EPP_TLS_CERT_PATH": str(certificate), "DYN_EPP_TLS_KEY_PATH": str(key),
               "DYN_EPP_MAX_BUFFERED_BYTES": str(1 << 20)})
    try:
        epp.wait_log("configuration", warning="DYN_EPP_TLS_CERT_PATH is not used: DYN_SECURE_SERVING is false")
        epp.wait_log("configuration", warning="bodies above DYN_EPP_MAX_BUFFERED_BYTES get 503 for ever, though "
                                              "DYN_EPP_MAX_REQUEST_BODY_BYTES allows them")
    finally:
        assert epp.stop() == 0


def warnings_beside_settings(settings):
    result = subprocess.run([BIN / "handoff-epp", "--print-config"], capture_output=True, text=True, timeout=PATIENCE, check=False,
                            env=environment({**DEFAULTS, **settings}))
    assert result.returncode == 0 and "warning" not in result.stdout
    return result.stderr.splitlines()


def test_print_config_warns_as_a_start_does():
    misspelt, too_little = warnings_beside_settings({"DYN_EPP_BIDN": "::", "DYN_EPP_MAX_BUFFERED_BYTES": str(1 << 20)})
    assert misspelt.startswith("# warning: ") and "DYN_EPP_BIDN" in misspelt
    assert too_little.startswith("# warning: bodies above DYN_EPP_MAX_BUFFERED_BYTES get 503 for ever")


@pytest.mark.parametrize("settings, idle", [
    ({"DYN_EPP_TOKENIZER_PROTOCOL": "none"}, ["DYN_EPP_TOKENIZER_SERVICE_URL is not used"]),
    ({"DYN_EPP_TOKENIZER_PROTOCOL": "none", "DYN_EPP_TOKENIZER_SERVICE_URL": "", "DYN_EPP_TOKENIZER_FALLBACK": "error"},
     ["DYN_EPP_TOKENIZER_FALLBACK is not used"]),
    ({"DYN_EPP_TOKENIZER_FALLBACK": "error"}, []),
    ({"DYN_ROUTER_CONDITIONAL_DISAGG": "true"}, ["DYN_ROUTER_CONDITIONAL_DISAGG has no effect"]),
    ({"DYN_ROUTER_CONDITIONAL_DISAGG": "true", "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD": "1"}, []),
    ({"DYN_ROUTER_CONDITIONAL_DISAGG": "true", "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD": "0.1"}, []),
    ({"DYN_ROUTER_CONDITIONAL_DISAGG": "true", "DYN_ROUTER_CONDITIONAL_DISAGG_POLICY": "prefill_load",
      "DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD": "1"}, []),
])
def test_settings_that_do_nothing_are_told(settings, idle):
    told = warnings_beside_settings(settings)
    assert len(told) == len(idle) and all(line.startswith(f"# warning: {text}") for line, text in zip(told, idle)), told


def test_yaml_without_end_stops_the_start_at_once(tmp_path):
    deep, endless, endpoints = tmp_path / "deep", tmp_path / "endless", tmp_path / "endpoints.yaml"
    deep.write_text("[" * 100_000, encoding="utf-8")
    endless.write_text(",", encoding="utf-8")
    endpoints.write_text("endpoints: []", encoding="utf-8")
    for setting in ("DYN_EPP_ENDPOINTS_FILE", "DYN_ROUTER_POLICY_CONFIG"):
        for file, said in ((deep, "within each other more than 16 deep (line 1)"), (endless, "a second YAML document")):
            text = start_in_vain({"DYN_EPP_ENDPOINTS_FILE": str(endpoints), setting: str(file)})
            assert setting in text and said in text, text


@pytest.mark.settings(DYN_EPP_MAX_STREAM_BACKLOG_BYTES="65536")
def test_a_gateway_that_does_not_read_is_not_read_from(pair):
    """Of a response whose client has gone quiet no more is taken in than the backlog, the window, and some pieces."""
    piece, bound, total = 62_000, 2 << 20, 16 << 20
    # Its own window stays small, too: what it takes in unread is no load of ours.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
    with grpc.insecure_channel(f"127.0.0.1:{pair.port}", options=options) as channel:
        taken, ended = [], threading.Event()

        def messages():
            head = ext_proc.ProcessingRequest()
            header_map(head.request_headers, [(":method", "POST"), (":path", "/v1/chat/completions")])
            head.protocol_config.request_body_mode = head.protocol_config.response_body_mode = FULL_DUPLEX
            yield head
            body = ext_proc.ProcessingRequest()
            body.request_body.body, body.request_body.end_of_stream = chat(), True
            yield body
            head = ext_proc.ProcessingRequest()
            header_map(head.response_headers, [(":status", "200")])
            yield head
            more = ext_proc.ProcessingRequest()
            more.response_body.body = b"x" * piece
            while len(taken) * piece < total:
                yield more
                taken.append(piece)
            ended.wait(PATIENCE)

        call = channel.stream_stream(METHOD, request_serializer=ext_proc.ProcessingRequest.SerializeToString,
                                     response_deserializer=ext_proc.ProcessingResponse.FromString)(messages())
        wait_until(lambda: len(taken) * piece > 256 * 1024)
        before = -1
        while before != len(taken):  # until nothing more goes out
            before = len(taken)
            assert not threading.Event().wait(BRIEF)
        ended.set()
        call.cancel()
    assert before * piece < bound, before * piece


@pytest.mark.parametrize("ignored", [True, False], ids=["ignored", "not-ignored"])
def test_a_hangup_ends_only_who_does_not_ignore_it(ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)  # inherited, as from nohup
    try:
        epp = Epp()
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        epp.tell("synced", 1)
        epp.process.send_signal(signal.SIGHUP)
        if ignored:
            for _ in range(20):
                assert epp.health("liveness") == "SERVING"
            assert "draining" not in [line.name for line in epp.lines]
        else:
            epp.wait_log("draining")
            assert epp.process.wait(PATIENCE) == 0
    finally:
        assert epp.stop() == 0


def test_a_fifo_in_place_of_a_file_holds_up_nothing(tmp_path):
    fifo, endpoints = tmp_path / "fifo", tmp_path / "endpoints.yaml"
    os.mkfifo(fifo)
    endpoints.write_text("endpoints: []", encoding="utf-8")
    assert f"DYN_EPP_ENDPOINTS_FILE: {fifo}: is not a regular file" in start_in_vain({"DYN_EPP_ENDPOINTS_FILE": str(fifo)})
    assert "DYN_ROUTER_POLICY_CONFIG: the file is not a regular file" in start_in_vain(
        {"DYN_EPP_ENDPOINTS_FILE": str(endpoints), "DYN_ROUTER_POLICY_CONFIG": str(fifo)})


@pytest.fixture
def pair(own):
    own.tell("synced", 1)
    for i in range(2):
        own.endpoint(f"p{i}", 7001 + i, "prefill")
        own.endpoint(f"d{i}", 8001 + i, "decode")
    yield own
    own.wait_tidy()


def routed(epp, headers=(), **members):
    stream = Stream(epp.channel)
    stream.send_headers(headers=list(headers))
    stream.send_body(chat(**members))
    stream.until_routed()
    return stream


def end(*streams):
    for stream in streams:
        stream.cancel()


@pytest.mark.settings(DYN_EPP_SESSION_AFFINITY_MODE="soft")
def test_a_session_stays_with_its_worker(pair):
    for session in ("a", "b", "c"):
        first = routed(pair, [("x-dynamo-session-id", session)])
        others = [routed(pair, [("x-dynamo-session-id", session)]) for _ in range(4)]  # load alone would spread them
        chosen = first.request.sets["x-gateway-destination-endpoint"]
        assert {other.request.sets["x-gateway-destination-endpoint"] for other in others} == {chosen}
        end(first, *others)
        pair.wait_tidy()


def pinned(pair):
    return {worker["id"]: f"127.0.0.1:{8001 + int(worker['name'][1])}"
            for selector in pair.report()["selectors"] if selector["role"] == "decode" for worker in selector["workers"]}


def test_a_client_may_insist_on_a_worker(pair):
    for worker, address in pinned(pair).items():
        for hint in ({"backend_instance_id": worker}, {"decode_worker_id": worker}, {"backend_instance_id": worker, "dp_rank": 0}):
            streams = [routed(pair, nvext=hint) for _ in range(3)]
            assert {stream.request.sets["x-gateway-destination-endpoint"] for stream in streams} == {address}
            end(*streams)
    for hint, status, code in (({"backend_instance_id": 12345}, 503, "no_ready_endpoint"),
                               ({"prefill_worker_id": 12345}, 400, "invalid_request")):
        stream = ask(pair, nvext=hint)
        stream.until_end()
        assert_refused(stream, status, code)


@pytest.mark.settings(DYN_DISABLE_FRONTEND_NVEXT="true")
def test_hints_can_be_turned_off(pair):
    end(routed(pair, nvext={"backend_instance_id": 12345, "prefill_worker_id": 1}))


@pytest.mark.settings(DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD="100")
def test_overloaded_workers_get_nothing_more(pair):
    busy = [routed(pair, filler="x" * 200) for _ in range(2)]  # one for each
    assert len({stream.request.sets["x-prefiller-host-port"] for stream in busy}) == 2
    refused = ask(pair)
    refused.until_end()
    assert_refused(refused, 429, "overloaded")
    end(*busy)
    pair.wait_tidy()
    end(routed(pair))


POLICY = """
default_policy_family: normal
policy_classes:
  - {name: normal, prefill_busy_threshold: 100000}
  - {name: never, prefill_busy_threshold: 100000, request_queue_limit_per_worker: 0}
  - {name: patient, prefill_busy_threshold: 0}
"""


@pytest.fixture
def classes(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY, encoding="utf-8")
    made = Epp({"DYN_ROUTER_POLICY_CONFIG": str(file), "DYN_EPP_MAX_NUM_BATCHED_TOKENS": "1000"})
    made.tell("synced", 1)
    made.endpoint("p0", 7001, "prefill")
    made.endpoint("d0", 8001, "decode")
    yield made
    made.wait_tidy()
    assert made.stop() == 0


def test_policy_classes(classes):
    header = lambda name: [("x-dynamo-meta-policy-class", name)]  # noqa: E731
    running = routed(classes)
    end(routed(classes, header("normal")), routed(classes, header("unheard-of")))
    refused = Stream(classes.channel)
    refused.send_headers(headers=header("never"))
    refused.send_body(chat())
    refused.until_end()
    assert_refused(refused, 429, "overloaded")
    waiting = Stream(classes.channel)
    waiting.send_headers(headers=header("patient"))
    waiting.send_body(chat())
    wait_until(lambda: sum(selector["waiting"] for selector in classes.report()["selectors"]) == 1)
    end(running)
    waiting.until_routed()
    end(waiting)


def test_a_waiting_client_leaves(classes):
    header = [("x-dynamo-meta-policy-class", "patient")]
    running = routed(classes)
    waiting = Stream(classes.channel)
    waiting.send_headers(headers=header)
    waiting.send_body(chat())
    wait_until(lambda: sum(selector["waiting"] for selector in classes.report()["selectors"]) == 1)
    end(waiting)
    wait_until(lambda: sum(selector["waiting"] for selector in classes.report()["selectors"]) == 0)
    end(running)


def test_a_deadline_ends_the_wait(classes):
    running = routed(classes)
    waiting = Stream(classes.channel)
    waiting.send_headers(headers=[("x-dynamo-meta-policy-class", "patient"), ("x-dynamo-meta-slo-ttft-ms", "50")])
    waiting.send_body(chat())
    waiting.until_end()
    assert_refused(waiting, 429, "overloaded")
    end(running)


@pytest.mark.parametrize("text,said", [("policy_classes: [{name: a, colour: red}]", "unknown key 'colour'"),
                                       ("policy_classes: [{name: a}]", "default_policy_family"),
                                       (POLICY, "DYN_EPP_MAX_NUM_BATCHED_TOKENS")])
def test_a_wrong_policy_file_stops_the_start(tmp_path, text, said):
    file = tmp_path / "policy.yaml"
    file.write_text(text, encoding="utf-8")
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints: []", encoding="utf-8")
    assert said in start_in_vain({"DYN_ROUTER_POLICY_CONFIG": str(file), "DYN_EPP_ENDPOINTS_FILE": str(endpoints)})


@pytest.mark.settings(DYN_ROUTER_CONDITIONAL_DISAGG="true", DYN_ROUTER_CONDITIONAL_DISAGG_POLICY="prefill_load",
                      DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD="100")
def test_prompts_stay_with_decode_while_prefill_is_busy(pair):
    busy = [routed(pair, filler=letter * 400) for letter in "xy"]  # unlike each other, so that both engines have some
    assert all("x-prefiller-host-port" in stream.request.sets for stream in busy)
    kept = routed(pair)
    assert "x-prefiller-host-port" not in kept.request.sets
    end(busy[0])
    wait_until(lambda: pair.load("prefill")["active_requests"] == 1)
    paired = routed(pair)
    assert "x-prefiller-host-port" in paired.request.sets
    end(busy[1], kept, paired)


@pytest.mark.settings(DYN_ROUTER_CONDITIONAL_DISAGG="true", DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD="1000000",
                      DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD="0.5", DYN_EPP_TOTAL_KV_BLOCKS="100")
def test_nothing_stays_with_a_busy_decode_worker(pair):
    short = routed(pair)
    assert "x-prefiller-host-port" not in short.request.sets
    large = routed(pair, filler="x" * 1600)
    assert "x-prefiller-host-port" in large.request.sets
    end(short, large)


@pytest.mark.parametrize("port", ["port", "health_port"])
def test_connections_wait_while_there_are_no_descriptors(own, port):
    assert own.health("readiness") == "NOT_SERVING"
    place = ("127.0.0.1", getattr(own, port))
    with without_descriptors(own.process):
        waiting = socket.create_connection(place)  # the system takes it; nobody can accept it yet
        own.wait_log("connections_wait", port=str(place[1]))
    with waiting:
        waiting.settimeout(PATIENCE)
        assert waiting.recv(1), "the server speaks first in HTTP/2"
    with socket.create_connection(place, PATIENCE) as later:
        assert later.recv(1)


def test_idle_connections_leave_descriptors_for_health_checks(own):
    assert own.health("liveness") == "SERVING"
    hard = resource.prlimit(own.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(own.process.pid, resource.RLIMIT_NOFILE, (160, hard))
    with contextlib.ExitStack() as idle:
        for _ in range(200):
            idle.enter_context(socket.create_connection(("127.0.0.1", own.port), PATIENCE))
        own.wait_log("connections_wait", port=str(own.port), reason="the last descriptors are left to others")
        with socket.create_connection(("127.0.0.1", own.health_port), PATIENCE) as checked:
            assert checked.recv(1), "the server speaks first in HTTP/2"
    wait_until(lambda: answers(own.port))


def test_errors_of_grpc_are_few_lines_of_ours(own):
    for _ in range(200):
        reset = socket.create_connection(("127.0.0.1", own.port), PATIENCE)
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reset.close()
    own.wait_log("grpc")
    assert own.health("liveness") == "SERVING"
    assert sum(line.name == "grpc" for line in own.lines) < 5
    assert all(line.level in ("DEBUG", "INFO", "WARN", "ERROR") for line in own.lines), own.lines


def answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as later:
            return bool(later.recv(1))
    except OSError:
        return False


def test_port_in_use_stops_the_start():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match="it ended with.*DYN_EPP_BIND, DYN_EPP_GRPC_PORT.*Address already in use"):
            Epp({"DYN_EPP_GRPC_PORT": str(port)})


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_port_in_use_in_one_family_stops_the_start():
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        with pytest.raises(AssertionError, match="it ended with.*DYN_EPP_BIND, DYN_EPP_GRPC_PORT.*Address already in use"):
            Epp({"DYN_EPP_BIND": "0.0.0.0", "DYN_EPP_GRPC_PORT": str(taken.getsockname()[1])})
