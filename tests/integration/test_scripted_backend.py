"""How the sidecar carries out what a backend asks for, in sequences that no engine's protocol of ours brings about.
The backend does what the x-script header says (tests/plugins/scripted_backend)."""

import signal

import pytest
from harness.http_client import Truncated, wire
from harness.scripted_engine import ScriptedEngine
from harness.sidecar import BIN, Sidecar, run

PLUGINS = BIN.parent / "tests" / "plugins" / "scripted"
PLUGIN = str(PLUGINS / "handoff_backend_scripted.so")
NEEDY = str(PLUGINS / "handoff_backend_scripted_needy.so")
HELD = 65536  # bytes that are read ahead
SETTINGS = {"DYN_SIDECAR_BACKEND": PLUGIN, "DYN_SIDECAR_READY_INTERVAL_MS": "3600000",
            "DYN_SIDECAR_MAX_HELD_BYTES": str(HELD)}


class Play:
    """A client, two engines, and a backend that follows a script."""

    def __init__(self, sidecar, prefill, decode):
        self.sidecar = sidecar
        self.prefill = prefill
        self.decode = decode
        self.since = sidecar.mark()

    def ask(self, script, disaggregated=True, **how):
        headers = [("content-type", "application/json"), ("x-script", script)]
        if disaggregated:
            headers.append(("x-prefiller-host-port", self.prefill.authority))
        client = self.sidecar.connect(**how)
        client.send(wire("POST", "/v1/completions", headers, b'{"prompt": 1}'))
        return client

    def notes(self, *wanted):
        """The backend's notes, in any order: they go out beside each other."""
        heard = []
        for _ in wanted:
            note = self.decode.next()
            assert note.target.startswith("/note/"), note.target
            heard.append(note.target[6:])
            note.reply()
        assert sorted(heard) == sorted(wanted)

    def outcome(self):
        return self.sidecar.wait_log("exchange", self.since).fields["outcome"]


@pytest.fixture
def play(settings):
    with ScriptedEngine() as prefill, ScriptedEngine() as decode, Sidecar(decode.port, {**SETTINGS, **settings}) as sidecar:
        sidecar.wait_log("engine_health", healthy="true")
        yield Play(sidecar, prefill, decode)
        if sidecar.process.poll() is None:
            prefill.stop()
            decode.stop()
            sidecar.stop()
        sidecar.check_undamaged()


# ------------------------------------------------------------------------------------------------------- HOLD and relay

BOTH = "begin=start:1:prefill:collect,start:2:decode:hold:body; "


def test_held_bytes_come_first_then_the_rest(play):
    with play.ask(BOTH + "done.1=relay:2; body.2!=note:piece; end=note:over") as client:
        decode, prefill = play.decode.next(), play.prefill.next()
        decode.begin_stream([("Content-Type", "text/event-stream"), ("X-Of", "decode")])
        decode.chunk(b"data: 1\n\nda")
        play.notes("piece")
        client.expect_silence()
        prefill.reply(b"{}")
        answer = client.read_head()
        assert answer.status == 200 and answer.header("x-of") == "decode"
        assert client.read_chunk(answer) == b"data: 1\n\nda"
        decode.chunk(b"ta: 2\n\n")
        assert client.read_chunk(answer) == b"ta: 2\n\n"
        decode.end_stream()
        assert client.read_chunk(answer) == b""
        play.notes("over")


def test_a_held_reply_that_is_complete_is_relayed_with_its_length(play):
    with play.ask(BOTH + "done.2=note:held; done.1=relay:2") as client:
        prefill = play.prefill.next()
        play.decode.next().reply(b"held from beginning to end")
        play.notes("held")
        client.expect_silence()
        prefill.reply(b"{}")
        answer = client.read_response("POST")
        assert (answer.framing, answer.body) == ("fixed", b"held from beginning to end")


