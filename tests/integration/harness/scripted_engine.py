"""An engine that the test plays itself, byte by byte. Health checks are answered without asking the test."""

import json
import queue
import socket
import threading

from .limits import BRIEF, PATIENCE

# A handoff as a prefill engine sends it. The numbers are there to be damaged by whoever reads them as floats.
HANDOFF = (
    b'{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[12, 13], [9007199254740993]],'
    b' "remote_engine_id": "engine-\\u00e9", "remote_request_id": "cmpl-77-0-1a2b3c4d", "remote_host": "192.0.2.7",'
    b' "remote_port": 5600, "tp_size": 1, "remote_num_tokens": 18446744073709551615, "pp_size": 1.0,'
    b' "remote_blocks_expiry_time": 1.50e3, "transfer_mode": "pull", "later": {"<&>": [null, -0.0]}}')


def prefill_body(params=HANDOFF):
    return b'{"id": "cmpl-77", "object": "text_completion", "choices": [{"text": "<<P>>"}], "kv_transfer_params": ' + \
        params + b'}'


class Gone(Exception):
    """The sidecar closed the connection."""


class _Link:
    def __init__(self, accepted, number):
        self.socket = accepted
        self.number = number
        self.buffer = b""
        self.closed = False

    def more(self):
        try:
            data = self.socket.recv(65536)
        except OSError:
            data = b""
        if not data:
            raise Gone()
        self.buffer += data

    def line(self):
        while b"\r\n" not in self.buffer:
            self.more()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line


class EngineExchange:
    """One request, and the way to answer it."""

    def __init__(self, link):
        self.link = link
        self.connection = link.number
        self._done = threading.Event()
        while b"\r\n\r\n" not in link.buffer:
            link.more()
        head, link.buffer = link.buffer.split(b"\r\n\r\n", 1)
        self.head = head
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, self.version = first.split(" ")
        self.headers = [tuple(line.split(": ", 1)) for line in lines]
        self._body = None
        self.chunks = []

    def header(self, name):
        values = self.all_headers(name)
        return values[0] if values else None

    def all_headers(self, name):
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def framing(self):
        if self.header("transfer-encoding"):
            return "chunked"
        return "fixed" if self.header("content-length") else "none"

    def body_piece(self):
        """Some bytes of a body that is still on its way."""
        if not self.link.buffer:
            self.link.more()
        data, self.link.buffer = self.link.buffer, b""
        return data

    def body(self):
        if self._body is None:
            link = self.link
            self._body = b""
            if self.framing == "chunked":
                while True:
                    size = int(link.line(), 16)
                    if size == 0:
                        while link.line():  # trailers
                            pass
                        break
                    while len(link.buffer) < size + 2:
                        link.more()
                    piece, link.buffer = link.buffer[:size], link.buffer[size + 2:]
                    self.chunks.append(piece)
                self._body = b"".join(self.chunks)
            elif self.framing == "fixed":
                size = int(self.header("content-length"))
                while len(link.buffer) < size:
                    link.more()
                self._body, link.buffer = link.buffer[:size], link.buffer[size:]
        return self._body

    @property
    def json(self):
        return json.loads(self.body())

    def send(self, data):
        self.link.socket.sendall(data)

    def reply(self, body=b"", status="200 OK", headers=(("Content-Type", "application/json"),), keep=True):
        """A complete reply of known length; the connection may be used again."""
        self.body()
        lines = [f"HTTP/1.1 {status}"] + [f"{name}: {value}" for name, value in headers]
        lines.append(f"Content-Length: {len(body)}")
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
        if keep:
            self.done()

    def begin_stream(self, headers=(("Content-Type", "text/event-stream"),), status="200 OK"):
        self.body()
        lines = [f"HTTP/1.1 {status}", "Transfer-Encoding: chunked"] + [f"{name}: {value}" for name, value in headers]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def chunk(self, data):
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end_stream(self):
        self.send(b"0\r\n\r\n")
        self.done()

    def done(self):
        """The connection's next request may come."""
        self._done.set()

    def close(self):
        self.link.closed = True
        try:
            self.link.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.link.socket.close()
        self.done()

    def reset(self):
        self.link.closed = True
        self.link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.link.socket.close()
        self.done()

    def wait_until_dropped(self):
        """Returns once the sidecar has closed this connection."""
        try:
            while True:
                self.link.buffer = b""
                self.link.more()
        except Gone:
            pass

    def wait_for_done(self):
        return self._done.wait(PATIENCE) and not self.link.closed


class ScriptedEngine:
    def __init__(self, host="127.0.0.1", listener=None):
        self.listener = listener or self._listen(host)
        self.port = self.listener.getsockname()[1]
        self.authority = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.exchanges = queue.Queue()
        self.links = []
        self.healthy = True
        threading.Thread(target=self._accept, daemon=True).start()

    @staticmethod
    def _listen(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind((host, 0))
        listener.listen(64)
        return listener

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        for end in [self.listener] + [link.socket for link in self.links]:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _accept(self):
        while True:
            try:
                accepted, _ = self.listener.accept()
            except OSError:
                return
            accepted.settimeout(PATIENCE)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(accepted, len(self.links) + 1)
            self.links.append(link)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link):
        try:
            while True:
                exchange = EngineExchange(link)
                if exchange.method == "GET" and exchange.target == "/health":
                    # Not kept: the test's first request shall meet a connection of its own.
                    exchange.send(b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" %
                                  (b"200 OK" if self.healthy else b"503 Busy"))
                    exchange.close()
                    return
                self.exchanges.put(exchange)
                if not exchange.wait_for_done():
                    return
        except (Gone, OSError):
            link.socket.close()

    def next(self):
        """The next request, when its head has come."""
        return self.exchanges.get(timeout=PATIENCE)

    def expect_nothing(self):
        """No request comes. Call it after an event that would have been preceded by one: then it need not wait."""
        assert self.exchanges.empty()

    def expect_silence(self):
        try:
            exchange = self.exchanges.get(timeout=BRIEF)
        except queue.Empty:
            return
        raise AssertionError(f"unexpected request {exchange.head!r}")
