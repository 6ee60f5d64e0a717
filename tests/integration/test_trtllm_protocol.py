"""The TensorRT-LLM protocol end to end, by the case numbers of backends/trtllm/PROTOCOL.md."""

import concurrent.futures
import contextlib
import json

import mock_engine_client
import pytest
from conftest import MOCK, Rig
from harness.http_client import wire
from harness.sidecar import run

CHAT = {"model": "mock-model", "messages": [{"role": "user", "content": "Tell me of sheep"}], "max_tokens": 6}
COMPLETION = {"model": "mock-model", "prompt": "Tell me of sheep and other animals", "max_tokens": 6}
BODIES = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}
BOTH_PATHS = pytest.mark.parametrize("path", list(BODIES))
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SCHEDULES = pytest.mark.parametrize("schedule", ["context-first", "generation-first"])
KEY = "a key of the engines"


@pytest.fixture(scope="module")
def engine_pairs():
    with contextlib.ExitStack() as stack:
        pairs = {}

        def get(name):
            if name not in pairs:
                flags = ("--time-scale", "0.05") if name == "untidy" else ()
                pairs[name] = tuple(
                    stack.enter_context(mock_engine_client.MockEngine("--engine", "trtllm", "--role", role, *flags, binary=MOCK))
                    for role in ("producer", "consumer"))
            return pairs[name]

        yield get


@pytest.fixture
def settings(request):
    marker = request.node.get_closest_marker("settings")
    chosen = dict(marker.kwargs) if marker else {}
    if "schedule" in request.fixturenames:
        chosen["DYN_SIDECAR_TRTLLM_SCHEDULE"] = request.getfixturevalue("schedule")
    return {"DYN_SIDECAR_BACKEND": "trtllm", **chosen}


@pytest.fixture
def own_rig(own):
    """Two engines with these flags and a sidecar: own_rig(settings, flags)."""
    def make(settings=None, both=(), prefill=(), decode=()):
        engines = [own.engine("--engine", "trtllm", "--role", role, *both, *flags)
                   for role, flags in (("producer", prefill), ("consumer", decode))]
        return Rig(own.sidecar(engines[1].port, {"DYN_SIDECAR_BACKEND": "trtllm", **(settings or {})}), *engines)

    return make


def text_of(path, response):
    """The text of an answer, streamed or not."""
    def part(choice):
        if path == "/v1/completions":
            return choice["text"]
        return choice.get("message", choice.get("delta", {})).get("content") or ""

    if response.header("content-type").startswith("text/event-stream"):
        events = response.events()
        assert events[-1] == "[DONE]"
        return "".join(part(choice) for event in events[:-1] for choice in json.loads(event)["choices"])
    return part(response.json["choices"][0])


def params_of(leg):
    return json.loads(leg["body"])["disaggregated_params"]


def assert_sound(rig):
    """Nothing that a careless proxy would do has happened."""
    for engine in (rig.prefill, rig.decode):
        state = engine.state()
        for name in ("duplicate_ids", "low_ids", "unsigned_requests", "tokenized_again", "cancelled_in_transfer", "misrouted"):
            assert state[name] == 0, (name, state)


# --------------------------------------------------------------------------------------------------- T02 to T08: the legs

@SCHEDULES
@STREAMS
@BOTH_PATHS
def test_t02_answer_is_generations_and_context_ran_once(rig, path, stream, schedule):
    request = {**BODIES[path], "stream": stream}
    answer = rig.post(request, path)

    assert answer.status == 200, answer
    assert text_of(path, answer) == rig.decode.expect(path, BODIES[path])["text"]
    prefill, decode = rig.prefill.state(), rig.decode.state()
    assert prefill["prefill_requests"] == 1 and decode["decode_requests"] == 1
    assert decode["pulls"]["fresh"] == 1 and decode["tokens"]["local_compute"] == 0
    assert prefill["tokens"]["local_compute"] == decode["tokens"]["external_kv_transfer"] > 0
    assert rig.exchange_line(path=path).fields["mode"] == "disaggregated"
    assert_sound(rig)


