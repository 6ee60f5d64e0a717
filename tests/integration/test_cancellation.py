"""The client leaves, at every stage (C22 to C25, C41, C42): each leg ends, and every block and lease comes back."""

import json
import socket

import pytest
from harness.http_client import wire
from harness.limits import wait_until
from harness.scripted_engine import prefill_body

COMPLETION = {"model": "mock-model", "prompt": "Tell me of sheep and other animals " * 8, "max_tokens": 6}
PATHS = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": {"model": "mock-model", "messages": [{"role": "user", "content": "sheep " * 40}],
                             "max_tokens": 6},
    "/v1/responses": {"model": "mock-model", "input": "sheep " * 40, "max_output_tokens": 6},
    "/v1/messages": {"model": "mock-model", "messages": [{"role": "user", "content": "sheep " * 40}], "max_tokens": 6},
    "/inference/v1/generate": {"model": "mock-model", "token_ids": list(range(60)), "sampling_params": {"max_tokens": 6}},
}
LEAVING = pytest.mark.parametrize("leave", ["close", "reset", "finish_sending"])


def gone(rig, client, leave):
    """The client has left, and the sidecar knows it. A half-close counts as leaving."""
    getattr(client, leave)()
    line = rig.exchange_line(path=rig.path)
    assert line.fields["outcome"] == "client_gone", line
    return line


@LEAVING
def test_c22_client_leaves_while_prefill_computes(own, leave):
    rig = own.rig(prefill=("--prefill-us-per-token", "10000000"))
    rig.path = "/v1/completions"
    client = rig.start(COMPLETION)
    rig.prefill.wait(requests__running=1)
    gone(rig, client, leave)
    rig.prefill.wait(requests=0, blocks_free="all", leases=0, requests__aborted=1)
    assert rig.legs(rig.decode) == []


