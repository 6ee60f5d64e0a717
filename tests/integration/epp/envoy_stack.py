"""Envoy, the Endpoint Picker, a decode sidecar and two mock engines, for the tests of the whole path."""

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


class Stack:
    def __init__(self, stack, settings, prefill_flags=(), decode_flags=()):
        self.prefill = stack.enter_context(start_engine("producer", *prefill_flags))
        self.decode = stack.enter_context(start_engine("consumer", *decode_flags))
        self.sidecar = stack.enter_context(Sidecar(self.decode.port))
        self.epp = Epp({"DYN_SECURE_SERVING": "true", **settings})
        stack.callback(self.epp.stop)
        self.epp.endpoint("p0", self.prefill.port, "prefill")
        self.epp.endpoint("d0", self.sidecar.port, "decode")
        self.epp.tell("synced", 1)
        self.envoy = envoy_process.Envoy(self.epp.port)
        stack.callback(self.envoy.stop)

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


def prompt(**members):
    return {"prompt": "a prompt of some words", "max_tokens": 8, **members}