def test_t03_context_keeps_limits_and_gets_no_stream(rig):
    rig.post({**CHAT, "stream": True, "stream_options": {"include_usage": True}, "min_tokens": 3, "ignore_eos": True},
             "/v1/chat/completions")
    (leg,) = rig.legs(rig.prefill)
    body = json.loads(leg["body"])
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (6, 3, True)
    assert body["stream"] is False and body["stream_options"] is None
    assert body["disaggregated_params"]["request_type"] == "context_only"


def test_t04_ids_survive_exactly_and_are_contexts(rig):
    rig.post(CHAT, "/v1/chat/completions")
    context, generation = params_of(rig.legs(rig.prefill)[0]), params_of(rig.legs(rig.decode)[0])
    assert generation["disagg_request_id"] == context["disagg_request_id"] >= 2**42
    assert generation["ctx_request_id"] > 2**53
    assert generation["request_type"] == "generation_only"
    assert generation["ctx_usage"]["prompt_tokens"] > 0


ODD_REPLY = (b'{"id": "c", "prompt_token_ids": [1,  2], "usage": {"prompt_tokens": 2},\n "choices": [ {"message": {"content": "x"},'
             b' "finish_reason": "length", "disaggregated_params": PARAMS} ]}')
ODD_PARAMS = (b'{"request_type": "context_only", "ctx_request_id": 9007199254740993, "disagg_request_id" : 9223372036854775807,'
              b' "first_gen_tokens": [18446744073709551615], "first_gen_log_probs": [[-0.0, 1.50e3]], "encoded_opaque_state":'
              b' "AA\\/+==", "ctx_dp_rank": null, "later": {"<&>": "\\u00e9", "<&>": [ ]}}')


def test_t05_parameters_pass_verbatim(scripted):
    request = b'{"messages": [], "seed": 1.0, "stream": true}'
    with scripted.start(request, "/v1/chat/completions") as client:
        context = scripted.prefill.next()
        context.body()
        context.reply(ODD_REPLY.replace(b"PARAMS", ODD_PARAMS))
        generation = scripted.decode.next()
        assert generation.body() == (
            b'{"messages": [], "seed": 1.0, "stream": true,"prompt_token_ids":[1,  2],"disaggregated_params":' +
            ODD_PARAMS.replace(b"context_only", b"generation_only") + b"}")
        generation.reply(b'{"answer": 1}')
        assert client.read_response().body == b'{"answer": 1}'


@BOTH_PATHS
def test_t07_base64_ids(own_rig, path):
    rig = own_rig(prefill=("--prompt-ids-base64",))
    answer = rig.post(BODIES[path], path)
    assert text_of(path, answer) == rig.decode.expect(path, BODIES[path])["text"]
    body = json.loads(rig.legs(rig.decode)[0]["body"])
    assert isinstance(body["prompt"], list) if path == "/v1/completions" else isinstance(body["prompt_token_ids_b64"], str)
    rig.wait_tidy()
    assert_sound(rig)


def test_client_headers_reach_both_legs(rig):
    sent = [("Authorization", "Bearer k"), ("X-Request-Id", "r-1"), ("traceparent", "00-1-2-03"), ("X-Custom", "a  b")]
    rig.post(CHAT, "/v1/chat/completions", sent)
    for engine in (rig.prefill, rig.decode):
        (leg,) = rig.legs(engine)
        got = {name.lower(): value for name, value in leg["headers"]}
        assert {name: got.get(name.lower()) for name, _ in sent} == dict(sent)


def test_bodies_of_the_size_the_engine_accepts(rig):
    request = {**COMPLETION, "metadata": {"notes": "x" * 8_000_000}}
    answer = rig.post(request)
    assert answer.status == 200, answer
    assert text_of("/v1/completions", answer) == rig.decode.expect("/v1/completions", request)["text"]


def test_eight_at_once_with_one_request_id_do_not_cross(rig):
    requests = [{**COMPLETION, "prompt": f"Tell me of animal {i}", "stream": i % 2 == 0} for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: rig.post(body, headers=[("X-Request-Id", "same")]), requests))
    for request, answer in zip(requests, answers):
        plain = {**request, "stream": False}
        assert text_of("/v1/completions", answer) == rig.decode.expect("/v1/completions", plain)["text"]
    assert_sound(rig)