def test_a_held_leg_that_fails_before_the_backend_hears_of_it_may_be_relayed(play):
    """Both ends come at once: the sidecar stands still meanwhile."""
    with play.ask("begin=start:1:prefill:collect,start:2:decode:hold; done.1=relay:2; failed.2=fail:503") as client:
        decode, prefill = play.decode.next(), play.prefill.next()
        decode.body(), prefill.body()
        play.sidecar.signal(signal.SIGSTOP)
        prefill.reply(b"{}")
        decode.close()
        play.sidecar.signal(signal.SIGCONT)
        client.read_response("POST").refused(503, "scripted")


def test_a_head_alone_can_be_relayed(play):
    with play.ask("begin=start:1:decode:hold:head; head.1=relay:1") as client:
        decode = play.decode.next()
        decode.begin_stream()
        answer = client.read_head()
        decode.chunk(b"later")
        assert client.read_chunk(answer) == b"later"
        decode.end_stream()
        assert client.read_chunk(answer) == b""


def test_no_more_is_read_ahead_than_the_bound(play):
    with play.ask(BOTH + "done.1=relay:2; end=note:over") as client:
        decode, prefill = play.decode.next(), play.prefill.next()
        decode.begin_stream()
        decode.link.socket.settimeout(1)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 << 20:
                decode.chunk(b"x" * 16384)
                sent += 16384
        assert play.sidecar.resident_bytes() < 64 << 20
        prefill.reply(b"{}")
        answer = client.read_head()
        received = 0
        while received < sent:
            received += len(client.read_chunk(answer))
        client.close()
        play.notes("over")


def test_the_client_leaves_while_a_leg_is_held(play):
    client = play.ask(BOTH + "body.2!=note:piece; end=note:over")
    decode, prefill = play.decode.next(), play.prefill.next()
    decode.begin_stream()
    decode.chunk(b"x" * 10)
    play.notes("piece")
    client.close()
    decode.wait_until_dropped()
    prefill.wait_until_dropped()
    play.notes("over")
    assert play.outcome() == "client_gone"


def test_a_held_leg_that_breaks_is_the_backends_to_decide(play):
    with play.ask(BOTH + "failed.2=fail_with_leg:2; end=note:over") as client:
        decode, prefill = play.decode.next(), play.prefill.next()
        decode.begin_stream()
        decode.chunk(b"x")
        decode.reset()
        client.read_response("POST").refused(502, "decode_upstream_error")
        prefill.wait_until_dropped()
        play.notes("over")


def test_a_relayed_leg_that_breaks_is_cut_visibly(play):
    with play.ask(BOTH + "body.2!=relay:2; end=note:over") as client:
        decode = play.decode.next()
        decode.begin_stream()
        decode.chunk(b"begun")
        answer = client.read_head()
        assert client.read_chunk(answer) == b"begun"
        decode.reset()
        with pytest.raises(Truncated):
            client.read_chunk(answer)
        play.notes("over")
    assert play.outcome() == "broken"


def test_relay_of_a_collected_reply(play):
    with play.ask("begin=start:1:auxiliary:collect:local; done.1=relay:1") as client:
        play.decode.next().reply(b"{}", status="418 Teapot", headers=[("X-A", "1")])
        answer = client.read_response("POST")
        assert (answer.status, answer.header("x-a"), answer.body) == (418, "1", b"{}")


def test_a_cancelled_leg_says_nothing_any_more(play):
    script = "begin=start:1:prefill:collect,start:2:decode:hold:body; body.2!=cancel:1,relay:2; done.1=note:no; failed.1=note:no"
    with play.ask(script) as client:
        decode, prefill = play.decode.next(), play.prefill.next()
        decode.begin_stream()
        decode.chunk(b"a")
        prefill.wait_until_dropped()
        decode.end_stream()
        assert client.read_response("POST").body == b"a"
        play.decode.expect_silence()


# ------------------------------------------------------------------------------------------------------- fail_with_leg

