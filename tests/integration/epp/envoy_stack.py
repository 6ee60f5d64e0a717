"""Envoy, the Endpoint Picker, a decode sidecar and two mock engines, for the tests of the whole path."""

import contextlib
import json
import os
import pathlib
import sys

import envoy_process
from epp_process import Epp
from harness.http_client import Connection, wire
from harness.limits import PATIENCE, wait_until
from harness.sidecar import BIN, Sidecar

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "mock_engine"))
import mock_engine_client  # noqa: E402

mock_engine_client.PATIENCE = PATIENCE
MOCK = os.environ.get("HANDOFF_MOCK_ENGINE", str(BIN / "handoff-mock-engine"))
JSON = ("Content-Type", "application/json")


def start_engine(role, *flags):
    return mock_engine_client.MockEngine("--role", role, *flags, binary=MOCK)


class Front:
    """Envoy and the Endpoint Picker, whose endpoints the test names."""

    def __init__(self, stack, settings=None, to_the_picker=None):
        self.epp = Epp({"DYN_SECURE_SERVING": "true", **(settings or {})})
        stack.callback(self.epp.stop)
        self.epp.tell("synced", 1)
        self.envoy = envoy_process.Envoy(self.epp.port, to_the_picker)
        stack.callback(self.envoy.stop)

    def waiting(self):
        """Requests in the queues."""
        return sum(selector["waiting"] for selector in self.epp.report()["selectors"])


class Stack(Front):
    def __init__(self, stack, settings, prefill_flags=(), decode_flags=()):
        self.prefill = stack.enter_context(start_engine("producer", *prefill_flags))
        self.decode = stack.enter_context(start_engine("consumer", *decode_flags))
        self.sidecar = stack.enter_context(Sidecar(self.decode.port))
        super().__init__(stack, settings)
        self.epp.endpoint("p0", self.prefill.port, "prefill")
        self.epp.endpoint("d0", self.sidecar.port, "decode")

    def connect(self):
        return Connection(self.envoy.port)

    def start(self, body, path="/v1/completions", headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        connection.send(wire("POST", path, [JSON, *headers], body))
        return connection

    def post(self, *arguments, **how):
        with self.start(*arguments, **how) as connection:
            return connection.read_response("POST")

    def wait_tidy(self):
        self.epp.wait_tidy()
        self.decode.wait(requests=0, blocks_free="all", leases=0)
        self.prefill.wait(requests=0, blocks_free="all", leases=0)

    @contextlib.contextmanager
    def checked(self):
        """When the test is over, nothing is booked, held or open, the next request is answered, and Envoy got no answer that it
        did not wait for."""
        spurious = self.envoy.counter("spurious_msgs_received")
        yield self
        self.epp.tell("tokenizer", "answer")
        for engine in (self.prefill, self.decode):
            engine.control("DELETE", "/mock/faults")
        self.wait_tidy()
        wait_until(self.envoy.is_idle)
        assert self.post(prompt()).status == 200
        assert self.envoy.counter("spurious_msgs_received") == spurious


def prompt(**members):
    return {"prompt": "a prompt of some words", "max_tokens": 8, **members}