class ClosedDoor:
    """A port whose accept queue is full: connecting to it hangs, until open() serves what has queued up."""

    def __init__(self):
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(0)
        self.port = self.listener.getsockname()[1]
        self._fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._fillers.append(filler)
        self._waiting = self._handshakes()

    def _handshakes(self):
        """Connections to this port that are not yet made."""
        with open("/proc/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table]
        return sum(row[2] == f"0100007F:{self.port:04X}" and row[3] == "02" for row in rows[1:])

    def wait_for_callers(self, count):
        wait_until(lambda: self._handshakes() >= self._waiting + count)

    def open(self, own):
        for filler in self._fillers:
            filler.close()
        return own.scripted(listener=self.listener)


def leave_before_decode_is_reached(own, door, path, leave="close", headers=(), body=None):
    """A handoff of a real prefill engine is there, and the client leaves while the sidecar still connects to decode."""
    prefill = own.engine("--role", "producer")
    sidecar = own.sidecar(door.port, {"DYN_SIDECAR_READY_INTERVAL_MS": "3600000"})
    client = sidecar.connect()
    client.send(wire("POST", path, [("Content-Type", "application/json"), *headers,
                                    ("x-prefiller-host-port", f"127.0.0.1:{prefill.port}")],
                     json.dumps(body or PATHS[path]).encode()))
    prefill.wait(leases=1, requests=0)
    door.wait_for_callers(2)  # the health check and the exchange
    getattr(client, leave)()
    line = sidecar.wait_log("exchange")
    assert line.fields["outcome"] == "client_gone" and line.fields["prefill_status"] == "200", line
    assert "decode_status" not in line.fields
    return prefill, sidecar


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_t51_client_leaves_before_generation_first_has_asked_generation(own, leave):
    """Nobody would ask context for the blocks that generation would wait for."""
    door = ClosedDoor()
    context = own.engine("--engine", "trtllm", "--role", "producer")
    sidecar = own.sidecar(door.port, {"DYN_SIDECAR_BACKEND": "trtllm", "DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first",
                                      "DYN_SIDECAR_READY_INTERVAL_MS": "3600000"})
    client = sidecar.connect()
    client.send(wire("POST", "/v1/completions", [("Content-Type", "application/json"),
                                                 ("x-prefiller-host-port", f"127.0.0.1:{context.port}")],
                     json.dumps(PATHS["/v1/completions"]).encode()))
    door.wait_for_callers(2)  # the health check and the exchange
    getattr(client, leave)()
    assert sidecar.wait_log("exchange").fields["outcome"] == "client_gone"
    counters = sidecar.stop().fields
    assert counters.get("lingering_legs", "0") == "0"
    assert not [name for name in counters if name.startswith("background.")]
    requests = context.control("GET", "/mock/requests").json["requests"]
    assert [entry["target"] for entry in requests] == ["/server_info"]


@pytest.mark.parametrize("path,leave", [*((path, "close") for path in PATHS), ("/v1/completions", "reset"),
                                        ("/v1/completions", "finish_sending")])
def test_c23_c41_client_leaves_between_handoff_and_decode_and_the_handoff_is_released(own, path, leave):
    door = ClosedDoor()
    prefill, sidecar = leave_before_decode_is_reached(own, door, path, leave,
                                                      headers=[("Authorization", "Bearer key"), ("X-Request-Id", "7")],
                                                      body={**PATHS[path], "stream": True})
    release = door.open(own).next()
    assert release.method == "POST" and release.target == path
    assert release.header("authorization") == "Bearer key"
    sent = release.json
    assert sent["stream"] is False and sent["kv_transfer_params"]["do_remote_prefill"] is True
    if path == "/inference/v1/generate":
        assert sent["sampling_params"]["max_tokens"] == 1
    else:
        assert sent["max_output_tokens" if path == "/v1/responses" else "max_tokens"] == 1
    if path != "/v1/messages":
        assert len(sent["cache_salt"]) == 32
    # What a real decode engine does with it:
    decode = own.engine("--role", "consumer")
    assert decode.call("POST", path, release.body(), {"Content-Type": "application/json"}).status == 200
    prefill.wait(requests=0, blocks_free="all", leases=0)
    state = prefill.state()
    assert state["leases"]["expired"] == 0 and state["leases"]["consumed"] == 1
    assert decode.state()["pulls"]["fresh"] == 1
    release.reply(b"{}")
    assert sidecar.stop().fields["background.release.ok"] == "1"


def test_c41_salts_differ(own):
    salts = set()
    for _ in range(2):
        door = ClosedDoor()
        leave_before_decode_is_reached(own, door, "/v1/completions")
        release = door.open(own).next()
        salts.add(release.json["cache_salt"])
        release.reply(b"{}")
    assert len(salts) == 2


def test_c41_release_finishes_before_the_process_ends(own):
    door = ClosedDoor()
    _, sidecar = leave_before_decode_is_reached(own, door, "/v1/completions")
    sidecar.signal()
    release = door.open(own).next()
    release.reply(b"{}")
    assert sidecar.wait_exit() == 0
    assert sidecar.wait_log("stopped").fields["background.release.ok"] == "1"


def test_c41_unreachable_decode_is_counted(own):
    prefill = own.scripted()
    sidecar = own.sidecar(own.port())
    with sidecar.connect() as client:
        client.send(wire("POST", "/v1/completions", [("Content-Type", "application/json"),
                                                     ("x-prefiller-host-port", prefill.authority)], b"{}"))
        prefill.next().reply(prefill_body())
        client.read_response().refused(502, "decode_upstream_error")
    assert sidecar.stop().fields["background.release.failed"] == "1"


@LEAVING
def test_c42_client_leaves_while_decode_waits_to_schedule(own, leave):
    rig = own.rig(decode=("--kv-load-ms", "600000"))
    rig.path = "/v1/completions"
    client = rig.start(COMPLETION)
    rig.decode.wait(requests__running=1)
    gone(rig, client, leave)
    rig.decode.wait(requests=0, blocks_free="all", requests__aborted=1)
    rig.prefill.wait(requests=0, blocks_free="all", leases=0)
    assert rig.prefill.state()["leases"]["expired"] == 0


@LEAVING
@pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])
def test_c24_client_leaves_while_streaming(own, leave, disaggregated):
    rig = own.rig(decode=("--decode-us-per-token", "20000"))
    rig.path = "/v1/chat/completions"
    client = rig.start({**PATHS[rig.path], "max_tokens": 100000, "stream": True}, rig.path, disaggregated=disaggregated)
    answer = client.read_head()
    for _ in range(3):
        assert client.read_chunk(answer)
    gone(rig, client, leave)
    rig.decode.wait(requests=0, blocks_free="all", requests__aborted=1)
    rig.prefill.wait(requests=0, blocks_free="all", leases=0)


