"""Fault rules and the control API."""

import gzip
import json

import pytest

from exchanges import ALL_APIS, COMPLETIONS, decode, open_request, prefill, prefill_body, raw_exchange, raw_request
from mock_engine_client import PATIENCE


def faulty_exchange(engine, rule, *headers):
    engine.fault(**rule)
    return raw_exchange(engine, raw_request(COMPLETIONS, ALL_APIS[COMPLETIONS], "Connection: close", *headers))


def test_fault_status_is_matched_by_role_header_and_times(start):
    p = start()
    p.fault(action="status", status=503, headers=[["Retry-After", "7"]], body="busy", times=1, match={"role": "prefill"})
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).status == 200
    reply = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]))
    assert reply.status == 503 and reply.headers["Retry-After"] == "7" and reply.body == b"busy"
    assert p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS])).status == 200
    p.fault(action="status", status=500, match={"request_id": "r1"})
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"X-Request-Id": "r1"}).status == 500
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"X-Request-Id": "r2"}).status == 200
    rules = p.control("GET", "/mock/faults").json["rules"]
    assert [r["hits"] for r in rules] == [1, 1]
    p.control("DELETE", "/mock/faults")
    assert p.control("GET", "/mock/faults").json["rules"] == []


@pytest.mark.parametrize(
    "rule, size, end",
    [
        ({"action": "reset_at", "at": 20}, 20, "reset"),
        ({"action": "close_at", "at": 20}, 20, "closed"),
        ({"action": "close_at", "at": 0}, 0, "closed"),
    ],
)
def test_fault_cut_at_a_byte(start, rule, size, end):
    out, how = faulty_exchange(start(), rule)
    assert (len(out), how) == (size, end) or (end == "reset" and how == "reset")


def test_fault_cut_in_the_body(start):
    out, _ = faulty_exchange(start(), {"action": "close_at", "at_body": 10})
    assert len(out.split(b"\r\n\r\n", 1)[1]) == 10


def test_fault_refuse_and_die_reset_the_connection(start):
    engine = start()
    engine.fault(action="refuse", times=1)
    with pytest.raises(OSError):
        engine.call("GET", "/health")
    assert engine.call("GET", "/health").status == 200
    assert engine.control("POST", "/mock/die").status == 200
    with pytest.raises(OSError):
        engine.call("GET", "/health")
    assert engine.state()["dead"] is True
    assert engine.control("POST", "/mock/exit").status == 200
    assert engine.process.wait(PATIENCE) == 0


def test_fault_die_takes_the_running_requests_along(start):
    p, d = start(), start("--kv-load-ms", "600000")
    waiting = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "kv_transfer_params": prefill(p)})
    d.wait(requests__running=1)
    d.fault(action="die", match={"path": "/v1/chat"})
    with pytest.raises(OSError):
        d.post("/v1/chat/completions", ALL_APIS["/v1/chat/completions"])
    with pytest.raises(ConnectionResetError):
        waiting.recv(1)
    waiting.close()
    state = d.wait(connections=0, requests=0)
    assert state["dead"] is True and state["releases"]["sent"] == 0
    assert p.state()["leases"]["live"] == 1


def test_sigterm_with_requests_in_every_state_ends_with_zero(start):
    engine = start("--max-running", "1", "--ttft-ms", "600000")
    sockets = [open_request(engine, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "stream": bool(i)}) for i in range(2)]
    engine.wait(requests__running=1, requests__queued=1)
    assert engine.stop() == 0
    for s in sockets:
        s.close()


def test_fault_stall_is_noticed_as_an_abort(start):
    engine = start()
    engine.fault(action="stall")
    s = open_request(engine, COMPLETIONS, ALL_APIS[COMPLETIONS])
    engine.wait(fault_hits=1)
    s.close()
    engine.wait(connections=0)
    assert engine.control("GET", "/mock/requests").json["requests"][0]["outcome"] == "aborted"


@pytest.mark.parametrize(
    "kind, sign",
    [
        ("bad_chunk_size", b"\r\n\r\nzz\r\n"),
        ("chunked_and_length", b"content-length"),
        ("garbage_status", b"HTCPCP/x"),
        ("oversize_head", b"x-filler: aaaa"),
        ("long_length", b"content-length"),
        ("short_length", b"content-length"),
        ("no_final_chunk", b"transfer-encoding: chunked"),
    ],
)
def test_fault_framing(start, kind, sign):
    out, _ = faulty_exchange(start(), {"action": "framing", "kind": kind})
    assert sign in out
    if kind == "no_final_chunk":
        assert not out.endswith(b"0\r\n\r\n")
    if kind in ("long_length", "short_length"):
        head, body = out.split(b"\r\n\r\n", 1)
        said = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        assert (said > len(body)) == (kind == "long_length") and said != len(body)


def test_fault_early_response_before_the_body(start):
    engine = start()
    engine.fault(action="early_response", status=413, body="too big")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    out, _ = raw_exchange(engine, head)
    assert out.startswith(b"HTTP/1.1 413") and out.endswith(b"too big")


