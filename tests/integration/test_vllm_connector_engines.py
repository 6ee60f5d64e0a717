"""vLLM's other connectors between mock engines that behave as the real ones: each leg may fail, each client may leave, prefill
may be restarted, and nothing is left behind (C60 to C84 of backends/vllm/PROTOCOL.md)."""

import concurrent.futures
import json

import pytest
from conftest import Rig
from exchanges import ALL_APIS, CHAT, COMPLETIONS, PROMPT

CONNECTORS = ["mooncake", "offloading", "nixl-push", "nixl-push-at-once", "shared-storage"]
EVERY = pytest.mark.parametrize("connector", CONNECTORS)
# Push at once loses decode's blocks when prefill fails: test_push_at_once_and_prefill_that_fails.
BUT_PUSH_AT_ONCE = pytest.mark.parametrize("connector", [name for name in CONNECTORS if name != "nixl-push-at-once"])
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
DAMAGE = ("deaths", "hung_incomplete", "wrong_text", "zero_token", "misrouted")


class ConnectorRig(Rig):
    def bodies(self, engine):
        """What an engine was sent, health checks left out."""
        return [json.loads(entry["body"]) for entry in self.legs(engine)]

    def check(self, path=COMPLETIONS, body=None, headers=(), **more):
        """A request that must get its right answer, with the prompt computed by prefill and not again."""
        body = {**(body or ALL_APIS[path]), **more}
        computed = self.decode.state()["tokens"]["local_compute"]
        answer = self.post(body, path, headers)
        assert answer.status == 200, answer
        assert b"PREFILL" not in answer.body
        expected = self.decode.expect(path, body)
        assert said(path, answer, body.get("stream")) == (
            expected["choices"][0]["token_ids"] if path == "/inference/v1/generate" else expected["text"])
        # Offloading and the store know full blocks only.
        assert self.decode.state()["tokens"]["local_compute"] - computed <= 16
        return answer

    def wait_nothing_left(self):
        """Once the engines' time-outs are over: they can't be told of each other's failures."""
        engines = (self.prefill, self.decode)
        for engine in engines:
            engine.wait(requests=0)
        for engine in engines:
            engine.times_up(leases=False)
        for engine in engines:
            engine.wait(transfers__loading=0, transfers__orphaned=0, transfers__asked=0)
        for engine in engines:
            engine.times_up()
        for engine in engines:
            state = engine.wait(blocks_free="all", leases=0)
            engine.times_up(waits=False, leases=False)
            damage = {name: state[name] for name in DAMAGE if state[name]}
            assert state["blocks"]["leaked"] == 0 and not damage, (damage, state)


def said(path, answer, stream):
    if not stream:
        reply = answer.json
        if path == "/v1/responses":
            return reply["output"][0]["content"][0]["text"]
        if path == "/v1/messages":
            return reply["content"][0]["text"]
        choice = reply["choices"][0]
        if path == "/inference/v1/generate":
            return choice["token_ids"]
        return choice["message"]["content"] if path == CHAT else choice["text"]
    *events, done = answer.events()
    assert done == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" if path == CHAT else choice["text"] for choice in choices)


@pytest.fixture
def between(own, tmp_path):
    """between(connector): two mock engines with it, and a sidecar."""
    rigs = []

    def make(connector, prefill=(), decode=(), **settings):
        flags = ["--kv-connector", connector.removesuffix("-at-once")]
        if connector == "shared-storage":
            flags += ["--shared-storage-path", str(tmp_path)]
        producer = own.engine("--role", "producer", *flags, *prefill)
        consumer = own.engine("--role", "consumer", *flags, *decode)
        settings = {
            "DYN_SIDECAR_VLLM_CONNECTOR": connector.removesuffix("-at-once"),
            "DYN_SIDECAR_VLLM_PUSH_ORDER": "concurrent" if connector.endswith("-at-once") else "prefill-first",
            "DYN_SIDECAR_VLLM_P2P_PORT": str(producer.side_channel_port),
            "DYN_SIDECAR_VLLM_MOONCAKE_BOOTSTRAP_PORT": str(producer.bootstrap_port or 1), **settings}
        rig = ConnectorRig(own.sidecar(consumer.port, settings), producer, consumer)
        rig.flags = flags
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        rig.sidecar.check_undamaged()


def gone(rig, client, leave="close"):
    getattr(client, leave)()
    rig.exchange_line(path=COMPLETIONS, outcome="client_gone")


# ------------------------------------------------------------------------------------------------------ it goes well