ROLES = pytest.mark.parametrize("role, code", [("prefill", "prefill_upstream_error"), ("auxiliary", "auxiliary_upstream_error")])


@ROLES
def test_fail_with_leg_keeps_a_status_that_is_known(play, role, code):
    with play.ask(f"begin=start:1:{role}:collect; done.1=fail_with_leg:1") as client:
        engine = play.prefill if role == "prefill" else play.decode
        engine.next().reply(b"secret", status="503 Busy", headers=[("Retry-After", "7")])
        answer = client.read_response("POST").refused(503 if role == "prefill" else 502, code)
        assert answer.header("retry-after") == "7" and b"secret" not in answer.body


@ROLES
def test_fail_with_leg_of_a_broken_connection_names_the_leg(play, role, code):
    with play.ask(f"begin=start:1:{role}:collect; failed.1=fail_with_leg:1") as client:
        (play.prefill if role == "prefill" else play.decode).next().reset()
        client.read_response("POST").refused(502, "prefill_upstream_unavailable" if role == "prefill" else code)


def test_fail_with_leg_passes_on_the_words_of_a_4xx(play):
    with play.ask("begin=start:1:prefill:collect,start:2:decode:hold; done.1=fail_with_leg:1") as client:
        decode = play.decode.next()
        play.prefill.next().reply(b'{"about": "you"}', status="422 No", headers=[("Retry-After", "1")])
        answer = client.read_response("POST")
        assert (answer.status, answer.body, answer.header("retry-after")) == (422, b'{"about": "you"}', "1")
        decode.wait_until_dropped()


def test_fail_with_leg_of_a_held_leg_shows_what_the_engine_said(play):
    with play.ask("begin=start:1:decode:hold; done.1=fail_with_leg:1") as client:
        play.decode.next().reply(b"the engine's words", status="500 Oops")
        answer = client.read_response("POST")
        assert (answer.status, answer.body) == (500, b"the engine's words")


def test_fail_with_leg_of_a_leg_whose_reply_was_dropped_uses_our_words(play):
    with play.ask("begin=start:1:prefill:discard; done.1=fail_with_leg:1") as client:
        play.prefill.next().reply(b"dropped", status="404 No")
        client.read_response("POST").refused(404, "prefill_upstream_error")


# --------------------------------------------------------------------------------------------- STREAM, respond and write

def test_a_stream_is_written_by_the_backend(play):
    script = "begin=start:1:decode:stream:head; head.1=respond:201,write:<; body.1=echo; done.1=write:>,last; end=note:over"
    with play.ask(script) as client:
        decode = play.decode.next()
        decode.begin_stream()
        answer = client.read_head()
        assert (answer.status, answer.header("content-type")) == (201, "text/plain")
        assert client.read_chunk(answer) == b"<"
        decode.chunk(b"one")
        assert client.read_chunk(answer) == b"one"
        decode.end_stream()
        client.read_body(answer)
        assert answer.body == b"<one>"
        play.notes("over")
    assert play.outcome() == "answered"


def test_a_slow_client_slows_a_stream(play):
    script = "begin=start:1:decode:stream:head; head.1=respond:200; body.1=echo; done.1=last"
    with play.ask(script, receive_buffer=65536) as client:
        decode = play.decode.next()
        decode.begin_stream()
        decode.link.socket.settimeout(1)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 256 << 20:
                decode.chunk(b"x" * 65536)
                sent += 65536
        assert play.sidecar.resident_bytes() < 64 << 20
        answer = client.read_head()
        while len(answer.body) < sent:
            client.read_chunk(answer)


