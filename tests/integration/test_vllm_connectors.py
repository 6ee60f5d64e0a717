"""vLLM's other connectors over real sockets (C60 to C75 of backends/vllm/PROTOCOL.md): engines played by the test, and token
reuse between mock engines."""

import json

import pytest
from conftest import Rig

CHAT = {"model": "mock-model", "messages": [{"role": "user", "content": "Tell me of sheep"}], "max_tokens": 6}
LENGTH = b'{"choices": [{"finish_reason": "length", "message": {"content": "<<P>>"}}]}'
ANSWER = b'{"choices": [{"finish_reason": "stop"}], "answer": 1}'
EVENT = b'data: {"choices": [{"text": "a", "finish_reason": null}]}\n\n'


def params_of(exchange):
    return exchange.json.get("kv_transfer_params")


@pytest.fixture
def played(own):
    """played(connector): a sidecar between two played engines, with a bootstrap server."""
    def make(connector, **settings):
        prefill, decode, bootstrap = own.scripted(), own.scripted(), own.scripted()
        rig = Rig(own.sidecar(decode.port, {
            "DYN_SIDECAR_VLLM_CONNECTOR": connector, "DYN_SIDECAR_READY_INTERVAL_MS": "3600000",
            "DYN_SIDECAR_VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap.port), **settings}), prefill, decode)
        rig.bootstrap = bootstrap
        rig.sidecar.wait_log("engine_health", healthy="true")
        return rig

    return make


def answered(rig, client):
    answer = client.read_response("POST")
    assert (answer.status, answer.body) == (200, ANSWER)
    rig.sidecar.check_undamaged()


# ------------------------------------------------------------------------------------------------- one after the other

def test_c64_shared_storage_primes_prefill(played):
    rig = played("shared-storage")
    with rig.start(CHAT, "/v1/chat/completions") as client:
        prefill = rig.prefill.next()
        assert prefill.json == {**CHAT, "max_tokens": 1, "stream": False}
        rig.decode.expect_nothing()
        prefill.reply(LENGTH)
        decode = rig.decode.next()
        assert decode.json == CHAT
        decode.reply(ANSWER)
        answered(rig, client)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_c65_decode_is_asked_first_where_the_client_set_a_threshold(played, stream):
    rig = played("shared-storage")
    request = {**CHAT, "cache_hit_threshold": 0.7, "stream": stream}
    with rig.start(request, "/v1/chat/completions") as client:
        first = rig.decode.next()
        assert first.json == request
        rig.prefill.expect_nothing()
        missed = b'{"choices": [{"finish_reason": "cache_threshold"}]}'
        if stream:
            first.begin_stream()
            first.chunk(EVENT)
            client.expect_silence()
            first.chunk(b"data: " + missed + b"\n\n")
            first.wait_until_dropped()
        else:
            first.reply(missed)
        prefill = rig.prefill.next()
        assert (prefill.json["max_tokens"], prefill.json["cache_hit_threshold"]) == (1, 0)
        prefill.reply(LENGTH)
        decode = rig.decode.next()
        assert decode.json == {**request, "cache_hit_threshold": 0}
        decode.reply(ANSWER)
        answered(rig, client)


def test_c66_stream_of_which_enough_was_cached_loses_nothing(played):
    rig = played("shared-storage")
    with rig.start({**CHAT, "cache_hit_threshold": 0.7, "stream": True}, "/v1/chat/completions") as client:
        decode = rig.decode.next()
        decode.begin_stream()
        for _ in range(3):
            decode.chunk(EVENT)
        decode.chunk(b"data: [DONE]\n\n")
        decode.end_stream()
        assert client.read_response("POST").body == EVENT * 3 + b"data: [DONE]\n\n"
    rig.prefill.expect_nothing()


def test_c67_offloading_engines_meet_by_name(played):
    rig = played("offloading", DYN_SIDECAR_VLLM_P2P_PORT="7777")
    with rig.start(CHAT, "/v1/chat/completions", [("x-dynamo-prefill-dp-rank", "1")]) as client:
        prefill = rig.prefill.next()
        name = params_of(prefill)["remote_decoder"]["kv_request_id"]
        rig.decode.expect_nothing()
        prefill.reply(LENGTH)
        decode = rig.decode.next()
        assert params_of(decode) == {
            "remote_prefiller": {"kv_request_id": name, "remote_host": "127.0.0.1", "remote_port": 7778}}
        decode.reply(ANSWER)
        answered(rig, client)


def test_c60_pushed_handoff_needs_no_block_ids(played):
    rig = played("nixl-push")
    handoff = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e", "remote_request_id": "r",
               "remote_host": "h", "remote_port": 5600, "tp_size": 1, "pp_size": 1, "transfer_mode": "push"}
    with rig.start(CHAT, "/v1/chat/completions") as client:
        rig.prefill.next().reply(json.dumps({"kv_transfer_params": handoff}).encode())
        decode = rig.decode.next()
        assert params_of(decode) == handoff
        decode.reply(ANSWER)
        answered(rig, client)


# ------------------------------------------------------------------------------------------------------------ Mooncake

def ranks(engine_id):
    return json.dumps({"0": {"engine_id": engine_id, "worker_addr": {"0": {"0": "tcp://a:1"}}}}).encode()


def test_c68_mooncake_asks_both_at_once_and_holds_decode(played):
    rig = played("mooncake")
    with rig.start({**CHAT, "stream": True}, "/v1/chat/completions") as client:
        query = rig.bootstrap.next()
        assert (query.method, query.target) == ("GET", "/query")
        query.reply(ranks("e-0"))
        prefill, decode = rig.prefill.next(), rig.decode.next()  # neither waits for the other
        assert prefill.header("x-data-parallel-rank") == "0"
        assert params_of(decode) == {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e-0",
            "remote_bootstrap_addr": f"http://127.0.0.1:{rig.bootstrap.port}",
            "transfer_id": params_of(prefill)["transfer_id"]}
        decode.begin_stream()
        decode.chunk(EVENT)
        client.expect_silence()
        prefill.reply(LENGTH)
        decode.chunk(b"data: [DONE]\n\n")
        decode.end_stream()
        assert client.read_response("POST").body == EVENT + b"data: [DONE]\n\n"
    with rig.start(CHAT, "/v1/chat/completions") as client:  # remembered
        rig.prefill.next().reply(LENGTH)
        rig.decode.next().reply(ANSWER)
        answered(rig, client)
    rig.bootstrap.expect_nothing()


def test_c71_mooncake_restarted_prefill_is_asked_anew(played):
    rig = played("mooncake")
    with rig.start(CHAT, "/v1/chat/completions") as client:
        rig.bootstrap.next().reply(ranks("old"))
        rig.prefill.next().reply(LENGTH)
        rig.decode.next().reply(ANSWER)
        answered(rig, client)
    with rig.start(CHAT, "/v1/chat/completions") as client:
        prefill, decode = rig.prefill.next(), rig.decode.next()
        assert params_of(decode)["remote_engine_id"] == "old"
        prefill.body()
        decode.reply(b'{"error": {"message": "no such engine"}}', status="500 Internal Server Error")
        prefill.wait_until_dropped()
        rig.bootstrap.next().reply(ranks("new"))
        again = rig.prefill.next()
        second = rig.decode.next()
        assert params_of(second)["remote_engine_id"] == "new"
        assert params_of(second)["transfer_id"] == params_of(again)["transfer_id"] != params_of(decode)["transfer_id"]
        again.reply(LENGTH)
        second.reply(ANSWER)
        answered(rig, client)


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_mooncake_client_that_leaves_closes_both(played, leave):
    rig = played("mooncake")
    client = rig.start(CHAT, "/v1/chat/completions")
    rig.bootstrap.next().reply(ranks("e"))
    legs = [rig.prefill.next(), rig.decode.next()]
    for leg in legs:
        leg.body()
    getattr(client, leave)()
    for leg in legs:
        leg.wait_until_dropped()
    assert rig.exchange_line(path="/v1/chat/completions").fields["outcome"] == "client_gone"


def test_mooncake_client_that_leaves_while_the_bootstrap_server_is_asked(played):
    rig = played("mooncake")
    client = rig.start(CHAT, "/v1/chat/completions")
    query = rig.bootstrap.next()
    client.close()
    query.wait_until_dropped()
    assert rig.exchange_line(path="/v1/chat/completions").fields["outcome"] == "client_gone"
    rig.prefill.expect_nothing()
    rig.decode.expect_nothing()


def test_c71_mooncake_remembered_prefill_is_asked_anew_though_it_was_quicker(played):
    """Decode finds out last, by an error within a stream that has not been shown."""
    rig = played("mooncake")
    with rig.start(CHAT, "/v1/chat/completions") as client:
        rig.bootstrap.next().reply(ranks("old"))
        rig.prefill.next().reply(LENGTH)
        rig.decode.next().reply(ANSWER)
        answered(rig, client)
    with rig.start({**CHAT, "stream": True}, "/v1/chat/completions") as client:
        prefill, decode = rig.prefill.next(), rig.decode.next()
        prefill.reply(LENGTH)
        decode.begin_stream()
        client.expect_silence()
        decode.chunk(b'data: {"error": {"message": "no such engine"}}\n\n')
        rig.bootstrap.next().reply(ranks("new"))
        again, second = rig.prefill.next(), rig.decode.next()
        assert params_of(second)["remote_engine_id"] == "new"
        again.reply(LENGTH)
        second.begin_stream()
        second.chunk(EVENT)
        second.chunk(b"data: [DONE]\n\n")
        second.end_stream()
        assert client.read_response("POST").body == EVENT + b"data: [DONE]\n\n"


def test_c73_mooncake_prefill_that_fails_closes_decode(played):
    rig = played("mooncake")
    with rig.start(CHAT, "/v1/chat/completions") as client:
        rig.bootstrap.next().reply(ranks("e"))
        prefill, decode = rig.prefill.next(), rig.decode.next()
        decode.body()
        prefill.reply(b"busy", status="503 Busy")
        decode.wait_until_dropped()
        client.read_response("POST").refused(503, "prefill_upstream_error")


def test_c73_mooncake_decode_that_breaks_after_prefill_is_done(played):
    rig = played("mooncake")
    with rig.start(CHAT, "/v1/chat/completions") as client:
        rig.bootstrap.next().reply(ranks("e"))
        prefill, decode = rig.prefill.next(), rig.decode.next()
        prefill.reply(LENGTH)
        decode.body()
        client.expect_silence()
        decode.reset()
        client.read_response("POST").refused(502, "decode_upstream_error")


@pytest.mark.parametrize("reply", [b'{"error": {"message": "x", "code": 500}}', b'{"object": "error"}', b"{}"])
def test_c85_mooncake_prefill_reply_without_an_answer_closes_decode(played, reply):
    rig = played("mooncake")
    with rig.start(CHAT, "/v1/chat/completions") as client:
        rig.bootstrap.next().reply(ranks("e"))
        prefill, decode = rig.prefill.next(), rig.decode.next()
        decode.body()
        prefill.reply(reply)
        decode.wait_until_dropped()
        client.read_response("POST").refused(502, "invalid_prefill_handoff")
    rig.decode.expect_nothing()


def test_c89_mooncake_prefill_without_its_bootstrap_server_is_not_waited_for(played):
    """Another engine on the port of the remembered one: it knows nothing of the transfer, and answers well."""
    rig = played("mooncake")
    with rig.start(CHAT, "/v1/chat/completions") as client:
        rig.bootstrap.next().reply(ranks("e"))
        rig.prefill.next().reply(LENGTH, headers=(("Content-Type", "application/json"), ("Connection", "close")), keep=False)
        rig.decode.next().reply(ANSWER)
        answered(rig, client)
    with rig.start(CHAT, "/v1/chat/completions") as client:
        query, prefill, decode = rig.bootstrap.next(), rig.prefill.next(), rig.decode.next()
        decode.body()
        query.reply(b"", status="404 Not Found")
        prefill.reply(LENGTH)
        decode.wait_until_dropped()
        answer = client.read_response("POST").refused(502, "invalid_prefill_handoff")
        assert "bootstrap" in answer.error["message"]


def test_c86_mooncake_decode_that_refuses_the_request_is_the_answer(played):
    rig = played("mooncake")
    with rig.start(CHAT, "/v1/chat/completions") as client:
        rig.bootstrap.next().reply(ranks("e"))
        rig.prefill.next().reply(LENGTH)
        rig.decode.next().reply(ANSWER)
        answered(rig, client)
    with rig.start(CHAT, "/v1/chat/completions") as client:
        prefill, decode = rig.prefill.next(), rig.decode.next()
        prefill.body()
        decode.reply(b'{"object": "error"}', status="400 Bad Request")
        prefill.wait_until_dropped()
        answer = client.read_response("POST")
        assert (answer.status, answer.body) == (400, b'{"object": "error"}')
    rig.bootstrap.expect_nothing()
    rig.decode.expect_nothing()


def test_c75_mooncake_without_a_bootstrap_server(played):
    rig = played("mooncake")
    rig.bootstrap.stop()
    with rig.start(CHAT, "/v1/chat/completions") as client:
        client.read_response("POST").refused(502, "auxiliary_upstream_error")
    rig.prefill.expect_nothing()
    rig.decode.expect_nothing()


# --------------------------------------------------------------------------------------------------------- token reuse

@pytest.mark.settings(DYN_SIDECAR_VLLM_REUSE_TOKENS="true")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_c62_prompt_is_tokenized_once(rig, path, stream):
    body = CHAT if path == "/v1/chat/completions" else {"prompt": "Tell me of sheep and of other animals", "max_tokens": 6}
    answer = rig.post({**body, "stream": stream}, path)
    assert answer.status == 200, answer
    choices = [json.loads(event)["choices"][0] for event in answer.events() if event != "[DONE]"] if stream else answer.json["choices"]
    said = "".join(c["text"] if "text" in c else c.get("message", c.get("delta"))["content"] or "" for c in choices)
    assert said == rig.decode.expect(path, body)["text"]
    assert "prompt_token_ids" not in choices[0] or choices[0]["prompt_token_ids"] is None, "the client has not asked for them"
    (leg,) = rig.legs(rig.decode)
    sent = json.loads(leg["body"])
    tokens = sent["prompt"] if path == "/v1/completions" else sent["kv_transfer_params"]["prompt_token_ids"]
    assert tokens and all(isinstance(token, int) for token in tokens)
    assert rig.decode.state()["pulls"]["fresh"] == 1
