"""One line per exchange, and never a word of what clients say."""

import json

import pytest
from harness.http_client import wire
from harness.scripted_engine import prefill_body

JSON = ("Content-Type", "application/json")
COMPLETION = {"model": "mock-model", "prompt": "Tell me of sheep and other animals", "max_tokens": 6}
MARK = "sesame-4711"


def test_exactly_one_line_per_request(own):
    rig = own.rig()
    with rig.connect() as client:
        assert client.request("GET", "/v1/models", [("x-request-id", "one")]).status == 200
        client.request("POST", "/v1/completions", [JSON, ("x-request-id", "two"), ("x-prefiller-host-port", "x")], b"{}")
        assert client.request("GET", "/health", [("x-request-id", "probe")]).status == 200
    rig.post(COMPLETION, headers=[("x-request-id", "three")])
    rig.post({**COMPLETION, "stream": True}, headers=[("x-request-id", "four")])
    rig.post({**COMPLETION, "n": 2}, headers=[("x-request-id", "five")])
    with rig.connect() as client:
        client.send(b"rubbish\r\n\r\n")
        client.read_response().refused(400, "bad_request")
    stopped = rig.sidecar.stop()
    lines = [line for line in rig.sidecar.lines if line.name == "exchange"]
    ids = [line.fields["request_id"] for line in lines]
    assert sorted(ids[:5]) == ["five", "four", "one", "three", "two"] and len(ids) == 6
    assert stopped.fields["exchanges"] == "7"
    assert stopped.fields["disaggregated"] == "2" and stopped.fields["decode_only.n"] == "1"


def test_fields_of_a_disaggregated_exchange(rig):
    answer = rig.post(COMPLETION)
    line = rig.exchange_line(path="/v1/completions")
    assert line.level == "INFO"
    assert line.fields["method"] == "POST" and line.fields["mode"] == "disaggregated"
    assert line.fields["status"] == "200" and line.fields["outcome"] == "answered"
    assert line.fields["prefill"] == f"127.0.0.1:{rig.prefill.port}"
    assert line.fields["prefill_status"] == line.fields["decode_status"] == "200"
    assert line.fields["bytes_in"] == str(len(json.dumps(COMPLETION)))
    assert int(line.fields["bytes_out"]) > len(answer.body)
    for leg in ("prefill", "decode"):
        sent, head, total = (float(line.fields[f"{leg}_{name}"]) for name in ("sent_ms", "head_ms", "ms"))
        assert 0 <= sent <= head <= total
    assert float(line.fields["total_ms"]) >= 0
    assert line.fields["request_id"]


def test_fields_of_a_pass_through_exchange(rig):
    with rig.connect() as client:
        client.request("GET", "/v1/models?secret=1")
    line = rig.exchange_line(path="/v1/models")
    assert (line.fields["mode"], line.fields["decode_status"], line.fields["bytes_in"]) == ("pass_through", "200", "0")
    assert "prefill" not in line.fields


def test_failures_are_louder_and_named(rig):
    body = {"error": {"message": f"failed at: {MARK}", "type": "InternalServerError", "code": 500}}
    rig.prefill.fault(action="status", status=500, body=body)
    rig.post(COMPLETION)
    line = rig.exchange_line(path="/v1/completions")
    assert line.level == "WARN" and MARK not in line.text
    assert (line.fields["error"], line.fields["status"], line.fields["prefill_status"]) == ("prefill_upstream_error", "500", "500")
    assert line.fields["prefill_error"] == "InternalServerError"


@pytest.mark.parametrize("level", ["trace", "info"])
def test_no_body_query_or_credential_is_ever_logged(own, level):
    prefill, decode = own.scripted(), own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_LOG_LEVEL": level, "DYN_SIDECAR_READY_INTERVAL_MS": "3600000"})
    secrets = [JSON, ("Authorization", f"Bearer {MARK}"), ("Cookie", MARK), ("X-Api-Key", MARK), ("api-key", MARK),
               ("X-Custom", MARK)]
    body = json.dumps({"prompt": MARK, MARK: MARK}).encode()
    target = f"/v1/completions?key={MARK}#{MARK}"

    def ask(headers, answers=()):
        with sidecar.connect() as client:
            client.send(wire("POST", target, headers, body))
            for engine, status, reply in answers:
                engine.next().reply(reply, status, [JSON, ("X-Engine", MARK), ("Retry-After", MARK)])
            return client.read_response().status

    hint = ("x-prefiller-host-port", prefill.authority)
    good = (prefill, "200 OK", prefill_body())
    assert ask(secrets, [(decode, "200 OK", MARK.encode())]) == 200
    assert ask([*secrets, hint], [good, (decode, "200 OK", MARK.encode())]) == 200
    assert ask([*secrets, hint], [good, (decode, "500 " + MARK, MARK.encode())]) == 500
    assert ask([*secrets, hint], [(prefill, "500 " + MARK, MARK.encode())]) == 500
    assert ask([*secrets, hint], [(prefill, "422 " + MARK, MARK.encode())]) == 422
    assert ask([*secrets, hint], [(prefill, "200 OK", MARK.encode())]) == 502
    assert ask([*secrets, hint], [(prefill, "200 OK", prefill_body(b'{"do_remote_prefill":true,"%s":1}' % MARK.encode()))]) == 502
    assert ask([*secrets, hint], [(prefill, "200 OK", b'{"kv_transfer_params":{"%s":1}}' % MARK.encode()),
                                  (decode, "200 OK", b"")]) == 200
    assert ask([*secrets, ("x-prefiller-host-port", f"{MARK}@h:1")]) == 502
    body = json.dumps({"kv_transfer_params": {MARK: MARK}, "prompt": MARK}).encode()
    assert ask(secrets) == 400
    body = MARK.encode()
    assert ask(secrets) == 400
    with sidecar.connect() as client:
        client.send(f"GET / HTTP/1.1\r\nHost: h\r\nAuthorization : {MARK}\r\n\r\n".encode())
        assert client.read_response().status == 400
    prefill.stop()
    decode.stop()
    sidecar.stop()
    assert MARK not in sidecar.log_text()
    assert sum(line.name == "exchange" for line in sidecar.lines) == 12


def test_hostile_request_id_and_path_cannot_break_the_log(front):
    since = front.sidecar.mark()
    with front.connect() as client:
        client.send(wire("GET", "/caf\xe9%0a%0dforged", [("x-request-id", 'a" level=error\tb\\ \xe9 ' + "x" * 3000)]))
        front.decode.next().reply(b"ok")
        client.read_response()
    line = front.sidecar.wait_log("exchange", since)
    assert line.fields["mode"] == "pass_through" and line.fields["status"] == "200"
    assert len(line.text) < 8000


@pytest.mark.settings(DYN_SIDECAR_LOG_LEVEL="off")
def test_off_is_silent_but_for_the_first_line(own):
    sidecar = own.sidecar(1, {"DYN_SIDECAR_LOG_LEVEL": "off"})
    with sidecar.connect() as client:
        client.request("GET", "/v1/models").refused(502, "decode_upstream_error")
    sidecar.signal()
    assert sidecar.wait_exit() == 0
    assert [line.name for line in sidecar.lines] == ["listening"]
