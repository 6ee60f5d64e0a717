"""An ext_proc client that behaves as Envoy does, and is as strict about the order of answers."""

import queue

import grpc
from harness.limits import BRIEF, PATIENCE
from messages import ext_proc

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
LARGEST_PIECE = 62_000
FULL_DUPLEX = 4
_END = object()


def header_map(message, headers, raw=True):
    for name, value in headers:
        header = message.headers.headers.add(key=name)
        if raw and not name.startswith(":"):
            header.raw_value = value.encode()
        else:
            header.value = value


class Direction:
    """What has come back of a direction, and whether it was allowed to."""

    def __init__(self):
        self.headers = None
        self.metadata = None
        self.body = b""
        self.pieces = []
        self.ended = False
        self.trailers = False

    def on_headers(self, answer, metadata):
        assert self.headers is None and not self.pieces and not self.trailers, "headers out of order"
        self.headers = answer.response
        self.metadata = metadata

    def on_body(self, answer, needs_headers):
        assert self.headers is not None or not needs_headers, "a body before its headers"
        assert not self.ended and not self.trailers, "a body after its end"
        mutation = answer.response.body_mutation
        assert mutation.WhichOneof("mutation") == "streamed_response", "full duplex needs streamed bodies"
        piece = mutation.streamed_response
        assert len(piece.body) <= LARGEST_PIECE
        self.pieces.append(piece.body)
        self.body += piece.body
        self.ended = piece.end_of_stream

    def on_trailers(self, needs_headers):
        assert self.headers is not None or not needs_headers, "trailers before headers"
        assert not self.trailers, "trailers twice"
        self.trailers = True

    @property
    def sets(self):
        return {option.header.key: option.header.raw_value.decode() for option in self.headers.header_mutation.set_headers}

    @property
    def removes(self):
        return set(self.headers.header_mutation.remove_headers)


class Stream:
    """One HTTP request as its gateway sees it."""

    def __init__(self, channel, modes=(FULL_DUPLEX, FULL_DUPLEX), observability=False):
        self._outgoing = queue.SimpleQueue()
        self._incoming = queue.SimpleQueue()
        self._first = True
        self._modes = modes
        self._observability = observability
        self.request = Direction()
        self.response = Direction()
        self.immediate = None
        self.status = None
        self.details = None
        call = channel.stream_stream(METHOD, request_serializer=ext_proc.ProcessingRequest.SerializeToString,
                                     response_deserializer=ext_proc.ProcessingResponse.FromString)
        self.call = call(iter(self._outgoing.get, _END), timeout=PATIENCE)
        import threading
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self):
        try:
            for answer in self.call:
                self._incoming.put(answer)
        except grpc.RpcError:
            pass
        self._incoming.put(_END)

    # What the gateway sends

    def _send(self, message):
        if self._first:
            self._first = False
            message.observability_mode = self._observability
            if self._modes is not None:
                message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = self._modes
        self._outgoing.put(message)

    def send_headers(self, path="/v1/chat/completions", headers=(), end=False, method="POST", subset=None, raw=True):
        message = ext_proc.ProcessingRequest()
        message.request_headers.end_of_stream = end
        header_map(message.request_headers, [(":method", method), (":path", path), (":authority", "model"), *headers], raw)
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hint.update({"x-gateway-destination-endpoint-subset": subset})
        self._send(message)

    def send_body(self, body, end=True):
        message = ext_proc.ProcessingRequest()
        message.request_body.body = body
        message.request_body.end_of_stream = end
        self._send(message)

    def send_trailers(self):
        message = ext_proc.ProcessingRequest()
        message.request_trailers.SetInParent()
        self._send(message)

    def respond_headers(self, status=200, content_type="text/event-stream", end=False, served=None):
        message = ext_proc.ProcessingRequest()
        message.response_headers.end_of_stream = end
        header_map(message.response_headers, [(":status", str(status)), ("content-type", content_type)])
        self._serve(message, served)
        self._send(message)

    def respond_body(self, body, end=False, served=None):
        message = ext_proc.ProcessingRequest()
        message.response_body.body = body
        message.response_body.end_of_stream = end
        self._serve(message, served)
        self._send(message)

    def respond_trailers(self):
        message = ext_proc.ProcessingRequest()
        message.response_trailers.SetInParent()
        self._send(message)

    @staticmethod
    def _serve(message, served):
        if served is not None:
            message.metadata_context.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint-served": served})

    def close(self):
        """The request is over for the gateway."""
        self._outgoing.put(_END)

    def cancel(self):
        """The client left."""
        self.call.cancel()

    # What comes back

    def step(self, patience=PATIENCE):
        """Takes the next answer; False at the stream's end."""
        answer = self._incoming.get(timeout=patience)
        if answer is _END:
            self._incoming.put(_END)
            self.status = self.call.code()
            self.details = self.call.details()
            return False
        assert self.immediate is None, "an answer after the last"
        kind = answer.WhichOneof("response")
        metadata = answer.dynamic_metadata if answer.HasField("dynamic_metadata") else None
        if kind == "request_headers":
            self.request.on_headers(answer.request_headers, metadata)
        elif kind == "response_headers":
            self.response.on_headers(answer.response_headers, metadata)
        elif kind == "request_body":
            self.request.on_body(answer.request_body, True)
        elif kind == "response_body":
            self.response.on_body(answer.response_body, False)
        elif kind == "request_trailers":
            self.request.on_trailers(True)
        elif kind == "response_trailers":
            self.response.on_trailers(False)
        elif kind == "immediate_response":
            assert self.response.headers is None, "an immediate answer after a response"
            self.immediate = answer.immediate_response
        else:
            raise AssertionError(f"what is {kind}?")
        return True

    def until(self, condition):
        while not condition():
            assert self.step(), f"the stream ended: {self.status} {self.details}"

    def until_routed(self):
        self.until(lambda: self.request.headers is not None)
        return self.request.sets["x-gateway-destination-endpoint"]

    def until_end(self):
        while self.step():
            pass
        return self.status

    def is_silent(self):
        """Nothing came back, nor is it going to."""
        try:
            answer = self._incoming.get(timeout=BRIEF)
        except queue.Empty:
            return True
        self._incoming.put(answer)
        return False
