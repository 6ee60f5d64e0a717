"""Every punishment for a bad handoff, and what is counted for a good one."""

import concurrent.futures
import json

import pytest

from exchanges import ALL_APIS, CHAT, COMPLETIONS, PROMPT, decode, open_request, prefill, prefill_body, text_of


@pytest.mark.parametrize("path", ALL_APIS)
def test_complete_handoff_prefills_once_on_every_api(pair, path):
    p, d = pair
    params = prefill(p, path)
    assert list(params) == [
        "do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id",
        "remote_host", "remote_port", "tp_size", "remote_num_tokens", "remote_blocks_expiry_time", "transfer_mode",
    ]  # fmt: skip
    reply = decode(d, params, path)
    expected = d.expect(path, ALL_APIS[path])
    if path == "/inference/v1/generate":
        assert reply.json["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    else:
        assert json.dumps(expected["text"])[1:-1] in reply.body.decode()
    tokens = expected["prompts"][0]["tokens"]
    on_p = p.wait(blocks_free="all", leases=0, requests=0)
    on_d = d.wait(blocks_free="all", requests=0)
    assert on_p["tokens"]["local_compute"] == tokens
    assert on_d["tokens"]["local_compute"] == 0
    assert on_d["tokens"]["external_kv_transfer"] == tokens
    assert on_p["leases"]["consumed"] == 1
    assert on_d["pulls"]["fresh"] == 1


def test_prefill_pins_the_prompts_blocks_until_decode_pulls(pair):
    p, d = pair
    params = prefill(p)
    state = p.state()
    assert state["blocks"]["pinned"] == len(params["remote_block_ids"][0]) == 2
    assert state["leases"]["live"] == 1
    decode(d, params)
    p.wait(blocks_free="all", leases=0)


def test_prefill_token_is_marked_and_differs_from_the_answer(pair):
    p, d = pair
    reply = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]))
    assert text_of(reply) == "<<PREFILL>>"
    assert "<<PREFILL>>" not in d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"]


def test_second_use_of_a_handoff_is_wrong_text_with_200(pair):
    p, d = pair
    params = prefill(p)
    decode(d, params)
    reply = decode(d, params)
    assert reply.status == 200
    assert text_of(reply).startswith("<<WRONG-KV>>")
    assert d.state()["wrong_text"] == 1 and d.state()["pulls"]["consumed"] == 1


def test_handoff_of_another_prompt_is_wrong_text(pair):
    p, d = pair
    params = prefill(p, body={"prompt": PROMPT.upper()})
    assert "<<WRONG-KV>>" in text_of(decode(d, params))
    assert d.state()["pulls"]["foreign"] == 1


def test_changed_block_ids_are_wrong_text(pair):
    p, d = pair
    params = prefill(p)
    params["remote_block_ids"][0][0] += 1000
    assert "<<WRONG-KV>>" in text_of(decode(d, params))


def test_expired_lease_frees_blocks_and_gives_wrong_text(start):
    p, d = start("--role", "producer", "--time-scale", "0.001"), start("--role", "consumer")
    params = prefill(p)
    state = p.wait(leases=0, blocks_free="all")
    assert state["leases"]["expired"] == 1
    assert "<<WRONG-KV>>" in text_of(decode(d, params))
    assert d.state()["pulls"]["expired"] == 1


def test_unknown_request_id_is_recomputed_with_right_text(pair):
    p, d = pair
    params = dict(prefill(p), remote_request_id="cmpl-never-seen")
    reply = decode(d, params)
    assert text_of(reply) == d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"]
    state = d.state()
    assert state["recomputed"] == 1 and state["tokens"]["local_compute"] > 0


@pytest.mark.parametrize("key", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"])
def test_missing_key_hangs_until_disconnect_and_leaks(pair, key):
    p, d = pair
    params = prefill(p)
    del params[key]
    s = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "kv_transfer_params": params})
    state = d.wait(requests__hanging=1)
    assert state["hung_incomplete"] == 1
    s.close()
    state = d.wait(requests=0)
    assert state["requests"]["aborted"] == 1
    assert state["blocks"]["leaked"] > 0


@pytest.mark.parametrize("ids", ["missing", None, []])
def test_missing_block_ids_kill_the_engine(pair, ids):
    p, d = pair
    params = prefill(p)
    params["remote_block_ids"] = ids
    if ids == "missing":
        del params["remote_block_ids"]
    assert decode(d, params).status == 500
    assert d.call("GET", "/health").status == 503
    assert d.post(COMPLETIONS, ALL_APIS[COMPLETIONS]).status == 500
    assert d.state()["dead"] is True


def test_several_prompts_with_one_handoff_kill_the_engine(pair):
    p, d = pair
    assert decode(d, prefill(p), prompt=["a", "b"]).status == 500
    assert d.state()["dead"] is True


