"""The real program with real parts: a file of endpoints, probed; tokens from an engine's renderer; KV events."""

import contextlib
import json
import os
import pathlib
import sys

import pytest
from epp_process import Epp
from gateway import Stream
from harness.descriptors import without_descriptors
from harness.limits import wait_until
from harness.sidecar import BIN

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "mock_engine"))
import mock_engine_client  # noqa: E402

MOCK = os.environ.get("HANDOFF_MOCK_ENGINE", str(BIN / "handoff-mock-engine"))
EVENTS = ("--prefix-caching", "--kv-events", "--kv-replay-port", "0")


def write_file(path, endpoints):
    """Replaced in one step, as a config map is."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"endpoints": endpoints}), encoding="utf-8")  # JSON is YAML
    new.rename(path)


def entry(name, role, engine, **more):
    return {"name": name, "address": "127.0.0.1", "port": engine.port, "role": role, **more}


class Rig:
    def __init__(self, stack, folder, settings):
        def engine(*flags):
            return stack.enter_context(mock_engine_client.MockEngine(*flags, binary=MOCK))

        self.prefill = [engine(*EVENTS), engine(*EVENTS)]
        self.decode = engine()
        self.file = folder / "endpoints.yaml"
        self.endpoints = [entry(f"p{i}", "prefill", each, kv_event_port=each.kv_event_port,
                                kv_replay_port=each.kv_replay_port) for i, each in enumerate(self.prefill)]
        self.endpoints.append(entry("d0", "decode", self.decode))
        write_file(self.file, self.endpoints)
        self.epp = Epp({"DYN_EPP_ENDPOINTS_FILE": str(self.file), "DYN_USE_KV_EVENTS": "true",
                        "DYN_EPP_HEALTH_INTERVAL_MS": "50", "DYN_EPP_UNHEALTHY_AFTER": "1",
                        "DYN_EPP_TOKENIZER_SERVICE_URL": f"http://127.0.0.1:{self.decode.port}", **settings},
                       program="handoff-epp")
        stack.callback(self.epp.stop)
        self.wait_workers(prefill=2, decode=1)

    def wait_workers(self, **counts):
        wait_until(lambda: {each["role"]: each["schedulable_workers"] for each in self.epp.report()["selectors"]} == counts)

    def pick(self, body):
        stream = Stream(self.epp.channel)
        stream.send_headers(path="/v1/completions")
        stream.send_body(json.dumps(body).encode())
        stream.until_routed()
        stream.cancel()
        return stream.request.sets.get("x-prefiller-host-port")


@pytest.fixture
def rig(tmp_path, request):
    marker = request.node.get_closest_marker("settings")
    with contextlib.ExitStack() as stack:
        rig = Rig(stack, tmp_path, dict(marker.kwargs) if marker else {})
        yield rig
        rig.epp.wait_tidy()
        assert rig.epp.report()["counts"]["tokenizer_failures"] == 0


def test_a_prompt_goes_where_its_prefix_is_cached(rig):
    for turn in range(4):
        engine = rig.prefill[turn % 2]
        body = {"prompt": f"conversation {turn}: " + "word " * 200, "max_tokens": 1}
        assert engine.post("/v1/completions", body).status == 200
        expected = f"127.0.0.1:{engine.port}"
        longer = dict(body, prompt=body["prompt"] + " and a new question")
        wait_until(lambda body=longer, expected=expected: all(rig.pick(body) == expected for _ in range(3)))


def test_events_that_were_missed_are_asked_for(rig):
    engine = rig.prefill[0]
    body = {"prompt": "lost and found " * 100, "max_tokens": 1}
    assert engine.control("POST", "/mock/kv_events", {"lose": 1}).status == 200
    assert engine.post("/v1/completions", body).status == 200
    assert engine.post("/v1/completions", {"prompt": "another one " * 100, "max_tokens": 1}).status == 200
    expected = f"127.0.0.1:{engine.port}"
    wait_until(lambda: all(rig.pick(body) == expected for _ in range(5)))


@pytest.mark.settings(DYN_USE_KV_EVENTS="false")
def test_without_events_a_prompt_follows_its_predecessor(rig):
    body = {"prompt": "approximate " * 100, "max_tokens": 1}
    first = rig.pick(body)
    rig.epp.wait_tidy()
    for _ in range(5):
        assert rig.pick(body) == first
        rig.epp.wait_tidy()


def test_an_engine_that_dies_gets_nothing_more(rig):
    rig.prefill[0].process.kill()
    rig.prefill[0].process.wait()
    rig.wait_workers(prefill=1, decode=1)
    assert rig.pick({"prompt": "x" * 1000}) == f"127.0.0.1:{rig.prefill[1].port}"


def test_the_log_says_how_it_goes_with_the_events_of_each_rank(rig):
    places = [f"tcp://127.0.0.1:{each.kv_event_port}" for each in rig.prefill]
    for place in places:
        rig.epp.wait_log("kv_events", endpoint=place, rank=0, state="following")
    rig.prefill[0].process.kill()
    rig.prefill[0].process.wait()
    rig.epp.wait_log("kv_events", endpoint=places[0], state="disconnected")
    unreachable = dict(rig.endpoints[1], name="p2", port=1, kv_event_port=1)
    write_file(rig.file, [*rig.endpoints, unreachable])
    rig.epp.wait_log("kv_events", endpoint="tcp://127.0.0.1:1", state="unreachable")
    assert not [line for line in rig.epp.lines if line.matches("kv_events", {"endpoint": places[1], "state": "disconnected"})]
    write_file(rig.file, rig.endpoints)


def test_a_lack_of_descriptors_is_no_failure_of_the_endpoints(rig):
    with without_descriptors(rig.epp.process):
        skipped = rig.epp.wait_log("probe_skipped")
        assert "open files" in skipped.fields["reason"]
    rig.prefill[0].process.kill()
    rig.wait_workers(prefill=1, decode=1)
    ports = {each.port for each in (*rig.prefill[1:], rig.decode)}
    assert not [line for line in rig.epp.lines if line.matches("endpoint_not_ready", {}) and line.fields["reason"] and
                int(line.fields["address"].rsplit(":", 1)[1]) in ports and line.fields["reason"] != "not probed yet"]


def test_the_file_is_watched(rig):
    write_file(rig.file, rig.endpoints[1:])
    rig.wait_workers(prefill=1, decode=1)
    rig.file.with_suffix(".new").write_text("endpoints: [{name: 7", encoding="utf-8")
    rig.file.with_suffix(".new").rename(rig.file)
    assert rig.pick({"prompt": "x" * 1000}) == f"127.0.0.1:{rig.prefill[1].port}"
    write_file(rig.file, rig.endpoints)
    rig.wait_workers(prefill=2, decode=1)


def test_a_file_that_comes_and_goes_is_told_each_time(rig):
    def told(name):
        return len([line for line in rig.epp.lines if line.matches(name, {})])

    away = rig.file.with_suffix(".away")
    for time in range(1, 4):
        rig.file.rename(away)
        wait_until(lambda: told("endpoints_file_refused") == time)
        away.rename(rig.file)
        wait_until(lambda: told("endpoints_file_read") == time)
    rig.wait_workers(prefill=2, decode=1)


@pytest.mark.parametrize("member, prompt", [("cache_salt", "x" * 1000), ("cache_salt", list(range(1000))), ("model", list(range(1000)))],
                         ids=["salt-text", "salt-tokens", "model-tokens"])
def test_what_is_too_long_to_be_remembered_is_routed_by_load(rig, member, prompt):
    assert rig.pick({"prompt": prompt, member: "s" * 5000}) in [f"127.0.0.1:{each.port}" for each in rig.prefill]


def test_a_wrong_start_says_why(tmp_path):
    with pytest.raises(AssertionError, match="DYN_EPP_ENDPOINTS_FILE"):
        Epp({"DYN_EPP_ENDPOINTS_FILE": str(tmp_path / "none.yaml")}, program="handoff-epp")
