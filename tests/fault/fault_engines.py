"""The engines of a run, of the kind that HANDOFF_FAULT_ENGINE names: one that dies and comes back among them."""

import contextlib
import json
import os
import pathlib

import faults
from mock_engine_client import MockEngine
from reserved_ports import ReservedPort

HERE = pathlib.Path(__file__).parent
BIN = pathlib.Path(os.environ.get("HANDOFF_BIN", HERE.parent.parent / "build/release/bin"))
MOCK = os.environ.get("HANDOFF_MOCK_ENGINE", str(BIN / "handoff-mock-engine"))
ENGINE = os.environ.get("HANDOFF_FAULT_ENGINE", "vllm")
TRTLLM = ENGINE.startswith("trtllm")
# Of vLLM, another than NIXL's pull. NIXL push asks both engines at once where the name ends so.
CONNECTOR = ENGINE.removeprefix("vllm-").removesuffix("-at-once") if ENGINE.startswith("vllm-") else None
AT_ONCE = ENGINE.endswith("-at-once")
SANITIZED = os.environ.get("HANDOFF_SANITIZED", "") != ""
PREFILL_HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
LEASE_SCALE = 0.6 if SANITIZED else 0.3  # of 30 s: above what a healthy handoff can take, short enough to wait for
# Of SGLang's 300 s, Mooncake's 480 s, and the 30 s that an offloading decode waits for blocks that nobody stores: more than
# any healthy pair takes and, but for the last, than the sidecar's read time-out, which is to end a stall; less than the test waits.
SCALES = {"sglang": 0.1 if SANITIZED else 0.05, "vllm-mooncake": 0.05 if SANITIZED else 0.03, "vllm-offloading": 0.05}


class Engines:
    """Two prefill engines that fail only on request, one that dies and comes back, and the decode engine."""

    def __init__(self, seed, folder):
        self.prefill_faults = faults.prefill_faults(ENGINE)
        self.decode_faults = faults.decode_faults(ENGINE)
        self.roles = {"prefill": ("--role", "producer"), "decode": ("--role", "consumer")}
        if ENGINE == "sglang":
            self.roles = {part: ("--engine", "sglang", "--disaggregation-mode", part) for part in ("prefill", "decode")}
        if TRTLLM:
            self.roles = {part: ("--engine", "trtllm", *role) for part, role in self.roles.items()}
        flags = ["--time-scale", str(SCALES.get(ENGINE, LEASE_SCALE)), "--seed", str(seed % 2**31), "--blocks", "60000"]
        if CONNECTOR:
            flags += ["--kv-connector", CONNECTOR]
        if CONNECTOR == "shared-storage":
            store = folder / "store"
            store.mkdir()
            flags += ["--shared-storage-path", str(store)]
        self.flags = flags
        rules = json.dumps(faults.rules_for(faults.DECODE_HEADER, self.decode_faults))
        with contextlib.ExitStack() as stack:
            # A port that the sidecar is told once is the same one on all prefill hosts. These have an address each.
            common = {"mooncake": "--mooncake-bootstrap-port", "offloading": "--side-channel-port"}.get(CONNECTOR)
            self.common_ports = [common, str(stack.enter_context(ReservedPort(*PREFILL_HOSTS)))] if common else []
            self.prefill_ports = [str(stack.enter_context(ReservedPort(host))) for host in PREFILL_HOSTS]
            self.prefill = []
            for number in range(3):
                self.prefill.append(stack.enter_context(self._prefill(number)))
            # With `fail` it also fails when this machine is too busy to let it reach prefill within its half second.
            self.decode = stack.enter_context(
                MockEngine(*self.roles["decode"], *flags, "--kv-load-failure-policy", "recompute", "--faults", rules, binary=MOCK))
            self._stack = stack.pop_all()

    def _prefill(self, number):
        rules = json.dumps(faults.rules_for(faults.PREFILL_HEADER, self.prefill_faults))
        return MockEngine(*self.roles["prefill"], *self.flags, "--bind", PREFILL_HOSTS[number], "--faults", rules,
                          "--port", self.prefill_ports[number], *self.common_ports, binary=MOCK)

    def sidecar_settings(self):
        if not CONNECTOR:
            return {}
        first = self.prefill[0]
        return {"DYN_SIDECAR_VLLM_CONNECTOR": CONNECTOR, "DYN_SIDECAR_VLLM_PUSH_ORDER": "concurrent" if AT_ONCE else "prefill-first",
                "DYN_SIDECAR_VLLM_P2P_PORT": str(first.side_channel_port),
                "DYN_SIDECAR_VLLM_MOONCAKE_BOOTSTRAP_PORT": str(first.bootstrap_port or 1)}

    def address(self, number):
        return f"{self.prefill[number].host}:{self.prefill[number].port}"

    @property
    def mortal(self):
        return self.prefill[2]

    def kill_mortal(self, softly):
        if softly:
            self.mortal.control("POST", "/mock/die")
        self.mortal.stop()

    def restart_mortal(self):
        self.prefill[2] = self._prefill(2)

    def all(self):
        return [*self.prefill, self.decode]

    def stop(self):
        """Their exit codes."""
        codes = [engine.stop() for engine in self.all()]
        self._stack.close()
        return codes


def check_engines(run):
    """Nothing is held any more, and the sidecar has sent nothing that hurts."""
    for engine in run.engines.all():
        if CONNECTOR and not AT_ONCE:
            engine.wait(transfers__asked=0, transfers__loading=0, transfers__orphaned=0)
        if CONNECTOR == "nixl-push" and engine is run.engines.decode:
            # A prefill engine that dies between handshake and write takes the registration along: decode waits without end, and
            # its blocks are lost. No other load may be unfinished, as was seen above; but with both engines at once each
            # prefill that fails, or whose client leaves, costs decode its blocks (vLLM issue 46283).
            state = engine.wait(requests=0, leases=0)
            assert state["blocks"]["free"] + state["blocks"]["leaked"] == state["blocks"]["total"], state
            assert not AT_ONCE or state["blocks"]["leaked"] > 0, "no two legs ran at once"
        else:
            state = engine.wait(blocks_free="all", requests=0, leases=0)
            assert state["blocks"]["leaked"] == 0, state
        assert not state["dead"] and state["deaths"] == 0, state
        assert state["hung_incomplete"] == 0, state
        assert state["wrong_text"] == 0, state
        assert state["misrouted"] == 0, state
        if TRTLLM:
            for name in ("duplicate_ids", "low_ids", "tokenized_again", "cancelled_in_transfer"):
                assert state[name] == 0, (name, state)
        if ENGINE == "sglang":
            engine.wait(sglang__rooms__live=0, sglang__waiting_peers=0)
            assert state["sglang"]["missing_room"] == 0 and state["sglang"]["aborts"]["of_all"] == 0, state