def test_a_stream_before_the_answer_is_given_up_to_the_bound_only(play):
    """Whoever keeps pieces until it may answer must not be given a whole stream."""
    script = ("begin=start:1:prefill:collect,start:2:decode:stream; body.2!=note:begun; done.1=respond:200,write:now; "
              "body.2=nothing; done.2=last")
    with play.ask(script) as client:
        decode, prefill = play.decode.next(), play.prefill.next()
        decode.begin_stream()
        decode.chunk(b"x")
        play.notes("begun")
        decode.link.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            for _ in range(4096):
                decode.chunk(b"x" * 16384)
        assert play.sidecar.resident_bytes() < 64 << 20
        prefill.reply(b"{}")  # from here on the pieces are taken
        decode.link.socket.settimeout(60)
        answer = client.read_head()
        assert client.read_chunk(answer) == b"now"
        client.close()
        decode.wait_until_dropped()


def test_a_stream_that_breaks_after_the_answer_began_is_cut_by_fail(play):
    script = "begin=start:1:decode:stream:head; head.1=respond:200,write:a; failed.1=fail:502; end=note:over"
    with play.ask(script) as client:
        decode = play.decode.next()
        decode.begin_stream()
        answer = client.read_head()
        client.read_chunk(answer)
        decode.reset()
        with pytest.raises(Truncated):
            client.read_chunk(answer)
        play.notes("over")
    assert play.outcome() == "broken"


# ------------------------------------------------------------------------------------------------------------- lingering

LINGER = "begin=start:1:decode:hold:body:linger=60000; body.1!=note:piece; end=note:over"


def test_a_lingering_leg_waits_for_its_answer_to_begin_and_then_closes(play):
    client = play.ask(LINGER)
    decode = play.decode.next()
    client.close()
    play.notes("over")
    decode.body()  # the request is complete although nobody waits for its answer
    decode.begin_stream()
    decode.chunk(b"a")
    decode.wait_until_dropped()
    assert play.outcome() == "client_gone"


def test_a_leg_whose_answer_has_begun_closes_at_once(play):
    client = play.ask(LINGER)
    decode = play.decode.next()
    decode.begin_stream()
    decode.chunk(b"a")
    play.notes("piece")
    client.close()
    decode.wait_until_dropped()


def test_a_leg_that_the_backend_gives_up_does_not_linger(play):
    script = "begin=start:1:prefill:collect,start:2:decode:hold:linger=60000; done.1=cancel:2,fail:400"
    with play.ask(script) as client:
        decode = play.decode.next()
        play.prefill.next().reply(b"{}")
        client.read_response("POST").refused(400, "scripted")
        decode.wait_until_dropped()


def test_a_leg_that_the_backend_does_not_give_up_lingers_behind_another_answer(play):
    script = "begin=start:1:prefill:collect,start:2:decode:hold:linger=60000; done.1=fail:400; end=note:over"
    with play.ask(script) as client:
        decode = play.decode.next()
        play.prefill.next().reply(b"{}")
        client.read_response("POST").refused(400, "scripted")
        play.notes("over")
        decode.body()
        decode.begin_stream()  # no exception: it is still open
        decode.chunk(b"a")
        decode.wait_until_dropped()


def test_a_lingering_leg_ends_with_its_time(play):
    client = play.ask(LINGER.replace("60000", "50"))
    decode = play.decode.next()
    client.close()
    decode.wait_until_dropped()


def test_shutdown_does_not_wait_for_lingering_legs(play):
    client = play.ask(LINGER)
    decode = play.decode.next()
    client.close()
    play.notes("over")
    decode.body()
    play.sidecar.stop()


# -------------------------------------------------------------------------------------------------------------- WANT_SENT

def test_sent_is_told_before_the_engine_answers(play):
    script = "begin=start:1:decode:hold:sent; sent.1=start:2:prefill:collect; done.2=relay:1"
    with play.ask(script) as client:
        decode = play.decode.next()
        prefill = play.prefill.next()  # though decode has said nothing
        prefill.reply(b"{}")
        decode.reply(b"answer")
        assert client.read_response("POST").body == b"answer"


# --------------------------------------------------------------------------------------------------------- WANT_CONNECTED

