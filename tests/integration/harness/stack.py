"""The whole stack behind a real Envoy, for tests: what scripts/demo starts, and the proof that nothing was left behind."""

import json
import pathlib
import sys

import pytest

from .limits import PATIENCE, wait_until
from .sidecar import BIN

grpc = pytest.importorskip("grpc")

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "scripts"))

import handoff_stack  # noqa: E402
import mock_engine_client  # noqa: E402
from envoy_binary import find_envoy, is_required  # noqa: E402
from full_stack import FullStack  # noqa: E402

handoff_stack.PATIENCE = mock_engine_client.PATIENCE = PATIENCE
QUICK = ("--prefill-us-per-token", "0", "--decode-us-per-token", "0")
CHAT = "/v1/chat/completions"


def need_envoy():
    """The command. Without one the test is skipped, or fails where it is required."""
    envoy = find_envoy()
    if envoy is None:
        (pytest.fail if is_required() else pytest.skip)("no Envoy: `python3 scripts/envoy_binary.py` installs it")
    return envoy


def start_stack(**how):
    """A FullStack to be used with `with`."""
    envoy = need_envoy()
    settings = {"DYN_EPP_DEBUG_REPORT": "true", "DYN_EPP_HEALTH_INTERVAL_MS": "50", **how.pop("settings", {})}
    return FullStack(str(BIN), envoy, settings=settings, **how)


def chat(content, **members):
    return {"model": "mock-model", "messages": [{"role": "user", "content": content}], "max_tokens": 6, **members}


def report(stack):
    """The Endpoint Picker's own account."""
    with grpc.insecure_channel(f"127.0.0.1:{stack.picker.health_port}") as channel:
        call = channel.unary_unary("/handoff.epp.v1.Introspection/Report", request_serializer=lambda _: b"",
                                   response_deserializer=lambda data: data)
        data = call(None, timeout=PATIENCE)
    return json.loads(data[data.index(b"{"):])


def is_tidy(stack):
    account = report(stack)
    return account["open_plans"] == 0 and all(each["live_reservations"] == 0 and each["tracked_blocks"] == 0
                                              for each in account["selectors"])


def wait_tidy(stack):
    """No block, lease, plan or reservation is held anywhere."""
    states = [engine.wait(requests=0, blocks_free="all", leases=0) for engine in (*stack.prefills, *stack.decodes)]
    wait_until(lambda: is_tidy(stack))
    return states


def answered(stack, body, path=CHAT, headers=None):
    """The parsed answer of a request that must succeed."""
    status, _, data = stack.post(path, body, headers)
    assert status == 200, (status, data[:500])
    return json.loads(data)


def expected_text(stack, body, path=CHAT):
    return stack.prefills[0].expect(path, body)["text"]
