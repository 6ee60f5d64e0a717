"""One request of a client, over HTTP/1.1 or HTTP/2, in steps; the same for both, but for how a client can leave."""

import json

from .http2_client import Http2Client
from .http_client import Connection, Truncated, wire

JSON = ("content-type", "application/json")


class Reply:
    def __init__(self, status, headers, body, complete):
        self.status = status
        self.headers = headers
        self.body = body
        self.complete = complete  # it ended as an answer ends

    @property
    def error(self):
        """The error object of an OpenAI-shaped body."""
        assert self.complete and self.headers["content-type"] == "application/json", self
        body = json.loads(self.body)
        assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}, body
        return body["error"]

    def __repr__(self):
        return f"<{self.status} {self.headers} {self.body[:300]!r} complete={self.complete}>"


class Http1Request:
    ways_to_leave = ("close", "reset", "half_close")

    def __init__(self, port, path):
        self.connection = Connection(port)
        self._path = path
        self._head = None

    def send_part_of_head(self):
        self.connection.send(f"POST {self._path} HTTP/1.1\r\nHost: stack.test\r\nContent-Le".encode())

    def send_head(self, headers=(), length=None):
        """Without a length the body is chunked."""
        framing = ("content-length", str(length)) if length is not None else ("transfer-encoding", "chunked")
        self._chunked = length is None
        self.connection.send(wire("POST", self._path, [JSON, framing, *headers]))

    def send_body(self, data, end=True):
        if self._chunked:
            data = (b"%x\r\n%s\r\n" % (len(data), data) if data else b"") + (b"0\r\n\r\n" if end else b"")
        try:
            self.connection.send(data)
        except ConnectionError:
            pass  # answered meanwhile

    def read_head(self):
        """The status, when it has come."""
        self._head = self.connection.read_head()
        return self._head.status

    def read_some(self):
        """The status, when the first piece of the body has come."""
        self.read_head()
        self.connection.read_chunk(self._head)
        return self._head.status

    def read(self):
        """What comes until the answer's end."""
        head = self._head
        try:
            head = head or self.connection.read_head()
            while head.header("transfer-encoding") and self.connection.read_chunk(head):
                pass
            if not head.header("transfer-encoding"):
                self.connection.read_body(head, "POST")
            complete = True
        except Truncated:
            complete = False
        if head is None:
            return Reply(0, {}, b"", False)
        return Reply(head.status, {name.lower(): value for name, value in head.headers}, head.body, complete)

    def leave(self, how):
        if how == "reset":
            self.connection.reset()
        elif how == "half_close":
            self.connection.finish_sending()
            self.connection.read_end()  # Envoy takes that for the end of all
            self.connection.close()
        else:
            self.connection.close()

    def close(self):
        self.connection.close()


class Http2Request:
    ways_to_leave = ("reset_stream", "close")

    def __init__(self, port, path):
        self.connection = Http2Client(port)
        self._path = path
        self._stream = None

    def send_head(self, headers=(), length=None):
        framing = [("content-length", str(length))] if length is not None else []
        self._stream = self.connection.begin(self._path, [*framing, *((name.lower(), value) for name, value in headers)])

    def send_body(self, data, end=True):
        self.connection.send_data(self._stream, data, end)

    def read_head(self):
        self.connection.until(lambda: self._stream in self.connection.headers)
        return int(self.connection.headers[self._stream][":status"])

    def read_some(self):
        self.connection.until(lambda: self.connection.data[self._stream])
        return self.read_head()

    def read(self):
        self.connection.until(lambda: self._stream in self.connection.closed)
        headers = self.connection.headers.get(self._stream, {})
        return Reply(int(headers.get(":status", 0)), headers, self.connection.data[self._stream],
                     self._stream in self.connection.ended)

    def leave(self, how):
        if how == "reset_stream":
            self.connection.reset(self._stream)
            return
        self.connection.close()

    def close(self):
        self.connection.close()


CLIENTS = {"http1": Http1Request, "http2": Http2Request}


def start(client, port, body, headers=(), path="/v1/completions"):
    """A request that is wholly sent."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = CLIENTS[client](port, path)
    request.send_head(headers, len(body))
    request.send_body(body)
    return request


def ask(*arguments, **how):
    """A request and its reply."""
    request = start(*arguments, **how)
    reply = request.read()
    request.close()
    return reply
