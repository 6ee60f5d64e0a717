"""The faults that engines commit on request: a request names one in a header, and the engine's rules strike only that."""

from dataclasses import dataclass

PREFILL_HEADER = "x-fault-prefill"
DECODE_HEADER = "x-fault-decode"

# What the client may be told. HARMLESS: as if nothing were. VISIBLE: the exact answer, an error status, or a visibly broken
# answer. GARBLED: the engine's own words are wrong, and a proxy can't know; only other requests must not notice.
HARMLESS, VISIBLE, GARBLED = "harmless", "visible", "garbled"


@dataclass
class Fault:
    name: str
    rule: dict
    may: str = VISIBLE
    statuses: tuple = ()  # that the answer must have, if it is no 200 and not broken; empty: any error
    never_ok: bool = False  # a complete 200 would be a lie
    generation_only: bool = False
    whole_replies_only: bool = False  # of a stream, whose length is unknown, it would make something else


def _at(action, at, **more):
    return Fault(f"{action}-{at}", {"action": action, "at": at, **more})


def transport_faults():
    faults = [
        Fault("delay", {"action": "delay", "ms": 120}, HARMLESS),
        Fault("delay-after", {"action": "delay", "ms": 90, "when": "after"}, HARMLESS),
        # Not all of a large reply, each step of which comes late on a busy machine.
        Fault("trickle", {"action": "trickle", "bytes": 200, "every_ms": 1, "most": 100}, HARMLESS),
        Fault("informational", {"action": "informational", "status": 103, "count": 3}, HARMLESS),
        Fault("close-idle", {"action": "close_idle"}, HARMLESS),
        Fault("http10", {"action": "http10"}, HARMLESS),
        Fault("no-length", {"action": "no_length"}, HARMLESS),
        Fault("stall", {"action": "stall"}, statuses=(504,), never_ok=True),
        Fault("bad-chunk", {"action": "framing", "kind": "bad_chunk_size"}, never_ok=True),
        Fault("chunked-and-length", {"action": "framing", "kind": "chunked_and_length"}, never_ok=True),
        Fault("long-length", {"action": "framing", "kind": "long_length"}, never_ok=True,
              whole_replies_only=True),
        Fault("garbage", {"action": "framing", "kind": "garbage_status"}, never_ok=True),
        Fault("oversize-head", {"action": "framing", "kind": "oversize_head", "bytes": 200000}, never_ok=True),
        Fault("no-final-chunk", {"action": "framing", "kind": "no_final_chunk"}),
    ]
    for at in (0, 1, 10, 60, 150, 300, 700, 3000):
        faults += [_at("reset_at", at), _at("close_at", at)]
    faults += [_at("stall_at", at) for at in (0, 60, 300, 3000)]  # each costs a read time-out
    return faults


def _prefill_replies():
    faults = []
    for status, told in ((400, 400), (404, 404), (429, 429), (500, 500), (501, 502), (502, 502), (503, 503), (504, 504)):
        rule = {"action": "status", "status": status, "body": "no", "headers": [["Retry-After", "1"]]}
        faults.append(Fault(f"status-{status}", rule, statuses=(told,), never_ok=True))
    faults += [
        Fault("early", {"action": "early_response", "status": 413, "body": "too much"}, statuses=(413,), never_ok=True),
        Fault("redirect", {"action": "redirect", "location": "http://127.0.0.1:1/"}, statuses=(502,), never_ok=True),
        Fault("short-length", {"action": "framing", "kind": "short_length"}, statuses=(502,)),
        Fault("not-json", {"action": "non_json", "body": "<html>"}, statuses=(502,), never_ok=True),
        Fault("sse", {"action": "sse"}, statuses=(502,)),
        Fault("huge", {"action": "huge_body", "bytes": 3000000}, statuses=(502,)),
        Fault("huge-chunked", {"action": "huge_body", "bytes": 3000000, "chunked": True}, statuses=(502,)),
    ]
    return faults


def prefill_faults(engine="vllm"):
    faults = transport_faults() + _prefill_replies()
    handoffs = {"vllm": _handoffs, "sglang": _sglang_ends, "trtllm": _trtllm_handoffs,
                "trtllm-generation-first": _unread_handoffs, "vllm-nixl-push": _handoffs,
                "vllm-nixl-push-at-once": _handoffs, "vllm-mooncake": list,
                "vllm-offloading": list, "vllm-shared-storage": list}
    if engine == "vllm-shared-storage":
        # Decode computes what prefill has not stored: any success will do.
        faults = [Fault(fault.name, fault.rule, HARMLESS) if fault.name in ("not-json", "sse", "short-length") else fault
                  for fault in faults]
    return faults + handoffs[engine]()