@pytest.mark.parametrize("key", ["tp_size", "remote_port"])
def test_whole_number_spelled_as_float_gives_zero_tokens(pair, key):
    p, d = pair
    params = prefill(p)
    params[key] = float(params[key])
    reply = decode(d, params)
    assert reply.status == 200 and text_of(reply) == ""
    assert reply.json["usage"]["completion_tokens"] == 0
    assert d.state()["zero_token"] == 1


def test_unreachable_prefill_engine_is_500_or_in_band_error(pair):
    p, d = pair
    params, again = prefill(p), prefill(p)
    p.stop()
    reply = decode(d, params)
    assert reply.status == 500
    assert reply.json == {
        "error": {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    }
    stream = decode(d, again, stream=True)
    assert stream.status == 200
    assert stream.events() == [reply.json]
    assert stream.body.endswith(b"data: [DONE]\n\n")
    assert d.state()["kv_load_failures"] == 2


def test_recompute_policy_survives_an_unreachable_prefill_engine(start):
    p, d = start(), start("--kv-load-failure-policy", "recompute")
    params = prefill(p)
    p.stop()
    assert text_of(decode(d, params)) == d.expect(COMPLETIONS, ALL_APIS[COMPLETIONS])["text"]
    assert d.state()["recomputed"] == 1


def test_wrong_engine_id_is_a_failed_load(pair):
    p, d = pair
    assert decode(d, dict(prefill(p), remote_engine_id="someone-else")).status == 500
    assert d.state()["pulls"]["mismatch"] == 1


@pytest.mark.parametrize("wrong", [{"remote_host": None}, {"remote_port": "5600"}, {"remote_port": 0}])
def test_keys_of_the_wrong_kind_are_a_failed_load(pair, wrong):
    p, d = pair
    assert decode(d, {**prefill(p), **wrong}).status == 500


def test_rejected_decode_releases_the_lease(pair):
    p, d = pair
    reply = decode(d, prefill(p), stream_options={"include_usage": True})
    assert reply.status == 400
    state = p.wait(leases=0, blocks_free="all")
    assert state["leases"]["released"] == 1
    assert d.state()["requests"]["rejected"] == 1


def test_decode_client_that_leaves_in_the_queue_releases_the_lease(start):
    p, d = start(), start("--max-running", "1", "--decode-us-per-token", "10000000")
    running = open_request(d, COMPLETIONS, ALL_APIS[COMPLETIONS])
    d.wait(requests__running=1)
    waiting = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "kv_transfer_params": prefill(p)})
    d.wait(requests__queued=1)
    waiting.close()
    assert p.wait(leases=0)["leases"]["released"] == 1
    running.close()
    d.wait(requests=0, blocks_free="all")


def test_decode_client_that_leaves_before_scheduling_releases_the_lease(pair):
    p, d = pair
    d.fault(action="delay", ms=600000, match={"role": "decode"})
    s = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "kv_transfer_params": prefill(p)})
    d.wait(fault_hits=1)
    s.close()
    assert p.wait(leases=0)["leases"]["released"] == 1


def test_decode_client_that_leaves_while_kv_loads_releases_the_lease(start):
    p, d = start(), start("--kv-load-ms", "600000")
    s = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "stream": True, "kv_transfer_params": prefill(p)})
    d.wait(requests__running=1)
    s.close()
    assert p.wait(leases=0, blocks_free="all")["leases"]["released"] == 1
    d.wait(requests=0, blocks_free="all")


def test_prefill_client_that_leaves_frees_at_once_and_pins_nothing(start):
    p = start("--ttft-ms", "600000")
    s = open_request(p, COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]))
    p.wait(requests__running=1)
    s.close()
    state = p.wait(requests=0, blocks_free="all")
    assert state["leases"]["created"] == 0 and state["requests"]["aborted"] == 1


def test_client_that_leaves_mid_stream_frees_decode_blocks(start):
    d = start("--decode-us-per-token", "1000000")
    s = open_request(d, COMPLETIONS, {"prompt": "x", "max_tokens": 1000, "stream": True})
    assert s.recv(15) == b"HTTP/1.1 200 OK"
    s.close()
    assert d.wait(requests=0, blocks_free="all")["requests"]["aborted"] == 1


def test_heartbeats_keep_a_lease_alive_only_with_tp_size(start):
    # Scaled: lease 3 s, heartbeat 0.5 s, extension 2 s, so a loaded machine may be late by more than a second.
    # The load takes longer than the lease.
    p = start("--time-scale", "0.1")
    d = start("--time-scale", "0.1", "--kv-load-ms", "4000")
    silent = prefill(p)
    del silent["tp_size"]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        kept, lost = pool.map(lambda params: text_of(decode(d, params)), [prefill(p), silent])
    assert "<<WRONG-KV>>" not in kept
    assert "<<WRONG-KV>>" in lost
    assert p.state()["heartbeats"]["received"] > 0