@LEAVING
def test_client_leaves_while_decode_is_silent_within_a_stream(scripted, leave):
    client = scripted.start({"prompt": "p", "stream": True})
    scripted.prefill.next().reply(prefill_body())
    leg = scripted.decode.next()
    leg.begin_stream()
    leg.chunk(b"data: 1\n\n")
    answer = client.read_head()
    client.read_chunk(answer)
    getattr(client, leave)()
    leg.wait_until_dropped()


@LEAVING
@pytest.mark.parametrize("target", ["/v1/models", "/metrics"])
def test_client_leaves_a_request_that_passes_through(scripted, target, leave):
    client = scripted.connect()
    client.send(wire("GET", target))
    leg = scripted.decode.next()
    getattr(client, leave)()
    leg.wait_until_dropped()
    assert scripted.exchange_line(path=target).fields["outcome"] == "client_gone"


@LEAVING
@pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_c25_client_leaves_within_its_body(front, leave, framing, disaggregated):
    client = front.connect()
    request = front.bytes_of(b'{"prompt":"p"}', disaggregated=disaggregated)
    if framing == "chunked":
        request = front.bytes_of([b'{"prompt":"p"}', b" "], disaggregated=disaggregated)[:-9] + b"5\r\n"
    client.send(request[:-3])
    since = front.sidecar.mark()
    getattr(client, leave)()
    line = front.sidecar.wait_log("exchange", since, path="/v1/completions")
    assert line.fields["outcome"] == "client_gone" and line.fields["status"] == "0"
    front.prefill.expect_nothing()
    front.decode.expect_nothing()


@LEAVING
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_c25_client_leaves_within_a_body_that_streams_through(front, leave, framing):
    client = front.connect()
    head = wire("POST", "/upload", [("Content-Type", "application/octet-stream")])[:-2]
    if framing == "length":
        client.send(head + b"Content-Length: 100000\r\n\r\nabc")
    else:
        client.send(head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    leg = front.decode.next()
    assert b"abc" in leg.body_piece()
    getattr(client, leave)()
    leg.wait_until_dropped()
    leg.close()


def test_client_that_leaves_within_a_head_is_no_exchange(front):
    since = front.sidecar.mark()
    with front.connect() as client:
        client.send(b"GET /half HT")
        client.finish_sending()
        client.expect_closed()
    with front.connect() as client:
        assert client.request("GET", "/after", [("Expect", "x")]).status == 417
    front.sidecar.wait_log("exchange", since, path="/after")
    assert not [line for line in front.sidecar.lines[since:] if line.fields.get("path") in ("", "/half")]


def test_no_connection_is_left_after_many_departures(own):
    rig = own.rig({"DYN_SIDECAR_MAX_IDLE_UPSTREAM": "0"}, decode=("--decode-us-per-token", "20000"))
    before = rig.sidecar.open_sockets()
    clients = [rig.start({**COMPLETION, "max_tokens": 2000, "stream": True}) for _ in range(20)]
    for client in clients:
        client.read_chunk(client.read_head())
    for client in clients:
        client.close()
    rig.decode.wait(requests=0, blocks_free="all")
    rig.wait_tidy()
    rig.decode.wait(connections="<=1")  # the health check's
    rig.prefill.wait(connections=0)
    with rig.connect() as client:
        client.request("GET", "/health")
    assert rig.sidecar.open_sockets() <= before + 2


@pytest.mark.parametrize("leave", ["close", "reset"])
@pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])
def test_client_leaves_with_another_request_unread_behind_the_first(scripted, leave, disaggregated):
    client = scripted.start({"prompt": "p"}, disaggregated=disaggregated)
    leg = (scripted.prefill if disaggregated else scripted.decode).next()
    leg.body()
    client.send(wire("GET", "/never") * 3)
    getattr(client, leave)()
    leg.wait_until_dropped()
    assert scripted.exchange_line(path="/v1/completions").fields["outcome"] == "client_gone"
    scripted.decode.expect_nothing()
