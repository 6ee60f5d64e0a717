"""An HTTP/2 client with prior knowledge, several requests on one connection."""

import collections
import socket

import pytest

from .limits import PATIENCE

h2_config = pytest.importorskip("h2.config", reason="no python3-h2")
import h2.connection  # noqa: E402
import h2.errors  # noqa: E402
import h2.events  # noqa: E402


class Http2Client:
    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._h2 = h2.connection.H2Connection(h2_config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._authority = f"127.0.0.1:{port}"
        self._send()
        self.headers = {}
        self.trailers = {}
        self.data = collections.defaultdict(bytes)
        self.ended = set()
        self.closed = set()  # ended, or reset by the other side

    def _send(self):
        self._socket.sendall(self._h2.data_to_send())

    def post(self, path, body, headers=(), trailers=()):
        """Sends a request, as fast as the windows let it; its stream's number."""
        stream = self.begin(path, headers)
        self.send_data(stream, body, end=not trailers)
        if trailers:
            self._h2.send_headers(stream, list(trailers), end_stream=True)
        self._send()
        return stream

    def begin(self, path, headers=()):
        """Sends the headers of a request; its stream's number."""
        stream = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream, [(":method", "POST"), (":path", path), (":scheme", "http"),
                                       (":authority", self._authority), ("content-type", "application/json"), *headers])
        self._send()
        return stream

    def send_data(self, stream, body, end=True):
        """Goes on until all is sent, or the answer is over."""
        at = 0
        while True:
            self.until(lambda: stream in self.closed or self._h2.local_flow_control_window(stream) > 0)
            if stream in self.closed:
                return
            size = min(self._h2.max_outbound_frame_size, self._h2.local_flow_control_window(stream), len(body) - at)
            at += size
            self._h2.send_data(stream, body[at - size:at], end_stream=end and at == len(body))
            self._send()
            if at == len(body):
                return

    def reset(self, stream):
        self._h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
        self._send()

    def until(self, condition):
        while not condition():
            data = self._socket.recv(65536)
            assert data, "the connection ended"
            for event in self._h2.receive_data(data):
                self._take(event)
            self._send()

    def _take(self, event):
        if isinstance(event, h2.events.ResponseReceived):
            self.headers[event.stream_id] = dict(event.headers)
        elif isinstance(event, h2.events.TrailersReceived):
            self.trailers[event.stream_id] = dict(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            self.data[event.stream_id] += event.data
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended.add(event.stream_id)
            self.closed.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.closed.add(event.stream_id)

    def close(self):
        self._socket.close()
