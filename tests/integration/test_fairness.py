"""Peers that always have more to give: nobody waits for them to end, and none goes on for ever."""

import signal
import socket
import threading
import time

import pytest
from harness.http_client import wire

ONE_LOOP = pytest.mark.settings(DYN_SIDECAR_THREADS="1")
AUDIO = ("Content-Type", "audio/wav")


class Flood:
    """Sends the same bytes again and again, and takes whatever comes back, until it is left."""

    def __init__(self, connection, data):
        self.connection = connection
        self.data = data
        self.threads = [threading.Thread(target=way, daemon=True) for way in (self._send, self._take)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *exc):
        try:
            self.connection.socket.shutdown(socket.SHUT_RDWR)  # ends the threads' calls, which would keep the socket open
        except OSError:
            pass
        for thread in self.threads:
            thread.join()
        self.connection.reset()

    def _send(self):
        try:
            while True:
                self.connection.socket.sendall(self.data)
        except OSError:
            pass

    def _take(self):
        try:
            while self.connection.socket.recv(1 << 20):
                pass
        except OSError:
            pass


def others_are_served(sidecar):
    for _ in range(3):
        with sidecar.connect() as client:
            assert client.request("GET", "/health").status == 200


@ONE_LOOP
def test_pipelined_requests_do_not_keep_others_waiting(scripted):
    with Flood(scripted.connect(), wire("GET", "/health") * 5000):
        others_are_served(scripted.sidecar)


@ONE_LOOP
@pytest.mark.parametrize("content_type", [AUDIO, ("Content-Type", "application/json")], ids=["passed-on", "read-whole"])
def test_an_upload_of_tiny_chunks_does_not_keep_others_waiting(scripted, content_type):
    flooder = scripted.connect()
    flooder.send(wire("POST", "/v1/audio", [content_type, ("Transfer-Encoding", "chunked")]))
    drained = None
    with Flood(flooder, b"1\r\nx\r\n" * 100_000):
        if content_type is AUDIO:
            leg = scripted.decode.next()
            drained = threading.Thread(target=leg.wait_until_dropped, daemon=True)
            drained.start()
        others_are_served(scripted.sidecar)
    if drained:
        drained.join()


@ONE_LOOP
def test_a_flooded_sidecar_stops_in_order(own):
    decode = own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_THREADS": "1", "DYN_SIDECAR_DRAIN_TIMEOUT_MS": "200",
                                        "DYN_SIDECAR_DRAIN_DELAY_MS": "0"})
    flooder = sidecar.connect()
    flooder.send(wire("POST", "/v1/audio", [AUDIO, ("Transfer-Encoding", "chunked")]))
    leg = decode.next()
    threading.Thread(target=leg.wait_until_dropped, daemon=True).start()
    with Flood(flooder, b"1\r\nx\r\n" * 100_000):
        sidecar.process.send_signal(signal.SIGHUP)
        assert sidecar.process.wait(60) == 0


@pytest.mark.parametrize("content_type", [AUDIO, ("Content-Type", "application/json")], ids=["passed-on", "read-whole"])
def test_chunk_extensions_may_not_outweigh_the_content(scripted, content_type):
    with scripted.connect() as client:
        client.send(wire("POST", "/v1/audio", [content_type, ("Transfer-Encoding", "chunked")]))
        with pytest.raises(OSError):  # closed, in the middle of it
            for _ in range(100_000):
                client.send(b"1;" + b"a" * 1000 + b"\r\nx\r\n")
    line = scripted.exchange_line(path="/v1/audio")
    assert line.fields["error"] == "bad_request"


def test_chunk_extensions_are_taken_beside_content(scripted):
    """As signed uploads have them, one for each piece."""
    with scripted.connect() as client:
        client.send(wire("POST", "/v1/audio", [AUDIO, ("Transfer-Encoding", "chunked")]))
        for _ in range(2000):
            client.send(b"100;chunk-signature=" + b"0" * 64 + b"\r\n" + b"x" * 256 + b"\r\n")
        client.send(b"0\r\n\r\n")
        leg = scripted.decode.next()
        assert len(leg.body()) == 2000 * 256
        leg.reply(b"ok")
        assert client.read_response().status == 200


@pytest.mark.parametrize("disaggregated", [True, False], ids=["prefill", "decode"])
@pytest.mark.parametrize("interim", [b"HTTP/1.1 103 Early Hints\r\n\r\n",
                                     b"HTTP/1.1 103 Early Hints\r\nlink: " + b"x" * 8000 + b"\r\n\r\n"], ids=["small", "large"])
def test_interim_responses_have_an_end(scripted, disaggregated, interim):
    client = scripted.start(b'{"prompt":"x"}', disaggregated=disaggregated)
    leg = (scripted.prefill if disaggregated else scripted.decode).next()
    leg.body()
    with pytest.raises(OSError):
        for _ in range(100_000):
            leg.send(interim * 20)
    answer = client.read_response()
    if disaggregated:
        answer.refused(502, "prefill_response_too_large")
    else:
        answer.refused(502, "decode_upstream_error")
    client.close()


def test_a_few_interim_responses_are_skipped(scripted):
    client = scripted.start(b'{"prompt":"x"}', disaggregated=False)
    leg = scripted.decode.next()
    leg.body()
    for _ in range(16):
        leg.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
    leg.reply(b"ok")
    assert client.read_response().body == b"ok"
    client.close()


# Slower than what the kernel wants to see before it calls a socket writable again, for longer than the time-out, and a
# time-out far above what a busy machine may hold a test up.
SLOW = pytest.mark.settings(DYN_SIDECAR_READ_TIMEOUT_MS="5000")
SLOW_SECONDS = 11


@SLOW
def test_a_client_that_is_slow_gets_its_whole_answer(scripted):
    body = b"x" * 24_000_000
    client = scripted.connect(receive_buffer=65536)
    client.send(wire("GET", "/v1/large"))
    leg = scripted.decode.next()
    sending = threading.Thread(target=leg.reply, args=(body,), daemon=True)
    sending.start()
    end = time.monotonic() + SLOW_SECONDS
    while time.monotonic() < end:
        client.buffer += client.socket.recv(4096)
        time.sleep(0.05)
    assert client.read_response().body == body
    sending.join()
    client.close()


@SLOW
def test_an_engine_that_is_slow_gets_the_whole_body(scripted):
    body = b"x" * 24_000_000
    client = scripted.connect()
    sending = threading.Thread(target=client.send, args=(wire("POST", "/v1/audio", [AUDIO], body),), daemon=True)
    sending.start()
    leg = scripted.decode.next()
    taken = 0
    end = time.monotonic() + SLOW_SECONDS
    while time.monotonic() < end:
        taken += len(leg.link.buffer) + len(leg.link.socket.recv(4096))
        leg.link.buffer = b""
        time.sleep(0.05)
    while taken < len(body):
        taken += len(leg.link.socket.recv(1 << 20))
    leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    leg.done()
    assert client.read_response().body == b"ok"
    sending.join()
    client.close()


def test_who_never_asks_anything_is_not_kept(own):
    decode = own.scripted()
    sidecar = own.sidecar(decode.port, {"DYN_SIDECAR_THREADS": "1", "DYN_SIDECAR_MAX_CONNECTIONS": "2",
                                        "DYN_SIDECAR_CLIENT_HEADER_TIMEOUT_MS": "200"})
    silent = [sidecar.connect() for _ in range(2)]
    with sidecar.connect() as client:
        assert client.request("GET", "/health").status == 200
    for connection in silent:
        connection.expect_closed()
    sidecar.wait_log("connection_limit")