def test_fault_informational_redirect_http10_and_no_length(start):
    engine = start()
    out, _ = faulty_exchange(engine, {"action": "informational", "status": 103, "count": 2, "times": 1})
    assert out.count(b"HTTP/1.1 103") == 2 and b"HTTP/1.1 200" in out
    out, _ = faulty_exchange(engine, {"action": "redirect", "location": "http://127.0.0.1:1/", "times": 1})
    assert out.startswith(b"HTTP/1.1 307") and b"Location: http://127.0.0.1:1/" in out
    out, _ = faulty_exchange(engine, {"action": "http10", "times": 1})
    assert out.startswith(b"HTTP/1.0 200") and b"content-length" not in out
    out, _ = faulty_exchange(engine, {"action": "no_length", "times": 1})
    assert out.startswith(b"HTTP/1.1 200") and b"content-length" not in out and b"chunked" not in out


def test_fault_bodies(start):
    engine = start()
    out, _ = faulty_exchange(engine, {"action": "huge_body", "bytes": 3000000, "times": 1})
    assert len(out.split(b"\r\n\r\n", 1)[1]) == 3000000
    out, _ = faulty_exchange(engine, {"action": "non_json", "times": 1})
    assert b"<html>" in out
    engine.fault(action="sse", times=1)
    assert engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).body.startswith(b'data: {"id"')
    engine.fault(action="gzip", times=1)
    reply = engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"Accept-Encoding": "gzip"})
    assert reply.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(reply.body))["object"] == "text_completion"
    engine.fault(action="trickle", bytes=50, every_ms=1, times=1)
    assert engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).status == 200


def test_fault_trickle_may_have_an_end(start):
    engine = start()
    engine.fault(action="huge_body", bytes=100000)
    engine.fault(action="trickle", bytes=1, every_ms=10, most=20)  # all of it so would take a quarter of an hour
    out, _ = faulty_exchange(engine, {"action": "no_length", "times": 1})
    assert len(out.split(b"\r\n\r\n", 1)[1]) == 100000
    assert engine.control("POST", "/mock/faults", {"action": "trickle", "bytes": 1, "every_ms": 1, "most": 0}).status == 400


def test_fault_close_idle_says_nothing_about_it(start):
    engine = start()
    engine.fault(action="close_idle")
    out, how = raw_exchange(engine, raw_request(COMPLETIONS, ALL_APIS[COMPLETIONS]))
    assert out.startswith(b"HTTP/1.1 200") and b"connection: close" not in out and how == "closed"


def test_fault_params_overrides(start):
    p = start()
    p.fault(action="params_patch", patch={"remote_port": "5600", "tp_size": None}, times=1)
    params = prefill(p)
    assert params["remote_port"] == "5600" and "tp_size" not in params
    p.fault(action="params_patch", patch=None, times=1)
    assert prefill(p) is None
    p.fault(action="params_raw", raw='{"remote_port":1.0,"a":1,"a":2}', times=1)
    assert b'"kv_transfer_params":{"remote_port":1.0,"a":1,"a":2}' in p.post(
        COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS])
    ).body
    p.fault(action="params_remove", times=1)
    assert "kv_transfer_params" not in p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS])).json


def test_fault_reject_releases_the_lease(pair):
    p, d = pair
    d.fault(action="reject", match={"role": "decode"})
    assert decode(d, prefill(p)).status == 400
    p.wait(leases=0)


@pytest.mark.parametrize(
    "rule",
    [
        {"action": "no-such"},
        {"match": {}},
        {"action": "reset_at"},
        {"action": "status", "status": 5},
        {"action": "framing", "kind": "x"},
        {"action": "stall", "match": {"role": "boss"}},
        {"action": "stall", "match": {"paht": "/"}},
        {"action": "stall", "match": {"path": 5}},
    ],
)
def test_bad_fault_rules_are_refused(start, rule):
    assert start().control("POST", "/mock/faults", rule).status == 400


def test_soft_death_and_reset(start):
    engine = start()
    engine.control("POST", "/mock/dead", {"dead": True})
    assert engine.call("GET", "/health").status == 503
    assert engine.call("GET", "/mock/state").json["deaths"] == 1
    engine.control("POST", "/mock/dead", {"dead": False})
    assert engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).status == 200
    engine.control("POST", "/mock/reset")
    state = engine.state()
    assert state["requests"]["received"] == 0 and state["deaths"] == 0


def test_wait_times_out_with_408_and_names_unknown_conditions(start):
    engine = start()
    assert engine.control("GET", "/mock/wait?requests.running=1&timeout_ms=10").status == 408
    assert engine.control("GET", "/mock/wait?nonsense=1").status == 400
    assert engine.control("GET", "/mock/wait?requests.received=>=0&timeout_ms=10").status == 200


def test_log_keeps_bytes_that_are_not_text(start):
    engine = start()
    engine.call("POST", COMPLETIONS, b"\xff\xfe", {"Content-Type": "application/json"})
    entry = engine.control("GET", "/mock/requests").json["requests"][0]
    assert entry["body"] is None and entry["body_base64"] == "//4=" and entry["body_bytes"] == 2
    assert engine.control("DELETE", "/mock/requests").json["requests"] == []