def test_stream_ends_as_the_engine_ends_it(own_rig):
    rig = own_rig(decode=("--double-done",))
    answer = rig.post({**CHAT, "stream": True}, "/v1/chat/completions")
    assert answer.events()[-2:] == ["[DONE]", "[DONE]"]
    rig.wait_tidy()


# ------------------------------------------------------------------------------------ T09, T14 to T17: ended in the context phase

@STREAMS
@BOTH_PATHS
def test_t14_request_that_ends_in_context_is_answered_from_there(rig, path, stream):
    request = dict(BODIES[path], stream=stream, max_tokens=6)
    words = "[[eos-first]] Tell me"
    request.update({"prompt": words} if path == "/v1/completions" else {"messages": [{"role": "user", "content": words}]})
    if stream:
        request["stream_options"] = {"include_usage": True}
    answer = rig.post(request, path)

    assert answer.status == 200
    assert text_of(path, answer) == ""
    if stream:
        events = [json.loads(event) for event in answer.events()[:-1]]
        assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, "stop"]
        assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 1
    else:
        assert answer.json["choices"][0]["finish_reason"] == "stop"
        assert answer.json["usage"]["completion_tokens"] == 1
    assert b"disaggregated_params" not in answer.body and b"prompt_token_ids" not in answer.body
    assert rig.legs(rig.decode) == []
    assert rig.prefill.state()["leases"]["created"] == 0


@pytest.mark.parametrize("rule", [{"ignore_eos": True}, {"min_tokens": 2}], ids=["ignore_eos", "min_tokens"])
def test_t09_rules_about_the_end_hold_in_the_context_phase(rig, rule):
    request = {**COMPLETION, "prompt": "[[eos-first]] Tell me", **rule}
    answer = rig.post(request)
    assert text_of("/v1/completions", answer) == rig.decode.expect("/v1/completions", request)["text"] != ""
    assert rig.decode.state()["decode_requests"] == 1


# ------------------------------------------------------------------------------------------------- T18, T19, T52: signatures

@SCHEDULES
def test_t18_handoffs_are_signed(own_rig, tmp_path, schedule):
    key_file = tmp_path / "key"
    key_file.write_text(KEY + "\n")
    rig = own_rig({"DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE": str(key_file), "DYN_SIDECAR_TRTLLM_SCHEDULE": schedule},
                  both=("--auth-key", KEY))
    answer = rig.post(CHAT, "/v1/chat/completions", [("X-TRTLLM-Disagg-Auth", "sha256=forged")])
    assert text_of("/v1/chat/completions", answer) == rig.decode.expect("/v1/chat/completions", CHAT)["text"]
    assert not any(name.lower() == "x-trtllm-disagg-auth" for name, _ in rig.legs(rig.prefill)[-1]["headers"])
    rig.wait_tidy()
    assert_sound(rig)
    assert KEY not in rig.sidecar.log_text()


@pytest.mark.parametrize("text, why", [("\n", "without a key"), (" \t\n", "without a key"), ("a\nb\n", "more than one line")])
def test_t19_file_that_holds_no_key_stops_the_start(tmp_path, text, why):
    key_file = tmp_path / "key"
    key_file.write_text(text)
    ended = run(settings={"DYN_SIDECAR_BACKEND": "trtllm", "DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE": str(key_file)})
    assert ended.returncode != 0 and why in ended.stderr, ended.stderr


@pytest.mark.parametrize("key", [None, "another key"], ids=["none", "wrong"])
def test_t18_engine_refuses_what_is_not_signed_with_its_key(own_rig, tmp_path, key):
    settings = {}
    if key:
        (tmp_path / "key").write_text(key)
        settings["DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE"] = str(tmp_path / "key")
    rig = own_rig(settings, both=("--auth-key", KEY, "--time-scale", "0.01"))
    answer = rig.post(CHAT, "/v1/chat/completions")
    assert answer.status == 400
    assert answer.json["message"] == "Invalid internal disaggregated request authentication"
    assert rig.decode.state()["unsigned_requests"] == 1
    rig.prefill.wait(blocks_free="all", leases=0)  # the engine's own time-out
    assert rig.prefill.state()["leases"]["expired"] == 1