@EVERY
def test_every_path(between, connector):
    rig = between(connector)
    for path in ALL_APIS:
        rig.check(path)
        rig.check(path)  # with what is remembered
    for path in (COMPLETIONS, CHAT):
        rig.check(path, stream=True)
    rig.wait_nothing_left()
    state = rig.decode.state()
    assert state["decode_requests"] == 12 and state["plain_requests"] == 0
    assert rig.prefill.state()["leases"]["expired"] == 0


@EVERY
def test_many_at_once_get_their_own_answers(between, connector):
    rig = between(connector)
    rig.check()

    def ask(number):
        path = (COMPLETIONS, CHAT)[number % 2]
        prompt = f"request number {number} asks for something of its own, in more than one block"
        body = {"prompt": prompt} if path == COMPLETIONS else {"messages": [{"role": "user", "content": prompt}]}
        # One name for all of them: whoever pairs legs by it alone gets another one's blocks.
        answer = rig.post({**body, "max_tokens": 7, "stream": number % 3 == 0}, path, [("X-Request-Id", "the same")])
        assert answer.status == 200, answer
        assert said(path, answer, number % 3 == 0) == rig.decode.expect(path, {**body, "max_tokens": 7})["text"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(40)))
    rig.wait_nothing_left()


# ------------------------------------------------------------------------------------------------------ a leg fails

@BUT_PUSH_AT_ONCE
@STREAMS
@pytest.mark.parametrize("fault, status", [({"action": "status", "status": 503}, 503), ({"action": "status", "status": 429}, 429),
                                           ({"action": "reset_at", "at": 20}, 502), ({"action": "non_json"}, 502)],
                         ids=["503", "429", "reset", "not-json"])
def test_prefill_fails(between, connector, stream, fault, status):
    rig = between(connector)
    rig.check()
    rig.prefill.fault(match={"role": "prefill"}, **fault)
    if connector == "offloading":
        rig.prefill.times_up(leases=False)  # decode is not let wait for what prefill has not computed
    answer = rig.post({**ALL_APIS[COMPLETIONS], "stream": stream})
    rig.prefill.times_up(waits=False, leases=False)
    # Where decode waits for nothing, any success will do.
    expected = status if connector != "shared-storage" or fault["action"] != "non_json" else 200
    assert answer.status == expected, answer
    rig.prefill.control("DELETE", "/mock/faults")
    rig.check(prompt="and another prompt, which must go well again")
    rig.wait_nothing_left()


@pytest.mark.parametrize("connector", ["offloading", "shared-storage", "mooncake"])
@pytest.mark.parametrize("reply", [{"error": {"message": "no memory"}}, {"object": "error", "message": "no memory"},
                                   {"choices": [{"finish_reason": "abort"}]}], ids=["error", "old-error", "abort"])
def test_prefill_reports_an_error_with_status_200(between, connector, reply):
    rig = between(connector)
    rig.check()
    rig.prefill.fault(match={"role": "prefill"}, action="status", status=200, body=json.dumps(reply))
    answer = rig.post(ALL_APIS[COMPLETIONS])
    if connector == "mooncake" and "choices" in reply:
        assert answer.status == 200 and rig.decode.state()["plain_requests"] == 1, "decode computes it itself"
    else:
        answer.refused(502, "invalid_prefill_handoff")
    rig.prefill.control("DELETE", "/mock/faults")
    rig.check(prompt="and another prompt, which must go well again")
    rig.wait_nothing_left()


@EVERY
@STREAMS
@pytest.mark.parametrize("fault, status", [({"action": "status", "status": 503}, 503), ({"action": "reject", "status": 400}, 400),
                                           ({"action": "reset_at", "at": 0}, 502)], ids=["503", "rejected", "reset"])
def test_decode_fails(between, connector, stream, fault, status):
    rig = between(connector)
    rig.check()
    rig.decode.fault(match={"role": "decode"}, **fault)
    answer = rig.post({**ALL_APIS[COMPLETIONS], "stream": stream})
    assert answer.status == status, answer
    rig.decode.control("DELETE", "/mock/faults")
    rig.check(prompt="and another prompt, which must go well again")
    rig.wait_nothing_left()


@pytest.mark.parametrize("connector", ["nixl-push", "nixl-push-at-once"])
@STREAMS
def test_load_that_fails_is_told(between, connector, stream):
    """Decode can't reach the engine that prefill's reply names."""
    rig = between(connector)
    rig.check()
    rig.prefill.fault(action="params_patch", patch={"remote_port": 1})
    answer = rig.post({**ALL_APIS[COMPLETIONS], "stream": stream})
    assert answer.status == (200 if stream else 500)
    assert b"InternalServerError" in answer.body


# ------------------------------------------------------------------------------------------------- the client leaves

