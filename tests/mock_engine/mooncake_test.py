"""vLLM with the Mooncake connector: legs that meet by transfer_id, and what is left when one does not come."""

import json

import pytest

from exchanges import ALL_APIS, CHAT, COMPLETIONS, PROMPT, at_once, open_request, text_of

SCALE = ("--time-scale", "0.002")  # 480 s are 0.96 s
MOONCAKE = ("--kv-connector", "mooncake")


class Pair:
    def __init__(self, start, prefill=(), decode=(), scale=SCALE):
        self.prefill = start(*MOONCAKE, "--role", "producer", *scale, *prefill)
        self.decode = start(*MOONCAKE, "--role", "consumer", *scale, *decode)
        self.transfers = 0

    @property
    def bootstrap(self):
        return f"http://127.0.0.1:{self.prefill.bootstrap_port}"

    def query(self):
        return self.prefill.call("GET", "/query", port=self.prefill.bootstrap_port)

    def bodies(self, path=COMPLETIONS, rank="0", **more):
        """Prefill's and decode's, with a transfer of their own."""
        self.transfers += 1
        name = f"xfer-{self.transfers}"
        body = {**ALL_APIS[path], **more}
        short = json.loads(json.dumps(body))
        if path == "/inference/v1/generate":
            short["sampling_params"]["max_tokens"] = 1
        else:
            short["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = 1
        short["stream"] = False
        short["kv_transfer_params"] = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name}
        body["kv_transfer_params"] = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_bootstrap_addr": self.bootstrap,
            "remote_engine_id": self.query().json[rank]["engine_id"], "transfer_id": name}
        return short, body

    def both(self, prefill, decode, path=COMPLETIONS, headers=None):
        return at_once(lambda: self.prefill.post(path, prefill, headers), lambda: self.decode.post(path, decode))

    def tidy(self):
        return [engine.wait(blocks_free="all", requests=0, leases=0, transfers__asked=0, transfers__loading=0,
                            transfers__orphaned=0) for engine in (self.prefill, self.decode)]


@pytest.fixture
def pair(start):
    return Pair(start)


@pytest.mark.parametrize("path", ALL_APIS)
def test_both_legs_meet_on_every_api(pair, path):
    prefill, decode = pair.both(*pair.bodies(path), path)
    assert (prefill.status, decode.status) == (200, 200), decode.body
    assert prefill.json.get("kv_transfer_params") is None, "only the names are known beforehand"
    expected = pair.decode.expect(path, ALL_APIS[path])
    if path == "/inference/v1/generate":
        assert decode.json["choices"][0]["token_ids"] == expected["choices"][0]["token_ids"]
    else:
        assert json.dumps(expected["text"])[1:-1] in decode.body.decode()
    on_p, on_d = pair.tidy()
    assert on_d["tokens"]["local_compute"] == 0 and on_d["pulls"]["fresh"] == 1
    assert on_p["leases"] == {"live": 0, "created": 1, "consumed": 1, "expired": 0, "released": 0}


def test_either_leg_may_be_first(pair):
    prefill, decode = pair.bodies()
    with open_request(pair.decode, COMPLETIONS, decode):
        pair.decode.wait(transfers__loading=1)
        pair.prefill.wait(transfers__asked=1)
        assert pair.prefill.post(COMPLETIONS, prefill).status == 200
        pair.decode.wait(requests__finished=1)
    prefill, decode = pair.bodies()
    assert pair.prefill.post(COMPLETIONS, prefill).status == 200
    assert pair.prefill.state()["blocks"]["pinned"] == 2
    assert pair.decode.post(COMPLETIONS, decode).status == 200
    assert pair.tidy()[1]["pulls"]["fresh"] == 2


def test_bootstrap_names_each_rank(start):
    pair = Pair(start, prefill=("--data-parallel-size", "2"))
    table = pair.query().json
    assert {rank: entry["engine_id"] for rank, entry in table.items()} == {
        "0": f"{pair.prefill.engine_id}", "1": pair.prefill.engine_id.replace("_dp0", "_dp1")}
    assert table["1"]["worker_addr"]["0"]["0"].startswith("tcp://127.0.0.1:")
    prefill, decode = pair.both(*pair.bodies(rank="1"), headers={"X-data-parallel-rank": "1"})
    assert (prefill.status, decode.status) == (200, 200)
    pair.tidy()


def test_bootstrap_takes_workers_and_refuses_nonsense(pair):
    def register(**worker):
        return pair.prefill.call("POST", "/register", worker, port=pair.prefill.bootstrap_port)

    known = pair.query().json["0"]["engine_id"]
    more = {"engine_id": known, "dp_rank": 0, "tp_rank": 1, "pp_rank": 0, "addr": "tcp://127.0.0.1:9"}
    assert register(**more).status == 200
    assert pair.query().json["0"]["worker_addr"]["1"] == {"0": "tcp://127.0.0.1:9"}
    assert register(**more).status == 400, "twice"
    assert register(**{**more, "engine_id": "another", "pp_rank": 1}).status == 400
    assert register(**{**more, "tp_rank": "x"}).status == 400
    assert register().status == 400
    assert pair.prefill.call("GET", "/other", port=pair.prefill.bootstrap_port).status == 404


def test_leg_on_another_rank_is_never_found(start):
    pair = Pair(start, prefill=("--data-parallel-size", "2"))
    pair.prefill.times_up(leases=False)
    _, decode = pair.both(*pair.bodies(rank="1"), headers={"X-data-parallel-rank": "0"})
    assert decode.status == 500
    pair.prefill.times_up()
    on_p, on_d = pair.tidy()
    assert on_p["leases"]["expired"] == 1 and on_d["pulls"]["timed_out"] == 1


