"""SGLang: what engines say they are, second attempts, ranks (S50, S70 of backends/sglang/PROTOCOL.md)."""

import json

import pytest
from conftest import MOCK
from harness.sglang_rig import (  # noqa: F401, F811 (fixtures)
    BODIES, CHAT, SETTINGS, STREAMS, SglangRig, engines, good_prefill, pd, played, sglang_rig,
)
from harness.sidecar import Sidecar, run
from mock_engine_client import MockEngine


# ---------------------------------------------------------------------------------------- S50: what engines say they are

def test_s50_engines_are_not_asked_for_every_request(pd):
    for _ in range(10):
        assert pd.post(BODIES[CHAT], CHAT).status == 200
    for engine in (pd.prefill, pd.decode):
        assert engine.state()["requests_by_path"].get("/server_info", 0) < 10


def test_s50_the_port_can_be_configured():
    with MockEngine("--engine", "sglang", "--disaggregation-mode", "prefill", binary=MOCK) as p, \
            MockEngine("--engine", "sglang", "--disaggregation-mode", "decode", binary=MOCK) as d:
        for name in ("DYN_SIDECAR_SGLANG_BOOTSTRAP_PORT", "SGLANG_BOOTSTRAP_PORT"):
            with Sidecar(d.port, {**SETTINGS, name: str(p.side_channel_port)}) as sidecar:
                rig = SglangRig(sidecar, p, d)
                assert rig.post(BODIES[CHAT], CHAT).status == 200
                rig.wait_tidy()
        assert p.state()["requests_by_path"].get("/server_info") is None


@pytest.mark.parametrize("prefill, decode, words", [
    ("decode", "decode", "prefill mode"), ("null", "decode", "prefill mode"), ("prefill", "prefill", "decode mode"),
    ("prefill", "null", "decode mode")])
def test_s51_an_engine_in_another_role_is_a_clear_error(prefill, decode, words):
    with MockEngine("--engine", "sglang", "--disaggregation-mode", prefill, binary=MOCK) as p, \
            MockEngine("--engine", "sglang", "--disaggregation-mode", decode, binary=MOCK) as d, \
            Sidecar(d.port, SETTINGS) as sidecar:
        rig = SglangRig(sidecar, p, d)
        answer = rig.post(BODIES[CHAT], CHAT).refused(502, "engine_role_mismatch")
        assert words in answer.error["message"]
        assert rig.legs(p) == rig.legs(d) == []


@pytest.mark.parametrize("fault", [{"action": "status", "status": 503}, {"action": "non_json"},
                                   {"action": "huge_body", "bytes": 2 << 20}, {"action": "reset_at", "at": 5}],
                         ids=["status", "html", "huge", "reset"])
def test_s52_a_server_info_that_is_none(fault):
    with sglang_rig() as pd:
        pd.prefill.fault(**fault, match={"path": "/server_info"})
        answer = pd.post(BODIES[CHAT], CHAT)
        assert answer.status == 502
        assert answer.error["code"] in ("auxiliary_upstream_error", "engine_role_mismatch")
        assert pd.legs(pd.prefill) == pd.legs(pd.decode) == []
        pd.prefill.control("DELETE", "/mock/faults")
        assert pd.post(BODIES[CHAT], CHAT).status == 200, "what failed is not remembered"


def replaced(engine, *flags):
    """Another engine on its port, sooner than a real one could start."""
    engine.stop()
    return MockEngine("--engine", "sglang", "--port", str(engine.port), *flags, binary=MOCK)


@STREAMS
def test_s53_an_engine_that_moved_its_bootstrap_port_is_asked_again(stream):
    """No client notices, and no engine's time-out (300 s) is waited for."""
    with sglang_rig() as pd:
        assert pd.post(BODIES[CHAT], CHAT).status == 200
        with replaced(pd.prefill, "--disaggregation-mode", "prefill") as pd.prefill:
            for _ in range(3):
                assert pd.post({**BODIES[CHAT], "stream": stream}, CHAT).status == 200
            pd.wait_tidy()
        assert pd.counters_at_end()["backend.engine_changed"] == 1


@pytest.mark.parametrize("which, mode", [("prefill", "decode"), ("prefill", "null"), ("decode", "prefill"), ("decode", "null")])
def test_s59_an_engine_of_another_role_that_takes_a_port_is_noticed(which, mode):
    with sglang_rig() as pd:
        assert pd.post(BODIES[CHAT], CHAT).status == 200
        engine = getattr(pd, which)
        with replaced(engine, "--disaggregation-mode", mode) as other:
            setattr(pd, which, other)
            for _ in range(3):
                answer = pd.post(BODIES[CHAT], CHAT).refused(502, "engine_role_mismatch")
                assert f"{which} mode" in answer.error["message"]
            pd.wait_tidy()
        with replaced(engine, "--disaggregation-mode", which) as again:
            setattr(pd, which, again)
            assert pd.post(BODIES[CHAT], CHAT).status == 200
            pd.wait_tidy()