def _unread_handoffs():
    """Generation has its blocks when context answers: what the answer says of them is nobody's concern. What it says of
    the request is."""
    said = [fault for fault in _trtllm_handoffs() if fault.name != "params-cut"]
    return [fault if fault.name == "no-reason" else Fault(fault.name, fault.rule, HARMLESS) for fault in said]


def _trtllm_handoffs():
    def patched(name, patch):
        return Fault(name, {"action": "params_patch", "patch": patch}, statuses=(502,), never_ok=True)

    return [
        Fault("no-params", {"action": "params_remove"}, HARMLESS),
        Fault("null-params", {"action": "params_patch", "patch": None}, HARMLESS),
        patched("no-context-id", {"ctx_request_id": None}),
        patched("id-as-text", {"disagg_request_id": "5"}),
        patched("id-as-float", {"ctx_request_id": 9007199254740992.0}),
        patched("another-type", {"request_type": "generation_only"}),
        patched("no-tokens", {"$reply": {"prompt_token_ids": None}}),
        patched("no-reason", {"$choice": {"finish_reason": None}}),
        Fault("params-list", {"action": "params_raw", "raw": "[1, 2]"}, statuses=(502,), never_ok=True),
        Fault("params-cut", {"action": "params_raw", "raw": '{"request_type": "context_only"'}, statuses=(502,),
              never_ok=True),
    ]


def _sglang_ends():
    """The scheduler's own failures: prefill is not streamed, so they have a status, but for an abort."""
    return [
        Fault("engine-400", {"action": "engine_error", "status": 400}, statuses=(400,), never_ok=True),
        Fault("engine-500", {"action": "engine_error", "status": 500}, statuses=(500,), never_ok=True),
        Fault("engine-503", {"action": "engine_error", "status": 503}, statuses=(503,), never_ok=True),
        Fault("engine-abort", {"action": "engine_error", "status": 0}, statuses=(502,), never_ok=True),
    ]


def _handoffs():
    return [
        Fault("no-params", {"action": "params_remove"}, HARMLESS),
        Fault("null-params", {"action": "params_patch", "patch": None}, HARMLESS),
        Fault("empty-blocks", {"action": "params_patch", "patch": {"remote_block_ids": []}}, HARMLESS),
        Fault("no-engine-id", {"action": "params_patch", "patch": {"remote_engine_id": None}}, statuses=(502,),
              never_ok=True),
        Fault("no-request-id", {"action": "params_patch", "patch": {"remote_request_id": None}}, statuses=(502,),
              never_ok=True),
        Fault("port-as-text", {"action": "params_patch", "patch": {"remote_port": "5600"}}, statuses=(502,),
              never_ok=True),
        Fault("port-too-large", {"action": "params_patch", "patch": {"remote_port": 70000}}, statuses=(502,),
              never_ok=True),
        Fault("blocks-as-text", {"action": "params_patch", "patch": {"remote_block_ids": "1,2"}}, statuses=(502,),
              never_ok=True),
        Fault("params-list", {"action": "params_raw", "raw": "[1, 2]"}, statuses=(502,), never_ok=True),
        Fault("params-cut", {"action": "params_raw", "raw": '{"do_remote_prefill": true'}, statuses=(502,),
              never_ok=True),
    ]


def decode_faults(engine="vllm"):
    faults = transport_faults()
    if engine == "sglang":
        # Within a stream's 200 too, as long as nothing has been shown of it.
        faults += [Fault(f"engine-{status}", {"action": "engine_error", "status": status}, statuses=(status,), never_ok=True,
                         generation_only=True) for status in (500, 503)]
    if engine.startswith("trtllm"):
        # Real engines send the head of a stream before they have the blocks, and lose these when the connection closes
        # meanwhile. After such a head nothing can be read that would tell when they are there.
        for fault in faults:
            if fault.name in ("chunked-and-length", "garbage", "oversize-head"):
                fault.whole_replies_only = True
    for status in (400, 429, 500, 503):
        rule = {"action": "status", "status": status, "body": "decode says no"}
        faults.append(Fault(f"status-{status}", rule, statuses=(status,), never_ok=True))
    faults += [
        Fault("early", {"action": "early_response", "status": 413, "body": "too much"}, statuses=(413,), never_ok=True),
        Fault("reject", {"action": "reject", "status": 400}, statuses=(400,), never_ok=True, generation_only=True),
        Fault("short-length", {"action": "framing", "kind": "short_length"}, GARBLED, whole_replies_only=True),
        Fault("gzip", {"action": "gzip"}, HARMLESS),
    ]
    return faults


def rules_for(header, faults):
    return [{"match": {"header": {"name": header, "value": fault.name}}, **fault.rule} for fault in faults]