def test_stream_head_is_sent_before_the_kv_load(start):
    p, d = start(), start("--kv-load-ms", "600000")
    s = open_request(d, COMPLETIONS, {**ALL_APIS[COMPLETIONS], "stream": True, "kv_transfer_params": prefill(p)})
    assert s.recv(15) == b"HTTP/1.1 200 OK"
    s.close()






def test_only_the_first_prompt_of_a_batch_is_handed_over(start):
    p = start()
    params = prefill(p, body={"prompt": ["one", "two", "three"]})
    state = p.state()
    assert state["leases"]["live"] == 3
    assert params["remote_num_tokens"] == 1


def test_streams_carry_no_params_except_the_final_responses_event(start):
    p = start()
    params = {"do_remote_decode": True}
    for path in (COMPLETIONS, CHAT, "/v1/messages", "/inference/v1/generate"):
        reply = p.post(path, {**ALL_APIS[path], "stream": True, "kv_transfer_params": params})
        assert reply.status == 200 and b"remote_request_id" not in reply.body
    events = p.post("/v1/responses", {**ALL_APIS["/v1/responses"], "stream": True, "kv_transfer_params": params}).events()
    assert events[-1]["response"]["kv_transfer_params"]["do_remote_prefill"] is True


def test_eos_first_and_old_release_give_null_params(start):
    body = {"prompt": PROMPT + "[[eos-first]]"}
    assert prefill(start(), body=body) is not None
    old = start("--null-params-on-stop")
    reply = old.post(COMPLETIONS, prefill_body(body))
    assert reply.json["kv_transfer_params"] is None
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    old.wait(blocks_free="all")


def test_role_none_ignores_params(start):
    engine = start("--role", "none")
    assert prefill(engine) is None
    assert engine.state()["leases"]["created"] == 0


def test_shapes_of_block_ids(start):
    assert len(prefill(start("--kv-groups", "3"))["remote_block_ids"]) == 3
    flat, d = start("--flat-block-ids"), start("--flat-block-ids")
    params = prefill(flat)
    assert all(isinstance(block, int) for block in params["remote_block_ids"])
    assert "<<WRONG-KV>>" not in text_of(decode(d, params))


@pytest.mark.parametrize("place", ["top-level", "extra-args", "both"])
def test_generate_reads_params_where_this_release_does(start, place):
    p = start("--generate-params", place)
    path = "/inference/v1/generate"
    want = {"do_remote_decode": True}
    top = p.post(path, {**ALL_APIS[path], "kv_transfer_params": want})
    nested = {"max_tokens": 1, "extra_args": {"kv_transfer_params": want}}
    extra = p.post(path, {**ALL_APIS[path], "sampling_params": nested})
    assert (top.json["kv_transfer_params"] is not None) == (place != "extra-args")
    assert (extra.json["kv_transfer_params"] is not None) == (place != "top-level")


def test_request_id_and_engine_id(start):
    p, other = start(), start()
    assert p.engine_id != other.engine_id
    reply = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]), {"X-Request-Id": "my-id"})
    assert reply.json["id"] == "cmpl-my-id"
    assert reply.json["kv_transfer_params"]["remote_request_id"].startswith("cmpl-my-id-0-")
    assert reply.json["kv_transfer_params"]["remote_engine_id"] == p.engine_id


def test_data_parallel_ranks(start):
    p, d = start("--data-parallel-size", "2"), start()
    reply = p.post(COMPLETIONS, prefill_body(ALL_APIS[COMPLETIONS]), {"X-data-parallel-rank": "1"})
    params = reply.json["kv_transfer_params"]
    assert params["remote_engine_id"].endswith("_dp1")
    assert "<<WRONG-KV>>" not in text_of(decode(d, params))
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"X-data-parallel-rank": "2"}).status == 400
    assert p.post(COMPLETIONS, ALL_APIS[COMPLETIONS], {"X-data-parallel-rank": "x"}).status == 200


def test_prefix_cache_counts_local_hits(start):
    engine = start("--prefix-caching")
    engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS])
    reply = engine.post(COMPLETIONS, ALL_APIS[COMPLETIONS])
    assert reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert engine.state()["tokens"]["local_cache_hit"] == 16


def test_chat_decode_may_bring_its_token_ids(pair):
    p, d = pair
    body = {**ALL_APIS[CHAT], "return_token_ids": True}
    reply = p.post(CHAT, prefill_body(body))
    params = dict(reply.json["kv_transfer_params"], prompt_token_ids=reply.json["prompt_token_ids"])
    answer = decode(d, params, CHAT)
    assert answer.json["choices"][0]["message"]["content"] == d.expect(CHAT, ALL_APIS[CHAT])["text"]