# ------------------------------------------------------------------------------------------------ T20 to T27: failures (f.5)

DEFECTS = {
    "type": {"request_type": "context_and_generation"},
    "ctx_request_id": {"ctx_request_id": None},
    "disagg_request_id": {"disagg_request_id": None},
    "rounded": {"ctx_request_id": 9007199254740992.0},
    "text": {"ctx_request_id": "7"},
    "no-tokens": {"$reply": {"prompt_token_ids": None}},
    "both-tokens": {"$reply": {"prompt_token_ids_b64": "AQAAAA=="}},
    "bad-tokens": {"$reply": {"prompt_token_ids": [1.5]}},
    "empty-tokens": {"$reply": {"prompt_token_ids": []}},
    "empty-base64": {"$reply": {"prompt_token_ids": None, "prompt_token_ids_b64": ""}},
    "bad-base64": {"$reply": {"prompt_token_ids": None, "prompt_token_ids_b64": "###"}},
    "no-reason": {"$choice": {"finish_reason": None}},
}


@pytest.mark.untidy
@pytest.mark.parametrize("defect", list(DEFECTS))
def test_t10_handoff_with_a_defect_is_refused(rig, defect):
    rig.prefill.fault(action="params_patch", patch=DEFECTS[defect])
    rig.post(CHAT, "/v1/chat/completions").refused(502, "invalid_prefill_handoff")
    assert rig.legs(rig.decode) == []
    rig.prefill.times_up()
    rig.prefill.wait(blocks_free="all", leases=0)
    rig.prefill.times_up(waits=False, leases=False)


@pytest.mark.untidy
@pytest.mark.parametrize("body", ["[]", "data: [DONE]", '{"kv_transfer_params": {"do_remote_prefill": true}}'])
def test_t12_reply_of_another_shape_is_refused(rig, body):
    rig.prefill.fault(action="status", status=200, body=body)
    rig.post(CHAT, "/v1/chat/completions").refused(502, "invalid_prefill_handoff")
    assert rig.legs(rig.decode) == []


@pytest.mark.untidy
def test_t27_missing_handoff_runs_decode_only(rig):
    rig.prefill.fault(action="params_patch", patch=None)
    answer = rig.post(CHAT, "/v1/chat/completions")
    assert text_of("/v1/chat/completions", answer) == rig.decode.expect("/v1/chat/completions", CHAT)["text"]
    assert rig.exchange_line(mode="decode_only").fields["reason"] == "missing_handoff"
    assert rig.decode.state()["plain_requests"] == 1


@pytest.mark.untidy
@pytest.mark.settings(DYN_SIDECAR_ON_MISSING_HANDOFF="error")
def test_t27_missing_handoff_is_an_error_if_so_set(rig):
    rig.prefill.fault(action="params_remove")
    rig.post(CHAT, "/v1/chat/completions").refused(502, "missing_prefill_handoff")


def test_t24_generation_that_cant_be_reached_is_counted(own):
    prefill = own.engine("--engine", "trtllm", "--role", "producer", "--time-scale", "0.01")
    closed = own.scripted()
    closed.stop()
    rig = Rig(own.sidecar(closed.port, {"DYN_SIDECAR_BACKEND": "trtllm"}), prefill, None)
    rig.post(CHAT, "/v1/chat/completions").refused(502, "decode_upstream_error")
    prefill.wait(blocks_free="all", leases=0)
    assert rig.counters_at_end()["backend.unreleased"] == 1


@pytest.mark.parametrize("schedule", ["context-first", "generation-first"])
def test_t58_handoff_that_generation_refuses_is_counted(own_rig, schedule):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": schedule})
    rig.decode.fault(action="reject", status=400)
    assert rig.post(CHAT, "/v1/chat/completions").status == 400
    line = rig.exchange_line(path="/v1/chat/completions")
    assert (line.fields["status"], line.fields["mode"]) == ("400", "disaggregated"), line
    for engine in (rig.prefill, rig.decode):
        engine.wait(requests=0)
        engine.times_up()
        engine.wait(blocks_free="all", leases=0)
    assert rig.counters_at_end()["backend.generation_refused"] == 1


