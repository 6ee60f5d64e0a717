"""The prefix cache over HTTP, and the tokenizer endpoints. What the events say is proved by mock_engine_events_test."""

from exchanges import CHAT, COMPLETIONS, PROMPT, decode, prefill

EVENTS = ("--prefix-caching", "--kv-events", "--kv-replay-port", "0")
LONG = {"prompt": PROMPT * 8, "max_tokens": 40}


def test_events_need_a_prefix_cache():
    import subprocess

    import os
    binary = os.environ.get("HANDOFF_MOCK_ENGINE", "build/release/bin/handoff-mock-engine")
    done = subprocess.run([binary, "--kv-events"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--prefix-caching" in done.stderr


def test_prompt_and_answer_blocks_are_stored_once(start):
    engine = start(*EVENTS)
    assert engine.kv_event_port and engine.kv_replay_port
    first = engine.post(COMPLETIONS, LONG).json["usage"]
    total = first["prompt_tokens"] + first["completion_tokens"]
    state = engine.state()
    # The last token is sampled, not computed.
    assert state["kv_events"]["stored_blocks"] == state["prefix_cache"]["blocks"] == (total - 1) // 16
    again = engine.post(COMPLETIONS, LONG).json["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == (first["prompt_tokens"] - 1) // 16 * 16
    assert engine.state()["kv_events"]["stored_blocks"] == state["kv_events"]["stored_blocks"]
    assert engine.state()["blocks"]["free"] == engine.state()["blocks"]["total"]


def test_streamed_answer_stores_the_same(start):
    engine = start(*EVENTS)
    other = start(*EVENTS)
    engine.post(COMPLETIONS, LONG)
    other.post(COMPLETIONS, {**LONG, "stream": True})
    assert engine.state()["prefix_cache"]["blocks"] == other.state()["prefix_cache"]["blocks"] > 0
    assert other.state()["kv_events"]["batches"] > engine.state()["kv_events"]["batches"]


def test_full_cache_evicts_and_says_so(start):
    engine = start(*EVENTS, "--blocks", "24")
    for i in range(6):
        engine.post(COMPLETIONS, {"prompt": f"{i}" + PROMPT * 8, "max_tokens": 2})
    state = engine.state()
    events = state["kv_events"]
    assert events["removed_blocks"] > 0
    assert events["stored_blocks"] - events["removed_blocks"] == state["prefix_cache"]["blocks"] <= 24


def test_prefill_and_decode_both_cache_the_prompt(start):
    p, d = start("--role", "producer", *EVENTS), start("--role", "consumer", *EVENTS)
    for _ in range(2):
        assert decode(d, prefill(p)).status == 200
    assert p.state()["tokens"]["local_cache_hit"] > 0
    assert p.state()["prefix_cache"]["blocks"] > 0 and d.state()["prefix_cache"]["blocks"] > 0
    p.wait(blocks_free="all", leases=0)
    d.wait(blocks_free="all")


def test_two_leases_of_one_prefix_pin_its_blocks_once(start):
    p = start("--role", "producer", *EVENTS)
    first = prefill(p)
    pinned = p.state()["blocks"]["pinned"]
    second = prefill(p)
    state = p.state()
    assert first["remote_block_ids"][0][0] == second["remote_block_ids"][0][0]
    assert state["leases"]["live"] == 2 and state["blocks"]["pinned"] < 2 * pinned and state["blocks"]["in_use"] == 0


def test_salt_divides_the_cache(start):
    engine = start(*EVENTS)
    for salt, hits in (("a", False), ("b", False), ("a", True)):
        usage = engine.post(COMPLETIONS, {**LONG, "cache_salt": salt}).json["usage"]
        assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) is hits


def test_reset_and_restart(start):
    engine = start(*EVENTS)
    engine.post(COMPLETIONS, LONG)
    assert engine.post("/reset_prefix_cache", {}).json == {"success": True}
    state = engine.state()
    assert state["prefix_cache"]["blocks"] == 0 and state["kv_events"]["cleared"] == 1
    engine.post(COMPLETIONS, LONG)
    assert engine.control("POST", "/mock/kv_events", {"restart": True}).status == 200
    state = engine.state()
    assert state["prefix_cache"]["blocks"] == 0 and state["kv_events"]["next_sequence"] == 0
    assert start().control("POST", "/mock/kv_events", {"restart": True}).status == 400
    assert engine.control("POST", "/mock/kv_events", {"publish": 3}).status == 400


def test_cached_prefix_makes_the_first_token_come_sooner(start):
    engine = start("--prefix-caching", "--prefill-us-per-token", "2000")
    body = {"prompt": PROMPT * 8, "max_tokens": 1}
    for _ in range(2):
        engine.post(COMPLETIONS, body)
    times = [r["end_ms"] - r["start_ms"] for r in engine.control("GET", "/mock/requests").json["requests"]]
    assert times[1] < times[0]


def test_render_tells_the_salt_and_the_tokens_of_each_prompt(start):
    engine = start()
    one = engine.post(CHAT + "/render", {"messages": [{"role": "user", "content": PROMPT}], "cache_salt": "x"}).json
    assert one["cache_salt"] == "x" and len(one["token_ids"]) > 0
    several = engine.post(COMPLETIONS + "/render", {"prompt": ["abc", "abcdef"]}).json
    assert [len(r["token_ids"]) for r in several] == [1, 2]
    assert engine.post("/v1/tokenize", {"prompt": "abc"}).json == {"detail": "Not Found"}


def test_sglang_tokenizer_endpoints(start):
    engine = start("--tokenizer-api", "sglang")
    vllm = start()
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    rendered = engine.post(CHAT + "/render", chat).json
    assert rendered["input_ids"] == vllm.post(CHAT + "/render", chat).json["token_ids"] and "token_ids" not in rendered
    assert engine.post("/v1/tokenize", chat).json["tokens"] == rendered["input_ids"]
    both = engine.post("/tokenize", {"prompt": ["abc", "abcdef"]}).json
    assert both["count"] == [1, 2] and [len(t) for t in both["tokens"]] == [1, 2]
    assert both["max_model_len"] > 10**18
    assert engine.post("/v1/detokenize", {"tokens": both["tokens"][1]}).json == {"text": "abcdef"}
    assert engine.post(COMPLETIONS + "/render", {"prompt": "abc"}).status == 404
    assert engine.post("/tokenize", {"prompt": [1]}).status == 400
