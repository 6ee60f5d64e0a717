"""The SGLang personality: rendezvous, aborts, time-outs, and how failures are spelled."""

import json
import threading

import pytest

from exchanges import CHAT, COMPLETIONS, PROMPT, open_request

GENERATE = "/generate"
SCALE = ("--time-scale", "0.002")  # 300 s are 0.6 s
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5},
    COMPLETIONS: {"prompt": PROMPT, "max_tokens": 5},
    GENERATE: {"text": PROMPT, "sampling_params": {"max_new_tokens": 5}},
}
PATHS = pytest.mark.parametrize("path", list(BODIES))


class Pair:
    def __init__(self, start, prefill=(), decode=(), scale=SCALE):
        self.prefill = start("--engine", "sglang", "--disaggregation-mode", "prefill", *scale, *prefill)
        self.decode = start("--engine", "sglang", "--disaggregation-mode", "decode", *scale, *decode)
        self.room = 2**53

    def body(self, path, **more):
        self.room += 1
        return {**BODIES[path], "bootstrap_host": "127.0.0.1", "bootstrap_port": self.prefill.side_channel_port,
                "bootstrap_room": self.room, "rid": f"{self.room:032x}", **more}

    def both(self, path, body, prefill_body=None):
        """Both answers, asked for at the same time."""
        replies = {}
        legs = {"prefill": (self.prefill, prefill_body or {**body, "stream": False}), "decode": (self.decode, body)}

        def ask(name, engine, sent):
            replies[name] = engine.post(path, sent)

        threads = [threading.Thread(target=ask, args=(name, *leg)) for name, leg in legs.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return replies["prefill"], replies["decode"]

    def tidy(self):
        for engine in (self.prefill, self.decode):
            engine.wait(requests=0, blocks_free="all", sglang__rooms__live=0, sglang__waiting_peers=0)


@pytest.fixture
def pair(start):
    return Pair(start)


def text_of(path, reply):
    if path == GENERATE:
        return reply["text"]
    choice = reply["choices"][0]
    return choice["text"] if path == COMPLETIONS else choice["message"]["content"]


@PATHS
def test_both_engines_meet_by_room(pair, path):
    prefill, decode = pair.both(path, pair.body(path))
    assert (prefill.status, decode.status) == (200, 200), decode.body
    assert text_of(path, decode.json) == pair.decode.expect(path, BODIES[path])["text"]
    assert b"PREFILL" in prefill.body
    assert pair.decode.state()["tokens"]["local_compute"] == 0
    pair.tidy()


@PATHS
def test_streams(pair, path):
    _, decode = pair.both(path, pair.body(path, stream=True))
    events = decode.events()
    assert decode.body.endswith(b"data: [DONE]\n\n")
    if path == GENERATE:
        assert events[-1]["text"] == pair.decode.expect(path, BODIES[path])["text"], "cumulative"
        assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    else:
        assert events[-1]["choices"][0]["finish_reason"] == "length"
    pair.tidy()


def test_batches_have_a_room_per_item(pair):
    body = pair.body(GENERATE, text=["one prompt", "another"], rid=["a" * 32, "b" * 32], bootstrap_room=[7, 9],
                     bootstrap_host=["127.0.0.1"] * 2, bootstrap_port=[pair.prefill.side_channel_port] * 2)
    prefill, decode = pair.both(GENERATE, body)
    assert [item["meta_info"]["id"] for item in decode.json] == ["a" * 32, "b" * 32]
    assert len(prefill.json) == 2
    assert pair.decode.state()["sglang"]["rooms"]["created"] == 2
    pair.tidy()


@PATHS
def test_a_missing_room_is_a_400_but_not_in_a_stream(pair, path):
    for engine in (pair.prefill, pair.decode):
        reply = engine.post(path, BODIES[path])
        assert reply.status == 400 and b"bootstrap room id" in reply.body
        reply = engine.post(path, {**BODIES[path], "stream": True})
        assert reply.status == 200 and b"bootstrap room id" in reply.body and reply.body.endswith(b"data: [DONE]\n\n")
    pair.tidy()


def test_an_engine_whose_peer_never_comes_gives_up(pair):
    reply = pair.prefill.post(CHAT, pair.body(CHAT))
    assert reply.status == 500 and reply.json["message"].startswith("Prefill bootstrap failed")
    reply = pair.decode.post(CHAT, pair.body(CHAT))
    assert reply.status == 500 and "KVPoll.WaitingForInput" in reply.json["message"]
    assert reply.json["object"] == "error"
    reply = pair.decode.post(CHAT, pair.body(CHAT, stream=True))
    assert reply.status == 200 and reply.events()[0]["error"]["code"] == 500
    assert pair.decode.state()["sglang"]["rooms"]["timed_out"] == 2
    pair.tidy()


def test_a_prefill_engine_that_is_nowhere_fails_the_handshake(pair):
    reply = pair.decode.post(CHAT, pair.body(CHAT, bootstrap_port=1))
    assert reply.status == 500 and reply.json["message"].startswith("Decode handshake failed")
    pair.tidy()


def test_rooms_are_compared_exactly(pair):
    for engine in (pair.prefill, pair.decode):
        engine.times_up()
    body = pair.body(CHAT, bootstrap_room=2**53 + 1)
    prefill, decode = pair.both(CHAT, body, {**body, "bootstrap_room": 2**53})
    assert (prefill.status, decode.status) == (500, 500)
    pair.tidy()


def test_a_room_that_is_live_twice_ends_the_engine(start):
    pair = Pair(start, scale=())
    body = pair.body(CHAT)
    waiting = open_request(pair.prefill, CHAT, body)
    pair.prefill.wait(sglang__rooms__live=1)
    pair.prefill.post(CHAT, body)
    state = pair.prefill.wait(dead="true")
    assert "bootstrap_room" in state["death_reason"] and state["sglang"]["rooms"]["duplicate"] == 1
    waiting.close()


def test_aborts_match_by_prefix_and_an_empty_id_matches_all(start):
    pair = Pair(start, scale=())
    waiting = [open_request(pair.prefill, CHAT, pair.body(CHAT, rid=rid)) for rid in ("a1", "a10", "b1")]
    pair.prefill.wait(sglang__rooms__live=3)
    assert pair.prefill.post("/abort_request", {"rid": "a1"}).status == 200
    pair.prefill.wait(sglang__rooms__live=1)
    pair.prefill.post("/abort_request", {})
    state = pair.prefill.wait(sglang__rooms__live=0)
    assert state["sglang"]["aborts"] == {"received": 2, "matched": 2, "lost": 0, "of_all": 1}
    assert b'"finish_reason":"abort"' in waiting[0].recv(65536)
    for one in waiting:
        one.close()


def test_an_abort_before_the_scheduler_has_the_request_is_lost(start):
    pair = Pair(start, prefill=("--admission-ms", "300"), scale=())
    waiting = open_request(pair.prefill, CHAT, pair.body(CHAT, rid="early"))
    pair.prefill.wait(requests__queued=1)
    assert pair.prefill.post("/abort_request", {"rid": "early"}).status == 200
    assert pair.prefill.state()["sglang"]["aborts"]["lost"] == 1
    pair.prefill.wait(sglang__rooms__live=1)
    waiting.close()


def test_a_client_that_leaves_is_noticed_later(start):
    pair = Pair(start, scale=("--time-scale", "0.02"))  # 6 s are 120 ms
    waiting = open_request(pair.decode, CHAT, pair.body(CHAT))
    pair.decode.wait(sglang__rooms__live=1)
    waiting.close()
    pair.decode.wait(sglang__disconnects=1)
    assert pair.decode.state()["sglang"]["rooms"]["live"] == 1
    pair.tidy()
    assert pair.decode.state()["requests"]["aborted"] == 1


def test_prefill_does_not_tell_decode_that_it_refused(pair):
    pair.decode.times_up()
    pair.prefill.fault(action="engine_error", status=503, message="The request queue is full.", match={"role": "prefill"})
    prefill, decode = pair.both(CHAT, pair.body(CHAT))
    assert prefill.status == 503 and decode.status == 500 and "timed out" in decode.json["message"]
    pair.tidy()


def test_engine_errors_in_streams(pair):
    pair.decode.fault(action="engine_error", status=500, message="transfer")
    for path, where in ((CHAT, "error"), (GENERATE, "meta_info")):
        reply = pair.decode.post(path, pair.body(path, stream=True))
        assert reply.status == 200 and where in reply.events()[0]
    pair.tidy()


def test_server_info_health_and_roles(start):
    for mode in ("null", "prefill", "decode"):
        engine = start("--engine", "sglang", "--disaggregation-mode", mode, *SCALE)
        info = engine.call("GET", "/server_info").json
        assert (info["disaggregation_mode"], info["version"]) == (mode, "0.5.19")
        assert info["disaggregation_bootstrap_port"] == engine.side_channel_port
        assert engine.call("GET", "/health").status == 200
        assert engine.state()["sglang"]["health_generations"] == 1
        assert engine.state()["role"] == mode
        assert engine.call("GET", "/nowhere").status == 404
        assert engine.call("GET", GENERATE).status == 405


def test_an_engine_without_disaggregation_answers_alone(start):
    engine = start("--engine", "sglang")
    reply = engine.post(GENERATE, {**BODIES[GENERATE], "return_logprob": True, "logprob_start_len": 0})
    meta = reply.json["meta_info"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"] and len(meta["output_token_logprobs"]) == 5


def test_logprobs_of_a_batch_begin_where_each_item_says(start):
    engine = start("--engine", "sglang")
    batch = {"text": ["one two three four", "one two three four"], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True}
    lengths = [len(item["meta_info"]["input_token_logprobs"])
               for item in engine.post(GENERATE, {**batch, "logprob_start_len": [0, -1]}).json]
    assert lengths[0] > 0 and lengths[1] == 0


def test_logprobs_of_the_prompt_are_prefills(pair):
    body = pair.body(GENERATE, return_logprob=True, logprob_start_len=0)
    prefill, decode = pair.both(GENERATE, body)
    assert len(prefill.json["meta_info"]["input_token_logprobs"]) > 5
    assert decode.json["meta_info"]["input_token_logprobs"] == []
    assert len(decode.json["meta_info"]["output_token_logprobs"]) == 5


def test_ranks_follow_the_room(start):
    pair = Pair(start, prefill=("--data-parallel-size", "4"))
    body = pair.body(CHAT, bootstrap_room=10)
    pair.both(CHAT, body)
    assert pair.prefill.state()["sglang"]["ranks"] == {"2": 1}
    reply = pair.prefill.post(CHAT, pair.body(CHAT, bootstrap_room=10, routed_dp_rank=1))
    assert reply.status == 500
    assert pair.decode.call("POST", CHAT, pair.body(CHAT), {"x-data-parallel-rank": "x"}).status == 400


def test_the_fake_peer_needs_no_transfer(pair):
    for engine in (pair.prefill, pair.decode):
        reply = engine.post(CHAT, {**BODIES[CHAT], "bootstrap_host": "2.2.2.2", "bootstrap_room": 0})
        assert reply.status == 200, reply.body


def test_typed_errors(start):
    pair = Pair(start, decode=("--typed-errors",))
    pair.decode.times_up()
    reply = pair.decode.post(CHAT, pair.body(CHAT))
    assert reply.headers["x-sglang-pd-reason"] == "PD_TRANSFER_TIMEOUT"
    assert reply.headers["x-sglang-retryable"] == "true"


def test_a_generation_has_exactly_one_prompt(pair):
    for body in ({}, {"text": "a", "input_ids": [1]}):
        reply = pair.prefill.post("/generate", pair.body("/generate", **body) if body else {"sampling_params": {}})
        assert reply.status == 400 and b"Either text" in reply.body


def test_apis_without_a_room(pair):
    assert pair.decode.post("/v1/responses", {"input": "a"}).status == 400
    assert json.loads(pair.decode.post("/v1/messages", {"messages": []}).body)["type"] == "error"


# ---------------------------------------------------------------------------------------------------------- prefix cache

CACHE = ("--prefix-caching", "--kv-events", "--kv-event-format", "sglang-map")
LONG = {CHAT: {"messages": [{"role": "user", "content": PROMPT * 8}], "max_tokens": 5},
        COMPLETIONS: {"prompt": PROMPT * 8, "max_tokens": 5},
        GENERATE: {"text": PROMPT * 8, "sampling_params": {"max_new_tokens": 5}}}


def usage_of(path, reply):
    """Tokens of the prompt, and what is said to have been cached."""
    if path == GENERATE:
        return reply["meta_info"]["prompt_tokens"], reply["meta_info"]["cached_tokens"]
    return reply["usage"]["prompt_tokens"], (reply["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)


@PATHS
def test_decode_says_what_prefill_had_in_its_cache(start, path):
    report = ("--enable-cache-report",)
    pair = Pair(start, (*CACHE, *report), (*CACHE, *report))
    for computed_before in (False, True):
        replies = pair.both(path, pair.body(path, **LONG[path]))
        for reply in replies:
            prompt, cached = usage_of(path, reply.json)
            assert cached == ((prompt - 1) // 16 * 16 if computed_before else 0)
    prompt, cached = usage_of(path, replies[0].json)
    state = pair.prefill.state()
    assert state["prefix_cache"] == {"blocks": prompt // 16, "queries": 2 * prompt, "hits": cached}
    assert state["tokens"]["local_compute"] == 2 * prompt - cached
    assert state["kv_events"]["stored_blocks"] == prompt // 16
    state = pair.decode.state()
    assert state["prefix_cache"]["blocks"] == 0 and state["kv_events"]["batches"] == 0, "no radix cache on decode"
    assert state["tokens"]["external_kv_transfer"] == 2 * prompt
    pair.tidy()


def test_usage_says_nothing_of_the_cache_unless_told_to(start):
    pair = Pair(start, CACHE, CACHE)
    for _ in range(2):
        replies = pair.both(CHAT, pair.body(CHAT, **LONG[CHAT]))
    assert [reply.json["usage"]["prompt_tokens_details"] for reply in replies] == [None, None]
    _, decode = pair.both(CHAT, pair.body(CHAT, **LONG[CHAT], stream=True, stream_options={"include_usage": True}))
    assert decode.events()[-1]["usage"]["prompt_tokens_details"] is None


def test_streams_say_what_was_cached(start):
    report = ("--enable-cache-report",)
    pair = Pair(start, (*CACHE, *report), (*CACHE, *report))
    for _ in range(2):
        _, decode = pair.both(CHAT, pair.body(CHAT, **LONG[CHAT], stream=True, stream_options={"include_usage": True}))
    usage = decode.events()[-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (usage["prompt_tokens"] - 1) // 16 * 16


def test_cached_prefix_is_computed_sooner(start):
    pair = Pair(start, ("--prefix-caching", "--prefill-us-per-token", "2000"), scale=())
    times = []
    for _ in range(2):
        pair.both(CHAT, pair.body(CHAT, **LONG[CHAT]))
        log = pair.prefill.control("GET", "/mock/requests").json["requests"]
        times.append(log[-1]["end_ms"] - log[-1]["start_ms"])
    assert times[1] < times[0]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_salts_divide_the_cache(start, path):
    pair = Pair(start, CACHE)
    for salt, hits in (("a", False), ("b", False), ("a", True)):
        before = pair.prefill.state()["prefix_cache"]["hits"]
        pair.both(path, pair.body(path, **LONG[path], cache_salt=salt))
        assert (pair.prefill.state()["prefix_cache"]["hits"] > before) is hits


def test_ranks_have_caches_of_their_own(start):
    engine = start("--engine", "sglang", *SCALE, *CACHE, "--data-parallel-size", "2")
    for rank, hits in ((0, False), (1, False), (1, True), (0, True)):
        reply = engine.post(GENERATE, {**LONG[GENERATE], "routed_dp_rank": rank}).json
        assert (reply["meta_info"]["cached_tokens"] > 0) is hits


def test_an_engine_that_does_both_keeps_its_answers(start):
    engine = start("--engine", "sglang", *SCALE, *CACHE)
    body = {**LONG[COMPLETIONS], "max_tokens": 40}
    usage = engine.post(COMPLETIONS, body).json["usage"]
    assert engine.state()["prefix_cache"]["blocks"] == (usage["prompt_tokens"] + usage["completion_tokens"] - 1) // 16


def test_flush_cache(start):
    pair = Pair(start, CACHE, scale=())
    pair.both(CHAT, pair.body(CHAT, **LONG[CHAT]))
    with open_request(pair.prefill, CHAT, pair.body(CHAT)):
        pair.prefill.wait(requests=1)
        assert pair.prefill.post("/flush_cache", {}).status == 400, "a request waits for its peer"
        pair.prefill.post("/abort_request", {"abort_all": True})
        pair.prefill.wait(requests=0)
    assert pair.prefill.state()["prefix_cache"]["blocks"] > 0
    assert pair.prefill.call("GET", "/flush_cache").status == 200
    state = pair.prefill.state()
    assert state["prefix_cache"]["blocks"] == 0 and state["kv_events"]["cleared"] == 1


def test_server_info_says_where_the_events_are(start):
    pair = Pair(start, CACHE, CACHE)
    told = pair.prefill.call("GET", "/server_info").json["kv_events"]
    assert told == {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": pair.prefill.kv_event_port, "topic": "",
                    "block_size": 16, "dp_size": 1}
    assert pair.decode.call("GET", "/server_info").json["kv_events"] is None
