"""An HTTP/1 client that sends exactly the bytes it is told and shows exactly what came back."""

import json
import select
import socket

from .limits import BRIEF, PATIENCE


class Truncated(Exception):
    """The connection ended inside a message. `how` is "fin" or "reset"; `response` holds what came before."""

    def __init__(self, how, response=None):
        super().__init__(f"connection ended with {how} inside a message")
        self.how = how
        self.response = response


class Response:
    def __init__(self, status, reason, version, headers):
        self.status = status
        self.reason = reason
        self.version = version
        self.headers = headers
        self.body = b""
        self.chunks = []
        self.framing = "none"
        self.interim = []

    def header(self, name):
        values = self.all_headers(name)
        return values[0] if values else None

    def all_headers(self, name):
        return [value for key, value in self.headers if key.lower() == name.lower()]

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        """The error object of an OpenAI-shaped body, whose shape is checked on the way."""
        assert self.header("content-type") == "application/json", (self.headers, self.body)
        body = self.json
        assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}, body
        return body["error"]

    def refused(self, status, code):
        """Asserts an error of the sidecar's own."""
        assert (self.status, self.error["code"]) == (status, code), (self.status, self.body)
        kind = "server_error"
        if 400 <= status < 500:
            kind = "permission_error" if status == 403 else "invalid_request_error"
        if code not in ("prefill_upstream_error",):
            assert self.error["type"] == kind
        return self

    def events(self):
        """The data of each server-sent event."""
        return [block[6:] for block in self.body.decode().split("\n\n") if block.startswith("data: ")]

    def __repr__(self):
        return f"<{self.status} {self.framing} {self.body[:200]!r}>"


def wire(method, target, headers=(), body=None, host="sidecar.test", version="1.1"):
    """The bytes of a request. `body`: bytes for a fixed length, a list of bytes for chunks."""
    lines = [f"{method} {target} HTTP/{version}"]
    if host is not None:
        lines.append(f"Host: {host}")
    lines += [f"{name}: {value}" for name, value in headers]
    if isinstance(body, list):
        lines.append("Transfer-Encoding: chunked")
    elif body is not None:
        lines.append(f"Content-Length: {len(body)}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    if isinstance(body, list):
        return head + chunked(body)
    return head + (body or b"")


def chunked(pieces, last=True):
    data = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return data + (b"0\r\n\r\n" if last else b"")


class Connection:
    def __init__(self, port, host="127.0.0.1", receive_buffer=None):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((host, port))
        self.buffer = b""
        self.received = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def finish_sending(self):
        self.socket.shutdown(socket.SHUT_WR)

    def send(self, data):
        self.socket.sendall(data)

    def request(self, method, target, headers=(), body=None, **how):
        self.send(wire(method, target, headers, body, **how))
        return self.read_response(method)

    # ------------------------------------------------------------------------------------------ receiving

    def _more(self, response=None):
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            raise Truncated("reset", response) from None
        if not data:
            raise Truncated("fin", response)
        self.received += len(data)
        self.buffer += data

    def _line(self, response=None):
        while b"\r\n" not in self.buffer:
            self._more(response)
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def read_head(self):
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, reason = (first.split(" ", 2) + [""])[:3]
        headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines]
        assert version == "HTTP/1.1", first
        return Response(int(status), reason, version, headers)

    def read_chunk(self, response):
        """One chunk's content; b"" for the last."""
        size = int(self._line(response), 16)
        if size == 0:
            assert self._line(response) == b""
            return b""
        while len(self.buffer) < size + 2:
            self._more(response)
        data, end, self.buffer = self.buffer[:size], self.buffer[size:size + 2], self.buffer[size + 2:]
        assert end == b"\r\n"
        response.chunks.append(data)
        response.body += data
        return data

    def read_body(self, response, method="GET"):
        if method == "HEAD" or response.status in (204, 304) or response.status < 200:
            return response
        if response.header("transfer-encoding"):
            assert response.all_headers("transfer-encoding") == ["chunked"]
            assert response.header("content-length") is None
            response.framing = "chunked"
            while self.read_chunk(response):
                pass
        elif response.header("content-length") is not None:
            response.framing = "fixed"
            assert len(response.all_headers("content-length")) == 1
            size = int(response.header("content-length"))
            while len(self.buffer) < size:
                response.body = self.buffer
                self._more(response)
            response.body, self.buffer = self.buffer[:size], self.buffer[size:]
        else:
            response.framing = "close"
            response.body, self.buffer = self.buffer, b""
            while True:
                try:
                    self._more(response)
                except Truncated as end:
                    if end.how == "reset":
                        raise
                    break
                response.body += self.buffer
                self.buffer = b""
        return response

    def read_response(self, method="GET"):
        interim = []
        response = self.read_head()
        while response.status < 200:
            interim.append(response)
            response = self.read_head()
        response.interim = interim
        return self.read_body(response, method)

    def read_end(self):
        """How the connection ends: ("fin" | "reset", bytes before that)."""
        while True:
            try:
                self._more()
            except Truncated as end:
                return end.how, self.buffer

    def expect_closed(self):
        how, rest = self.read_end()
        assert rest == b"", rest
        return how

    def expect_silence(self):
        """Nothing comes, and the connection stays open."""
        assert self.buffer == b""
        readable, _, _ = select.select([self.socket], [], [], BRIEF)
        assert not readable, "something arrived"
