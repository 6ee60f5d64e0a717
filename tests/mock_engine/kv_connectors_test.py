"""vLLM with NIXL push, the offloading connector's P2P tier, and a shared store."""

import pytest

from exchanges import ALL_APIS, CHAT, COMPLETIONS, PROMPT, at_once, open_request, prefill_body, text_of

SCALE = ("--time-scale", "0.002")
LONG = " ".join(f"word{number}" for number in range(400))


def tidy(*engines, leaked=0):
    states = []
    for engine in engines:
        states.append(engine.wait(requests=0, leases=0, transfers__asked=0, transfers__loading=0, transfers__orphaned=0,
                                  blocks_free="all"))
        assert states[-1]["blocks"]["leaked"] == leaked
    return states


# ----------------------------------------------------------------------------------------------------------- NIXL push

@pytest.fixture
def push(start):
    return [start("--kv-connector", "nixl-push", "--role", role) for role in ("producer", "consumer")]


def named(name):
    return {"X-Request-Id": name}


def coordinates(engine):
    """What a proxy that knows P's address can say before P has answered."""
    return {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": engine.engine_id,
            "remote_host": "127.0.0.1", "remote_port": engine.side_channel_port, "tp_size": 1, "pp_size": 1,
            "remote_request_id": "not known yet"}


def decode_body(params, path=COMPLETIONS, **more):
    return {**ALL_APIS[path], "kv_transfer_params": params, **more}


@pytest.mark.parametrize("path", ALL_APIS)
def test_push_after_prefill(push, path):
    p, d = push
    reply = p.post(path, prefill_body(ALL_APIS[path], path), named("one"))
    params = reply.json["kv_transfer_params"]
    assert params["transfer_mode"] == "push" and params["pp_size"] == 1
    assert p.state()["leases"]["live"] == 1
    del params["remote_block_ids"]  # decode's own are written to
    assert d.post(path, decode_body(params, path), named("one")).status == 200
    on_p, on_d = tidy(p, d)
    assert on_p["leases"]["consumed"] == 1
    assert on_d["pulls"]["fresh"] == 1 and on_d["tokens"]["local_compute"] == 0


def test_push_registration_may_come_first(push):
    p, d = push
    decode, prefill = at_once(
        lambda: d.post(COMPLETIONS, decode_body(coordinates(p)), named("same")),
        lambda: (p.wait(transfers__asked=1), p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]), named("same")))[1])
    assert (prefill.status, text_of(decode)) == (200, d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"])
    tidy(p, d)


def test_push_pairs_by_request_id_and_by_nothing_else(push):
    p, d = push
    for prompt in ("the first prompt of two", "and quite another one"):
        p.post(COMPLETIONS, prefill_body({"prompt": prompt, "max_tokens": 5}), named("shared"))
    reply = d.post(COMPLETIONS, decode_body(coordinates(p), prompt="and quite another one"), named("shared"))
    assert text_of(reply).startswith("<<WRONG-KV>>")


def test_push_decode_whose_client_left_loses_its_blocks_until_the_write(push):
    p, d = push
    with open_request(d, COMPLETIONS, decode_body(coordinates(p)), "X-Request-Id: late"):
        p.wait(transfers__asked=1)
    state = d.wait(requests__aborted=1)
    assert state["blocks"]["leaked"] > 0 and state["transfers"]["orphaned"] == 1
    p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]), named("late"))
    tidy(p, d)


def test_push_prefill_that_dies_is_waited_for_for_ever(push):
    p, d = push
    with open_request(d, COMPLETIONS, decode_body(coordinates(p)), "X-Request-Id: lost"):
        p.wait(transfers__asked=1)
        p.control("POST", "/mock/die")
        d.wait(transfers__loading=0)
        assert d.state()["requests"]["running"] == 1
    assert d.wait(requests__aborted=1)["blocks"]["leaked"] > 0