def test_prefill_that_never_comes(pair):
    _, body = pair.bodies()
    decode = pair.decode.post(COMPLETIONS, body)
    assert decode.status == 500
    assert pair.tidy()[1]["kv_load_failures"] == 1


def test_stream_says_so_inside(pair):
    pair.prefill.times_up()
    _, body = pair.bodies(CHAT, stream=True)
    decode = pair.decode.post(CHAT, body)
    assert decode.status == 200 and "error" in decode.events()[-1]


def test_decode_that_never_comes(pair):
    prefill, _ = pair.bodies()
    assert pair.prefill.post(COMPLETIONS, prefill).status == 200
    assert pair.tidy()[0]["leases"]["expired"] == 1


def test_prefill_that_stops_by_itself_hands_over_nothing(pair):
    pair.prefill.times_up()
    prompt = PROMPT + " [[eos-first]]"
    prefill, decode = pair.both(*pair.bodies(prompt=prompt))
    assert prefill.json["choices"][0]["finish_reason"] == "stop"
    assert decode.status == 500
    on_p, on_d = pair.tidy()
    assert on_p["leases"]["created"] == 0 and on_d["pulls"]["timed_out"] == 1


def test_decode_whose_client_left_keeps_its_blocks_until_the_load_ends(start):
    pair = Pair(start, scale=())
    prefill, decode = pair.bodies()
    with open_request(pair.decode, COMPLETIONS, decode):
        pair.prefill.wait(transfers__asked=1)
    state = pair.decode.wait(requests__aborted=1)
    assert state["transfers"]["orphaned"] == 1 and state["blocks"]["in_use"] > 0
    assert pair.prefill.post(COMPLETIONS, prefill).status == 200, "which prefill does not know"
    assert pair.tidy()[1]["transfers"]["orphaned_ever"] == 1


def test_both_clients_leave_and_only_time_frees_decode(start):
    pair = Pair(start, scale=())
    pair.prefill.fault(action="stall")
    prefill, decode = pair.bodies()
    with open_request(pair.decode, COMPLETIONS, decode), open_request(pair.prefill, COMPLETIONS, prefill):
        pair.prefill.wait(transfers__asked=1)
    assert pair.decode.wait(requests__aborted=1)["transfers"]["orphaned"] == 1
    pair.prefill.times_up()
    pair.tidy()


def test_rejected_decode_frees_prefill(pair):
    prefill, decode = pair.bodies()
    pair.decode.fault(match={"role": "decode"}, action="reject")
    first, second = pair.both(prefill, decode)
    assert (first.status, second.status) == (200, 400)
    assert pair.tidy()[0]["leases"]["consumed"] == 1


def test_transfer_is_used_once(pair):
    prefill, decode = pair.bodies()
    pair.both(prefill, decode)
    pair.prefill.times_up()
    assert pair.decode.post(COMPLETIONS, decode).status == 500
    pair.tidy()


def test_wrong_prompt_reads_wrong_blocks(pair):
    prefill, decode = pair.bodies()
    _, answer = pair.both(prefill, {**decode, "prompt": "something else entirely, of another length"})
    assert text_of(answer).startswith("<<WRONG-KV>>")


def test_engine_id_that_the_bootstrap_does_not_know(pair):
    _, decode = pair.bodies()
    decode["kv_transfer_params"]["remote_engine_id"] = "of an earlier start"
    assert pair.decode.post(COMPLETIONS, decode).status == 500
    decode["kv_transfer_params"]["remote_bootstrap_addr"] = "http://127.0.0.1:1"
    assert pair.decode.post(COMPLETIONS, decode).status == 500
    assert pair.tidy()[1]["pulls"]["unreachable"] == 2


def test_remembered_engine_that_was_restarted_is_waited_for(start, port):
    bootstrap = ("--mooncake-bootstrap-port", port)
    pair = Pair(start, prefill=bootstrap, scale=())
    assert [reply.status for reply in pair.both(*pair.bodies())] == [200, 200]
    _, stale = pair.bodies()
    pair.prefill.stop()
    pair.prefill = start(*MOONCAKE, "--role", "producer", *bootstrap)
    with open_request(pair.decode, COMPLETIONS, stale):
        pair.decode.wait(requests__running=1, transfers__loading=1)
        fresh = pair.both(*pair.bodies())
        assert [reply.status for reply in fresh] == [200, 200], "others go on"
        pair.decode.times_up()
        state = pair.decode.wait(requests__errored=1)
    assert state["pulls"]["unreachable"] == 1


@pytest.mark.parametrize("missing", ["remote_engine_id", "remote_bootstrap_addr", "transfer_id"])
def test_missing_key_hangs_and_leaks(pair, missing):
    _, decode = pair.bodies()
    del decode["kv_transfer_params"][missing]
    with open_request(pair.decode, COMPLETIONS, decode):
        pair.decode.wait(requests__hanging=1)
    state = pair.decode.wait(requests__aborted=1)
    assert state["hung_incomplete"] == 1 and state["blocks"]["leaked"] > 0


def test_wrong_role_ends_the_engine(pair):
    prefill, decode = pair.bodies()
    assert pair.decode.post(COMPLETIONS, prefill).status == 500
    assert pair.prefill.post(COMPLETIONS, decode).status == 500
    assert pair.decode.state()["deaths"] == pair.prefill.state()["deaths"] == 1
    assert pair.query().status == 503
