"""A running stack and an OpenAI client for it, shared by the cases of a class."""

import os
import sys
import unittest

import openai

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

from handoff_stack import PATIENCE, Stack  # noqa: E402

BIN = os.environ.get("HANDOFF_BIN", os.path.join(ROOT, "build", "release", "bin"))
MODEL = "mock-model"
SPEED = ["--decode-us-per-token", "1000"]


def user(text):
    return [{"role": "user", "content": text}]


class ClientCase(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.stack = Stack(BIN, SPEED, SPEED)
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.stop)
        cls.client = cls.new_client(default_headers={"x-prefiller-host-port": cls.stack.prefill_address})
        cls.addClassCleanup(cls.client.close)

    @classmethod
    def new_client(cls, **options):
        return openai.OpenAI(base_url=cls.stack.url + "/v1", api_key="unused", max_retries=0, timeout=PATIENCE, **options)

    def setUp(self):
        self.before = self.states()

    def tearDown(self):
        self.states()
        self.stack.prefill.control("DELETE", "/mock/faults")
        self.stack.decode.control("DELETE", "/mock/faults")

    def states(self):
        """Of both engines, once neither holds a block, a lease or a request."""
        return {"prefill": self.stack.prefill.settled(), "decode": self.stack.decode.settled()}

    def grown(self, engine, *path):
        now = self.states()[engine]
        before = self.before[engine]
        for name in path:
            now, before = now[name], before[name]
        return now - before

    def asked(self, engine):
        """How many requests it got, without the health checks that come at any time."""
        now, before = ({path: count for path, count in state["requests_by_path"].items() if path != "/health"}
                       for state in (self.states()[engine], self.before[engine]))
        return sum(now.values()) - sum(before.values())

    def expected(self, path, **body):
        """The answer of an engine that was asked without a sidecar."""
        return self.stack.decode.expect(path, {"model": MODEL, **body})

    def assert_disaggregated(self):
        """The prompt was computed once, on the prefill engine, and pulled by the decode engine."""
        prompt_tokens = self.grown("prefill", "tokens", "local_compute")
        self.assertGreater(prompt_tokens, 0)
        self.assertEqual(self.grown("decode", "tokens", "local_compute"), 0)
        self.assertEqual(self.grown("decode", "tokens", "external_kv_transfer"), prompt_tokens)
        return prompt_tokens

    def assert_decode_only(self):
        self.assertEqual(self.asked("prefill"), 0)
        self.assertGreater(self.grown("decode", "tokens", "local_compute"), 0)