@pytest.mark.parametrize("change", [{"remote_engine_id": "other"}, {"remote_port": 1}, {"remote_host": 7}])
def test_push_handshake_that_fails(push, change):
    p, d = push
    assert d.post(COMPLETIONS, decode_body({**coordinates(p), **change})).status == 500
    assert tidy(p, d)[1]["kv_load_failures"] == 1


def test_push_and_pull_never_shake_hands(start, push):
    p, d = push
    puller = start("--role", "consumer")
    params = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS])).json["kv_transfer_params"]
    assert puller.post(COMPLETIONS, decode_body(params)).status == 500
    assert puller.state()["pulls"]["mismatch"] == 1
    old = start("--role", "producer")
    assert d.post(COMPLETIONS, decode_body(coordinates(old))).status == 500


@pytest.mark.parametrize("missing", ["remote_engine_id", "remote_host", "remote_port", "tp_size", "remote_request_id"])
def test_push_missing_key_ends_the_engine(push, missing):
    p, d = push
    params = coordinates(p)
    del params[missing]
    assert d.post(COMPLETIONS, decode_body(params)).status == 500
    assert d.state()["deaths"] == 1


def test_push_rejected_decode_frees_prefill(push):
    p, d = push
    params = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]), named("no")).json["kv_transfer_params"]
    d.fault(match={"role": "decode"}, action="reject")
    assert d.post(COMPLETIONS, decode_body(params), named("no")).status == 400
    assert p.wait(leases=0, blocks_free="all")["leases"]["released"] == 1


# ---------------------------------------------------------------------------------------------------------- offloading

@pytest.fixture
def offloading(start):
    return [start("--kv-connector", "offloading", "--role", role, *SCALE) for role in ("producer", "consumer")]


def producing(name, **more):
    return {**ALL_APIS[COMPLETIONS], "max_tokens": 1, "kv_transfer_params": {"remote_decoder": {"kv_request_id": name}}, **more}


def fetching(engine, name, **more):
    return decode_body({"remote_prefiller": {"kv_request_id": name, "remote_host": "127.0.0.1",
                                             "remote_port": engine.side_channel_port}}, **more)


def test_offloading_decode_fetches_full_blocks_by_name(offloading):
    p, d = offloading
    reply = p.post(COMPLETIONS, producing("k1"))
    assert "<<PREFILL>>" in text_of(reply) and reply.json.get("kv_transfer_params") is None
    state = p.state()
    assert state["leases"]["live"] == 1 and state["blocks"]["free"] == state["blocks"]["total"], "parked in host memory"
    reply = d.post(COMPLETIONS, fetching(p, "k1"))
    expected = d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])
    assert text_of(reply) == expected["text"]
    _, on_d = tidy(p, d)
    tokens = expected["prompts"][0]["tokens"]
    assert on_d["tokens"]["external_kv_transfer"] == (tokens - 1) // 16 * 16
    assert on_d["tokens"]["local_compute"] == tokens - (tokens - 1) // 16 * 16


def test_offloading_decode_waits_and_then_computes_it_itself(offloading):
    p, d = offloading
    assert text_of(d.post(COMPLETIONS, fetching(p, "never"))) == d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"]
    _, on_d = tidy(p, d)
    assert on_d["pulls"]["timed_out"] == on_d["recomputed"] == 1 and on_d["kv_load_failures"] == 0


def test_offloading_decode_may_come_first(offloading):
    p, d = offloading
    decode, _ = at_once(lambda: d.post(COMPLETIONS, fetching(p, "k2")),
                        lambda: (p.wait(transfers__asked=1), p.post(COMPLETIONS, producing("k2"))))
    assert decode.status == 200
    assert tidy(p, d)[1]["pulls"]["fresh"] == 1


def test_offloading_nobody_asks(offloading):
    p, d = offloading
    p.post(COMPLETIONS, producing("k3"))
    assert tidy(p, d)[0]["leases"]["expired"] == 1


def test_offloading_other_prompt_has_other_keys(offloading):
    p, d = offloading
    p.post(COMPLETIONS, producing("k4"))
    reply = d.post(COMPLETIONS, fetching(p, "k4", prompt="something else that is long enough"))
    assert "WRONG" not in text_of(reply)
    assert tidy(p, d)[1]["recomputed"] == 1