@pytest.mark.parametrize("field", ["disaggregated_params", "prompt_token_ids_b64", "ctx_info_endpoint", "encoded_opaque_state"])
def test_fields_of_a_handoff_are_not_the_clients(rig, field):
    for value in ({"request_type": "generation_only"}, "x", 7, [1]):
        answer = rig.post({**CHAT, field: value}, "/v1/chat/completions", disaggregated=False)
        answer.refused(400, "invalid_pd_request")
        assert field in answer.error["message"] + str(answer.error["param"])
    assert rig.post({**CHAT, field: None}, "/v1/chat/completions").status == 200
    assert len(rig.legs(rig.prefill)) == 1


@pytest.mark.parametrize("shape,reason", [({"n": 2}, "n"), ({"prompt": ["a", "b"]}, "several_prompts"), ({"echo": True}, "echo")])
def test_t29_requests_that_a_handoff_cant_carry_run_decode_only(rig, shape, reason):
    assert rig.post({**COMPLETION, **shape}).status == 200
    assert rig.exchange_line(mode="decode_only").fields["reason"] == reason
    assert rig.legs(rig.prefill) == []


@pytest.mark.parametrize("shape", [{"stream": "xyz"}, {"stream_options": {"include_usage": True}}, {"stream": True, "stream_options": 7}],
                         ids=["stream", "options-alone", "options"])
def test_t29_stream_that_generation_refuses_leaves_nothing_on_context(rig, shape):
    assert rig.post({**COMPLETION, **shape}).status == 400
    assert rig.legs(rig.prefill) == []


def test_t30_body_is_never_called_messagepack(rig):
    assert rig.post(CHAT, "/v1/chat/completions", [("X-TRTLLM-Msgpack", "1")]).status == 200
    assert rig.post(CHAT, "/v1/chat/completions", [("X-TRTLLM-Msgpack", "1")], disaggregated=False).status == 200


# ------------------------------------------------------------------------------------------------- T22, T23: the client leaves

@STREAMS
def test_t23_client_leaves_while_blocks_are_on_their_way(own_rig, stream):
    rig = own_rig(decode=("--kv-load-ms", "300", "--decode-us-per-token", "50000"))
    client = rig.start({**COMPLETION, "stream": stream, "max_tokens": 60 if stream else 6})
    rig.decode.wait(requests__running=1)
    if stream:
        assert client.read_head().status == 200  # the engine has nothing yet
    client.close()
    rig.wait_tidy()
    state = rig.decode.state()
    assert state["pulls"]["fresh"] == 1
    assert state["requests"]["aborted" if stream else "finished"] == 1, "a stream is closed at its first byte"
    assert_sound(rig)
    assert rig.counters_at_end()["lingering_legs"] == 1


def test_t23_client_that_leaves_later_closes_generation_at_once(own_rig):
    rig = own_rig(decode=("--decode-us-per-token", "50000"))
    client = rig.start({**COMPLETION, "max_tokens": 2000, "stream": True})
    head = client.read_head()
    assert head.status == 200
    client.read_chunk(head)
    client.close()
    rig.decode.wait(requests=0, requests__aborted=1)
    rig.wait_tidy()
    assert_sound(rig)


# ----------------------------------------------------------------------------------------------------- generation first

GENERATION_FIRST = pytest.mark.settings(DYN_SIDECAR_TRTLLM_SCHEDULE="generation-first")


def test_t41_generation_is_asked_before_context(own_rig):
    stall = [{"action": "stall", "match": {"role": "decode"}, "times": 1}]
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first", "DYN_SIDECAR_DRAIN_TIMEOUT_MS": "300"},
                  decode=("--faults", json.dumps(stall)))
    client = rig.start(CHAT, "/v1/chat/completions")
    rig.decode.wait(fault_hits=1)
    rig.prefill.wait(requests__running=1)  # it computes, and waits for generation
    legs = [leg["target"] for leg in rig.legs(rig.prefill)]
    assert legs == ["/server_info", "/v1/chat/completions"]
    client.close()
    assert rig.exchange_line(path="/v1/chat/completions").fields["outcome"] == "client_gone"
    rig.sidecar.stop()
    rig.prefill.wait(requests=0, blocks_free="all", leases=0)


