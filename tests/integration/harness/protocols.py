"""What the conformance suite (test_every_protocol.py) needs to know of each protocol, and where the protocols differ."""

import os
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Protocol:
    name: str
    backend: str
    prefill_flags: tuple  # "{store}" stands for a folder that both engines are given
    decode_flags: tuple
    forged: dict  # what only the sidecar may send
    settings: dict = field(default_factory=dict)
    engine_ports: dict = field(default_factory=dict)  # settings that name a port of the prefill engine, by MockEngine's name for it
    # Both engines are asked at once, so decode has the request when prefill fails, and must be rid of it.
    concurrent: bool = False
    # An engine is asked for its particulars first: that it can't be reached is told of that question.
    asks_prefill_first: bool = False
    asks_decode_first: bool = False
    prefill_may_be_sent_again: bool = False
    decode_can_prefill: bool = True
    # Nothing of prefill's reply is read: any success will do, and decode finds out what it is worth.
    reads_prefill_reply: bool = True
    # Only full blocks are handed over: decode computes the rest of the prompt.
    hands_over_the_rest: bool = True
    # The engines lose blocks when a request is closed while they move, so it runs on until its answer begins.
    prefill_lingers: bool = False
    decode_lingers: bool = False
    # Only an engine's own time-out ends its wait for the other one, where that can't be told that it waits in vain.
    engines_wait_in_vain: bool = False
    # Only the engine's own time-out frees what prefill holds for a decode that failed.
    failed_decode_leaves_lease: bool = False
    # What prefill holds is a copy in host memory, which may be left to its time-out.
    leases_hold_no_blocks: bool = False
    # Nothing is left to a time-out: what is gone sooner was ended by the sidecar.
    time_outs_never_matter: bool = False
    no_request: dict = field(default_factory=lambda: {"requests": 0, "blocks_free": "all", "leases": 0})
    # Counters of what engines would suffer from a careless proxy.
    damage: tuple = ("deaths", "wrong_text", "misrouted", "hung_incomplete")

    def __str__(self):
        return self.name

    def flags_of(self, role, store, more=()):
        """An engine's flags."""
        own = self.prefill_flags if role == "prefill" else self.decode_flags
        return [flag.format(store=store) for flag in (*own, *more)]


def _roles(*flags):
    return {"prefill_flags": (*flags, "--role", "producer"), "decode_flags": (*flags, "--role", "consumer")}


_TRTLLM_DAMAGE = (*Protocol.damage, "duplicate_ids", "low_ids", "unsigned_requests", "tokenized_again", "cancelled_in_transfer")
_TRTLLM_FORGED = {"disaggregated_params": {"request_type": "generation_only"}}

_CONNECTOR = "DYN_SIDECAR_VLLM_CONNECTOR"
_NO_TRANSFER = {"requests": 0, "blocks_free": "all", "leases": 0, "transfers__asked": 0, "transfers__loading": 0,
                "transfers__orphaned": 0}


def _connector(name, *flags, **more):
    """A KV connector of vLLM."""
    return Protocol(f"vllm-{name}", "vllm", **_roles("--kv-connector", name, *flags), settings={_CONNECTOR: name},
                    forged={"kv_transfer_params": {"do_remote_prefill": True}}, no_request=_NO_TRANSFER, **more)


_ALL = [
    Protocol("vllm", "vllm", **_roles(), forged={"kv_transfer_params": {"do_remote_prefill": True}},
             prefill_may_be_sent_again=True),
    _connector("nixl-push", prefill_may_be_sent_again=True),
    _connector("mooncake", concurrent=True, engines_wait_in_vain=True,
               engine_ports={"DYN_SIDECAR_VLLM_MOONCAKE_BOOTSTRAP_PORT": "bootstrap_port"}),
    _connector("offloading", prefill_may_be_sent_again=True, hands_over_the_rest=False,
               engines_wait_in_vain=True, failed_decode_leaves_lease=True, leases_hold_no_blocks=True,
               engine_ports={"DYN_SIDECAR_VLLM_P2P_PORT": "side_channel_port"}),
    _connector("shared-storage", "--shared-storage-path", "{store}", prefill_may_be_sent_again=True,
               reads_prefill_reply=False, hands_over_the_rest=False),
    Protocol("sglang", "sglang", ("--engine", "sglang", "--disaggregation-mode", "prefill"),
             ("--engine", "sglang", "--disaggregation-mode", "decode"), forged={"bootstrap_room": 7}, concurrent=True,
             asks_prefill_first=True, asks_decode_first=True, decode_can_prefill=False, time_outs_never_matter=True,
             no_request={"requests": 0, "blocks_free": "all", "sglang__rooms__live": 0, "sglang__waiting_peers": 0}),
    Protocol("trtllm", "trtllm", **_roles("--engine", "trtllm"), forged=_TRTLLM_FORGED, decode_lingers=True,
             failed_decode_leaves_lease=True, damage=_TRTLLM_DAMAGE),
    Protocol("trtllm-generation-first", "trtllm", **_roles("--engine", "trtllm"), forged=_TRTLLM_FORGED,
             settings={"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"}, concurrent=True, asks_prefill_first=True,
             prefill_lingers=True, decode_lingers=True, damage=_TRTLLM_DAMAGE),
]

# The build runs one protocol per test, side by side.
_ONLY = os.environ.get("HANDOFF_TEST_PROTOCOL")
PROTOCOLS = [protocol for protocol in _ALL if _ONLY in (None, protocol.name)]