@pytest.mark.parametrize("missing", ["kv_request_id", "remote_host", "remote_port"])
def test_offloading_incomplete_parameters_are_a_plain_request(offloading, missing):
    p, d = offloading
    body = fetching(p, "k5")
    del body["kv_transfer_params"]["remote_prefiller"][missing]
    assert d.post(COMPLETIONS, body).status == 200
    assert tidy(p, d)[1]["recomputed"] == 1


def test_offloading_prefill_that_is_gone(offloading):
    p, d = offloading
    p.control("POST", "/mock/die")
    assert d.post(COMPLETIONS, fetching(p, "k6")).status == 200
    assert d.state()["pulls"]["unreachable"] == 1


# ------------------------------------------------------------------------------------------------------ shared storage

@pytest.fixture
def store(start, tmp_path):
    return [start("--kv-connector", "shared-storage", "--shared-storage-path", str(tmp_path), "--role", role)
            for role in ("producer", "consumer")]


def request(prompt=LONG, **more):
    return {"prompt": prompt, "max_tokens": 5, **more}


def test_store_needs_a_directory(start):
    with pytest.raises(RuntimeError):
        start("--kv-connector", "shared-storage")


def test_store_is_filled_by_prefill_and_read_by_decode(store):
    p, d = store
    assert "<<PREFILL>>" in text_of(p.post(COMPLETIONS, request(max_tokens=1)))
    assert text_of(d.post(COMPLETIONS, request())) == d.expect(COMPLETIONS, request())["text"]
    state = d.state()
    tokens = d.expect(COMPLETIONS, request())["prompts"][0]["tokens"]
    assert state["tokens"]["external_kv_transfer"] == (tokens - 1) // 16 * 16
    assert state["shared_storage"] == {"stored": 0, "found": 1, "missed": 0, "gave_up": 0}
    assert p.state()["shared_storage"]["stored"] == 1


def test_store_finds_common_beginnings_in_chunks(store):
    p, d = store
    p.post(COMPLETIONS, request(max_tokens=1))
    d.post(COMPLETIONS, request(LONG + " and then something of its own"))
    found = d.state()["tokens"]["external_kv_transfer"]
    assert found > 0 and found % 256 == 0
    d.post(COMPLETIONS, request("nothing in common with that, " + LONG))
    assert d.state()["tokens"]["external_kv_transfer"] == found
    d.post(COMPLETIONS, request(cache_salt="pepper"))
    assert d.state()["tokens"]["external_kv_transfer"] == found, "a salt is a cache of its own"


def test_decode_fills_nothing(store):
    _, d = store
    for _ in range(2):
        d.post(COMPLETIONS, request())
    assert d.state()["shared_storage"]["missed"] == 2


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
def test_threshold_ends_the_request_without_a_token(store, path, stream):
    p, d = store
    body = {**ALL_APIS[path], "cache_hit_threshold": 0.5, "stream": stream}
    reply = d.post(path, body)
    events = reply.events() if stream else [reply.json]
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reply.status == 200 and reasons[-1] == "cache_threshold" and len(events) <= 2
    p.post(path, {**ALL_APIS[path], "max_tokens": 1, "cache_hit_threshold": 0})
    reply = d.post(path, body)
    events = reply.events() if stream else [reply.json]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    state = d.state()
    assert state["shared_storage"]["gave_up"] == 1
    assert state["requests"]["finished"] == 2 and state["blocks"]["free"] == state["blocks"]["total"]


@pytest.mark.parametrize("value", [-0.1, 1.5, "0.5", True])
def test_threshold_is_checked(store, value):
    assert store[1].post(COMPLETIONS, request(cache_hit_threshold=value)).status == 400


def test_other_engines_know_no_threshold(start):
    engine = start()
    reply = engine.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3, "cache_hit_threshold": 1})
    assert reply.json["choices"][0]["finish_reason"] == "length"