@GENERATION_FIRST
def test_t43_address_is_asked_for_once(rig):
    for _ in range(3):
        assert rig.post(CHAT, "/v1/chat/completions").status == 200
    targets = [leg["target"] for leg in rig.legs(rig.prefill)]
    assert targets.count("/server_info") <= 1 and targets.count("/v1/chat/completions") == 3


@STREAMS
def test_t43_address_is_asked_for_again_after_generation_failed(own_rig, stream):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"})
    assert rig.post(CHAT, "/v1/chat/completions").status == 200
    rig.decode.fault(action="status", status=500, match={"role": "decode"}, times=1)
    assert rig.post({**CHAT, "stream": stream}, "/v1/chat/completions").status == 500
    assert rig.post(CHAT, "/v1/chat/completions").status == 200
    assert [leg["target"] for leg in rig.legs(rig.prefill)].count("/server_info") == 2
    rig.wait_tidy()


def test_t44_context_that_announces_no_address_is_an_error(own_rig):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"})
    rig.prefill.fault(action="status", status=200, body={"version": "1"}, match={"path": "/server_info"})
    answer = rig.post(CHAT, "/v1/chat/completions").refused(502, "invalid_prefill_handoff")
    assert "ctx_info_endpoint" in answer.error["message"]
    assert rig.legs(rig.decode) == []


@STREAMS
def test_t46_context_that_fails_ends_generation_at_once(own_rig, stream):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"})
    rig.prefill.fault(action="status", status=503, body="busy", match={"role": "prefill"})
    rig.post({**CHAT, "stream": stream}, "/v1/chat/completions").refused(503, "prefill_upstream_error")
    rig.decode.wait(requests=0, blocks_free="all", requests__aborted=1)
    rig.wait_tidy()


def test_t47_generation_that_refuses_ends_context_at_once(own_rig):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"}, prefill=("--prefill-us-per-token", "10000000"))
    rig.decode.fault(action="reject", status=400)
    answer = rig.post(CHAT, "/v1/chat/completions")
    assert (answer.status, answer.json["message"]) == (400, "rejected by a fault rule")
    rig.wait_tidy()


@STREAMS
def test_t51_client_that_leaves_lets_the_transfer_end(own_rig, stream):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"}, decode=("--kv-load-ms", "200"),
                  prefill=("--prefill-us-per-token", "20000"))
    client = rig.start({**COMPLETION, "stream": stream})
    rig.prefill.wait(requests__running=1)
    rig.decode.wait(requests=1)
    client.close()
    rig.wait_tidy()
    assert rig.decode.state()["pulls"]["fresh"] == 1
    assert_sound(rig)


def test_t51_clients_that_leave_at_once_leave_no_leg_alone(own_rig):
    """Whenever they do: what generation was asked for, context was asked for too, and both come to an end."""
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"})
    assert rig.post(CHAT, "/v1/chat/completions").status == 200
    for number in range(120):
        client = rig.start({**CHAT, "stream": True}, "/v1/chat/completions")
        for _ in range(number % 40 * 25):
            pass
        client.reset()
    assert rig.post(CHAT, "/v1/chat/completions").status == 200
    rig.wait_tidy()
    asked = [{params_of(leg)["disagg_request_id"] for leg in rig.legs(engine) if leg["target"] == "/v1/chat/completions"}
             for engine in (rig.prefill, rig.decode)]
    assert asked[0] == asked[1]
    assert_sound(rig)


def test_t16_tool_calls_of_a_request_that_ended_in_context_are_numbered(scripted):
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", **call}, {"id": "b", **call}]}
    with scripted.start({**CHAT, "stream": True}, "/v1/chat/completions") as client:
        context = scripted.prefill.next()
        context.body()
        context.reply(json.dumps({"id": "x", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}]}).encode())
        events = client.read_response().events()
    calls = json.loads(events[0])["choices"][0]["delta"]["tool_calls"]
    assert [(one["index"], one["id"]) for one in calls] == [(0, "a"), (1, "b")] and events[-1] == "[DONE]"