@EVERY
@pytest.mark.parametrize("leave", ["close", "reset"])
def test_client_leaves_while_prefill_runs(between, connector, leave):
    rig = between(connector)
    rig.prefill.fault(match={"role": "prefill"}, action="stall")
    client = rig.start(ALL_APIS[COMPLETIONS])
    rig.prefill.wait(fault_hits=1)
    if connector == "mooncake":
        rig.decode.wait(transfers__loading=1)
    gone(rig, client, leave)
    rig.wait_nothing_left()


@EVERY
@STREAMS
def test_client_leaves_while_decode_answers(between, connector, stream):
    rig = between(connector)
    rig.check()
    rig.decode.fault(match={"role": "decode"}, action="stall_at", at_body=1)
    client = rig.start({**ALL_APIS[COMPLETIONS], "prompt": PROMPT * 2, "stream": stream})
    rig.decode.wait(fault_hits=1)
    rig.prefill.wait(leases=0)
    gone(rig, client)
    rig.wait_nothing_left()


# -------------------------------------------------------------------------------------------------- prefill restarts

def restart(rig, own, *more):
    old = rig.prefill
    old.stop()
    rig.prefill = own.engine("--role", "producer", *rig.flags, "--port", str(old.port), *more)


@EVERY
def test_prefill_is_restarted(between, own, connector):
    """Its engine id is another one then. Mooncake's is learned anew, the others' comes with each reply."""
    ports = ["--side-channel-port", str(own.port()), "--mooncake-bootstrap-port", str(own.port())]
    rig = between(connector, prefill=ports)
    rig.check()
    restart(rig, own, *ports)
    for number in range(3):
        rig.check(prompt=f"prompt {number} after the restart, and a few words more", stream=number == 1)
    assert rig.prefill.state()["prefill_requests"] >= 3
    if connector == "mooncake":
        assert rig.prefill.state()["mooncake"]["queries"] >= 2, "the sidecar's, and decode's own"
    if connector != "nixl-push-at-once":  # the leg with the old address was closed while decode had it
        rig.wait_nothing_left()


# ----------------------------------------------------------------------------------------------------------- Mooncake

@STREAMS
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("ending", [{"mark": " [[eos-first]]"}, {"mark": "", "stop": ["a", "e", "i", "o", "u"]}], ids=["end", "stop"])
@pytest.mark.parametrize("connector", ["mooncake", "nixl-push-at-once"])
def test_c90_first_token_that_ends_the_answer_is_decodes_to_find(between, connector, ending, path, stream):
    """Prefill would hand nothing over for it, and decode wait with its blocks."""
    rig = between(connector)
    rig.check()
    stop = {"stop": ending["stop"]} if "stop" in ending else {}
    words = PROMPT + ending["mark"]
    prompt = {"prompt": words} if path == COMPLETIONS else {"messages": [{"role": "user", "content": words}]}
    answer = rig.post({**ALL_APIS[path], **prompt, **stop, "stream": stream}, path)
    assert answer.status == 200 and b'"stop"' in answer.body
    rig.wait_nothing_left()
    assert rig.decode.state()["plain_requests"] == 0
    assert rig.counters_at_end().get("backend.prefill_stopped", 0) == 0


@pytest.mark.parametrize("path, prompt", [("/v1/messages", {"messages": [{"role": "user", "content": PROMPT + " [[eos-first]]"}]}),
                                          ("/v1/responses", {"input": PROMPT + " [[eos-first]]"})])
def test_c72_mooncake_prefill_that_ends_at_once_where_nothing_forbids_it_runs_on_decode(between, path, prompt):
    rig = between("mooncake")
    assert rig.post({**ALL_APIS[path], **prompt}, path).status == 200
    assert rig.decode.state()["plain_requests"] == 1
    assert rig.counters_at_end()["backend.prefill_stopped"] == 1


def test_mooncake_ranks_meet(between):
    rig = between("mooncake", prefill=("--data-parallel-size", "4"))
    for rank in (None, "2", "3"):
        rig.check(headers=[("x-dynamo-prefill-dp-rank", rank)] if rank else [])
    assert rig.prefill.state()["leases"]["expired"] == 0
    rig.wait_nothing_left()


def test_mooncake_bootstrap_is_asked_seldom(between):
    rig = between("mooncake")
    for _ in range(4):
        rig.check()
    assert rig.prefill.state()["mooncake"]["queries"] == 2, "once by the sidecar, once by decode"


# ----------------------------------------------------------------------------------------------------- shared storage