@pytest.mark.parametrize("which", ["prefill", "decode"])
def test_s59_an_engine_that_is_no_sglang_is_noticed(which):
    with sglang_rig() as pd:
        assert pd.post(BODIES[CHAT], CHAT).status == 200
        engine = getattr(pd, which)
        engine.stop()
        with MockEngine("--port", str(engine.port), binary=MOCK):
            for _ in range(2):
                assert pd.post(BODIES[CHAT], CHAT).status == 502
        other = pd.decode if which == "prefill" else pd.prefill
        other.wait(requests=0, blocks_free="all", sglang__rooms__live=0)


def test_s54_versions_that_differ_are_warned_of():
    with sglang_rig(prefill=("--sglang-version", "0.5.18")) as pd:
        assert pd.post(BODIES[CHAT], CHAT).status == 200
        assert "version" in pd.sidecar.wait_log("backend_warning").text


def test_s55_the_clients_key_opens_engines_that_have_one():
    key = ("--api-key", "k")
    with sglang_rig(prefill=key, decode=key) as pd:
        assert pd.post(BODIES[CHAT], CHAT, [("authorization", "Bearer wrong")]).status == 401
        assert pd.post(BODIES[CHAT], CHAT, [("authorization", "Bearer k")]).status == 200


def test_s56_fallback_to_decode_alone_is_not_offered():
    ended = run(settings={"DYN_SIDECAR_BACKEND": "sglang", "DYN_SIDECAR_ON_PREFILL_FAILURE": "decode-only"})
    assert ended.returncode != 0 and "DYN_SIDECAR_ON_PREFILL_FAILURE" in ended.stderr


# --------------------------------------------------------------------------------------------- S70: once more, and ranks

def test_s70_what_the_engine_calls_retryable_is_tried_once_more(pd):
    pd.prefill.fault(action="status", status=503, match={"role": "prefill"}, times=1,
                     headers=[["x-sglang-retryable", "true"], ["x-sglang-pd-reason", "PD_CAPACITY_EXHAUSTED"]])
    answer = pd.post(BODIES[CHAT], CHAT)
    assert answer.status == 200, answer
    rooms = [json.loads(leg["body"])["bootstrap_room"] for leg in pd.legs(pd.prefill)]
    assert len(set(rooms)) == 2, "a room is good for one attempt"


def test_s71_a_request_lost_on_a_kept_connection_is_paired_anew(played):
    def once(reply_to):
        with played.start(BODIES[CHAT], CHAT) as client:
            prefill, decode = played.prefill.next(), played.decode.next()
            if reply_to is None:
                rid = decode.json["rid"]
                prefill.reply(good_prefill())
                decode.reply(b"{}")
                assert client.read_response("POST").status == 200
                return rid
            rid = prefill.json["rid"]
            prefill.reset()
            later = [played.prefill.next(), played.prefill.next()]
            abort = next(x for x in later if x.target == "/abort_request")
            again = next(x for x in later if x.target == CHAT)
            assert abort.json["rid"] == rid
            abort.reply()
            assert again.json["rid"] != rid
            decode.wait_until_dropped()
            later = [played.decode.next(), played.decode.next()]
            next(x for x in later if x.target == "/abort_request").reply()
            again.reply(good_prefill())
            next(x for x in later if x.target == CHAT).reply(b"{}")
            assert client.read_response("POST").status == 200
            return rid

    once(None)
    once("prefill")


def test_s72_ranks():
    with sglang_rig(prefill=("--data-parallel-size", "4")) as pd:
        for _ in range(4):
            answer = pd.post(BODIES[CHAT], CHAT, [("x-dynamo-prefill-dp-rank", "3")])
            assert answer.status == 200, answer
        assert pd.prefill.state()["sglang"]["ranks"] == {"3": 4}
        for _ in range(24):
            assert pd.post(BODIES[CHAT], CHAT).status == 200
        assert len(pd.prefill.state()["sglang"]["ranks"]) > 1, "rooms spread over the ranks"


def test_s74_a_clients_own_ranks():
    two = ("--data-parallel-size", "2")
    with sglang_rig(prefill=two, decode=two) as pd:
        for wish in ({"disagg_prefill_dp_rank": 1}, {"routed_dp_rank": 1}, {"data_parallel_rank": 1},
                     {"disagg_prefill_dp_rank": 0, "routed_dp_rank": 1}):
            for _ in range(8):  # a room that had no rank would have the right one each second time
                answer = pd.post({**BODIES[CHAT], **wish}, CHAT)
                assert answer.status == 200, (wish, answer)
        answer = pd.post({**BODIES[CHAT], "disagg_prefill_dp_rank": 2}, CHAT).refused(400, "invalid_pd_request")
        assert answer.error["param"] == "disagg_prefill_dp_rank" and "below" in answer.error["message"]
        pd.wait_tidy()


def test_s73_readiness_does_not_run_a_generation_for_every_probe(pd):
    assert pd.sidecar.wait_log("engine_health").fields["healthy"] == "true"
    for _ in range(20):
        with pd.connect() as client:
            assert client.request("GET", "/ready").status == 200
    assert pd.decode.state()["sglang"]["health_generations"] <= 1