@STREAMS
@BOTH_PATHS
def test_t56_request_that_ends_in_context_ends_generation_first_too(own_rig, path, stream):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"})
    words = "[[eos-first]] Tell me"
    prompt = {"prompt": words} if path == "/v1/completions" else {"messages": [{"role": "user", "content": words}]}
    answer = rig.post({**BODIES[path], **prompt, "stream": stream}, path)
    assert answer.status == 200 and text_of(path, answer) == ""
    assert b'"finish_reason":"stop"' in answer.body.replace(b" ", b"")
    assert b"disaggregated_params" not in answer.body and b"prompt_token_ids" not in answer.body
    rig.wait_tidy()
    assert_sound(rig)


@pytest.mark.parametrize("body", [{"choices": []}, {"choices": [{"finish_reason": "stop"}], "error": {"code": 500}}],
                         ids=["no-choice", "error"])
def test_t55_context_reply_that_goes_nowhere_is_told_at_once(own_rig, body):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"})
    rig.prefill.fault(action="status", status=200, body=json.dumps(body), match={"role": "prefill"})
    rig.post(CHAT, "/v1/chat/completions").refused(502, "invalid_prefill_handoff")
    if "error" in body:
        rig.decode.wait(requests=0, blocks_free="all")


@STREAMS
def test_t57_context_engine_that_was_restarted_is_asked_again(own, own_rig, stream):
    """On its port, with another address for blocks, sooner than a real one could start: no client waits for a time-out."""
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"})
    assert rig.post(CHAT, "/v1/chat/completions").status == 200
    rig.prefill.stop()
    rig.prefill = own.engine("--engine", "trtllm", "--role", "producer", "--port", str(rig.prefill.port))
    for _ in range(3):
        assert rig.post({**CHAT, "stream": stream}, "/v1/chat/completions").status == 200
    rig.wait_tidy()
    assert rig.counters_at_end()["backend.engine_changed"] == 1


def test_t57_engine_that_is_no_context_server_is_noticed(own, own_rig):
    rig = own_rig({"DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"})
    assert rig.post(CHAT, "/v1/chat/completions").status == 200
    rig.prefill.stop()
    own.engine("--port", str(rig.prefill.port))  # vLLM
    for _ in range(2):
        assert rig.post(CHAT, "/v1/chat/completions").status == 502
    rig.decode.wait(requests=0, blocks_free="all")


# ------------------------------------------------------------------------------------------------------------- the rest

def test_other_paths_pass_through(rig):
    with rig.connect() as client:
        client.send(wire("GET", "/v1/models", [rig.hint]))
        assert client.read_response("GET").json["data"][0]["id"] == "mock-model"


# ------------------------------------------------------------------------------------------- a context engine by setting

@SCHEDULES
def test_t54_requests_without_the_header_go_to_the_configured_context_engine(own, schedule):
    context, generation, other = (own.engine("--engine", "trtllm", "--role", role) for role in ("producer", "consumer", "producer"))
    settings = {"DYN_SIDECAR_BACKEND": "trtllm", "DYN_SIDECAR_TRTLLM_SCHEDULE": schedule,
                "DYN_CONTEXT_ENGINE_URL": f"http://127.0.0.1:{context.port}", "DYN_SIDECAR_PREFILL_ALLOWLIST": f"127.0.0.1:{other.port}"}
    rig = Rig(own.sidecar(generation.port, settings), other, generation)
    answer = rig.post(CHAT, "/v1/chat/completions", disaggregated=False)
    assert text_of("/v1/chat/completions", answer) == generation.expect("/v1/chat/completions", CHAT)["text"]
    assert context.state()["prefill_requests"] == 1
    assert rig.exchange_line(path="/v1/chat/completions").fields["prefill"] == f"127.0.0.1:{context.port}"
    assert rig.post(CHAT, "/v1/chat/completions").status == 200, "the header still chooses"
    assert other.state()["prefill_requests"] == 1
    rig.post(CHAT, "/v1/chat/completions", [("x-prefiller-host-port", f"127.0.0.1:{context.port}")], disaggregated=False).refused(
        403, "prefill_endpoint_not_allowed")