def test_connection_is_told_before_the_request_is_out(play):
    """And whether it was there before."""
    script = "begin=start:1:decode:relay:connected; connected.1=note:new; reused.1=note:kept"
    for word in ("new", "kept"):
        with play.ask(script) as client:
            first, second = play.decode.next(), play.decode.next()
            note = first if first.target.startswith("/note/") else second
            assert note.target == f"/note/{word}"
            note.reply(headers=[("Connection", "close")])
            (second if note is first else first).reply(b"answer")
            assert client.read_response("POST").body == b"answer"


def test_leg_that_finds_nobody_has_no_connection(play):
    play.prefill.stop()
    script = "begin=start:1:prefill:collect:connected; connected.1=fail:501; failed.1=fail:418"
    with play.ask(script) as client:
        assert client.read_response("POST").status == 418


# ---------------------------------------------------------------------------------------------- what is told at the end

def test_a_leg_that_ended_as_the_client_left_is_told_before_end(play):
    """The exchange writes to a client that does not read, so that the event waits until the client is gone."""
    script = ("begin=start:1:prefill:collect,start:2:decode:stream:head; head.2=respond:200,note:stuck,fill:60000000; "
              "done.1=note:prefill_done,start:3:decode:relay,fail:500; end=note:over")
    client = play.ask(script, receive_buffer=65536)
    decode, prefill = play.decode.next(), play.prefill.next()
    decode.begin_stream()
    play.notes("stuck")
    prefill.reply(b"{}")
    client.read_head()
    play.prefill.expect_silence()  # prefill's reply has been read by now
    client.reset()
    play.notes("prefill_done", "over")
    play.decode.expect_silence()  # what was asked for too late is not done
    assert play.outcome() == "client_gone"


def test_an_exchange_without_a_way_on_is_answered(play):
    with play.ask("begin=start:1:prefill:collect,start:2:decode:hold; done.1=nothing; end=note:over") as client:
        decode = play.decode.next()
        play.prefill.next().reply(b"{}")
        decode.begin_stream()
        try:
            for _ in range(2 * HELD // 4096):
                decode.chunk(b"x" * 4096)
        except ConnectionError:
            pass  # the leg ends when the bound is reached, maybe with bytes on their way
        client.read_response("POST").refused(500, "backend_failed")
        decode.wait_until_dropped()
        play.notes("over")


def test_cancelling_everything_is_answered(play):
    with play.ask("begin=start:1:decode:hold:linger=60000,cancel:1; end=note:over") as client:
        client.read_response("POST").refused(500, "backend_failed")


def test_an_exception_in_an_event_is_answered_and_ends_all_legs(play):
    with play.ask(BOTH + "done.1=throw; end=note:over") as client:
        decode = play.decode.next()
        play.prefill.next().reply(b"{}")
        client.read_response("POST").refused(500, "backend_failed")
        decode.wait_until_dropped()
        play.notes("over")


# --------------------------------------------------------------------------------------- an engine that can't prefill

@pytest.mark.settings(DYN_SIDECAR_BACKEND=NEEDY)
def test_a_request_is_never_left_to_an_engine_that_cannot_prefill(play):
    with play.ask("begin=decode_only") as client:
        client.read_response("POST").refused(500, "backend_failed")
        play.decode.expect_nothing()
    with play.ask("begin=decode_only", disaggregated=False) as client:
        play.decode.next().reply(b"alone")
        assert client.read_response("POST").body == b"alone"


def test_a_setting_that_would_leave_it_to_that_engine_stops_the_start():
    ended = run(settings={"DYN_SIDECAR_BACKEND": NEEDY, "DYN_SIDECAR_ON_PREFILL_FAILURE": "decode-only"})
    assert ended.returncode != 0
    assert "DYN_SIDECAR_ON_PREFILL_FAILURE" in ended.stderr and "scripted_needy" in ended.stderr