@STREAMS
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_store_threshold_asks_decode_first(between, stream, path):
    rig = between("shared-storage")
    body = {**ALL_APIS[path], "cache_hit_threshold": 0.5, "stream": stream}
    rig.check(path, body)
    assert [sent["cache_hit_threshold"] for sent in rig.bodies(rig.decode)] == [0.5, 0]
    assert rig.bodies(rig.prefill)[0]["cache_hit_threshold"] == 0
    rig.check(path, body)  # now it is there
    assert rig.prefill.state()["prefill_requests"] == 1
    assert rig.decode.state()["shared_storage"]["gave_up"] == 1
    rig.wait_nothing_left()


def test_store_threshold_means_nothing_on_other_paths(between):
    """Engines ignore it there, so that asking decode first would leave all to decode."""
    rig = between("shared-storage")
    rig.check("/v1/responses", cache_hit_threshold=0.5)
    assert rig.prefill.state()["prefill_requests"] == 1


@STREAMS
def test_store_threshold_and_prefill_that_fails(between, stream):
    rig = between("shared-storage")
    rig.prefill.fault(match={"role": "prefill"}, action="status", status=503)
    answer = rig.post({**ALL_APIS[COMPLETIONS], "cache_hit_threshold": 0.5, "stream": stream})
    assert answer.status == 503
    rig.wait_nothing_left()


@STREAMS
def test_client_leaves_while_the_store_is_asked(between, stream):
    rig = between("shared-storage")
    rig.decode.fault(match={"role": "decode"}, action="stall")
    client = rig.start({**ALL_APIS[COMPLETIONS], "cache_hit_threshold": 0.5, "stream": stream})
    rig.decode.wait(fault_hits=1)
    gone(rig, client)
    rig.wait_nothing_left()
    assert rig.bodies(rig.prefill) == []


@pytest.mark.parametrize("value", [-1, 2])
def test_store_threshold_that_the_engine_refuses(between, value):
    rig = between("shared-storage")
    assert rig.post({**ALL_APIS[COMPLETIONS], "cache_hit_threshold": value}).status == 400
    assert rig.bodies(rig.prefill) == []


# --------------------------------------------------------------------------------------------------------- offloading

def test_offloading_with_the_wrong_port_is_slower_and_right(between):
    rig = between("offloading", DYN_SIDECAR_VLLM_P2P_PORT="1")
    answer = rig.post(ALL_APIS[COMPLETIONS])
    assert answer.json["choices"][0]["text"] == rig.decode.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"]
    assert rig.decode.state()["recomputed"] == 1
    rig.wait_nothing_left()
    assert rig.prefill.state()["leases"]["expired"] == 1


# ---------------------------------------------------------------------------------------------------------- NIXL push

def request_ids(rig):
    return [dict(entry["headers"])["x-request-id"] for engine in (rig.prefill, rig.decode) for entry in rig.legs(engine)]


def test_push_legs_have_a_request_id_of_their_own(between):
    rig = between("nixl-push")
    rig.check(headers=[("X-Request-Id", "client's")])
    rig.check(headers=[("X-Request-Id", "client's")])
    first, second, *decode = request_ids(rig)
    assert decode == [first, second] and first != second
    assert first.startswith("client's-") and second.startswith("client's-")


def test_push_at_once_needs_to_know_the_address(between):
    """The first request tells where prefill is; the second does not wait for prefill."""
    rig = between("nixl-push-at-once")
    rig.check()
    assert "remote_block_ids" in rig.bodies(rig.decode)[0]["kv_transfer_params"]
    rig.prefill.fault(match={"role": "prefill"}, action="delay", ms=300)
    with rig.start({**ALL_APIS[CHAT], "stream": True}, CHAT) as client:
        rig.prefill.wait(transfers__asked=1, requests__running=0)
        assert "remote_block_ids" not in rig.bodies(rig.decode)[1]["kv_transfer_params"]
        answer = client.read_response("POST")
        assert said(CHAT, answer, True) == rig.decode.expect(CHAT, ALL_APIS[CHAT])["text"]
    ids = request_ids(rig)
    assert ids[1] == ids[3]
    rig.wait_nothing_left()


def test_push_at_once_and_prefill_that_fails(between):
    """The client gets prefill's status at once. Decode's blocks are lost (vLLM issue 46283), which is why it is not the default."""
    rig = between("nixl-push-at-once")
    rig.check()
    rig.prefill.fault(match={"role": "prefill"}, action="status", status=503, times=1)
    assert rig.post(ALL_APIS[COMPLETIONS]).status == 503
    state = rig.decode.wait(requests=0, transfers__orphaned=1)
    assert state["blocks"]["leaked"] > 0
    rig.check()
