"""When bytes reach the client, in which pieces, and who waits for whom."""

import threading

import pytest
from harness.http_client import wire
from harness.limits import wait_until
from harness.scripted_engine import prefill_body

JSON = ("Content-Type", "application/json")
BOTH_WAYS = pytest.mark.parametrize("disaggregated", [True, False], ids=["disaggregated", "decode-only"])
EVENTS = [b'data: {"choices":[{"text":"%d"}]}\n\n' % i for i in range(12)] + [b"data: [DONE]\n\n"]


def streaming(rig, disaggregated, **how):
    """A stream that has begun: the client and the engine's side."""
    client = rig.connect(**how)
    client.send(rig.bytes_of({"prompt": "p", "stream": True}, disaggregated=disaggregated))
    if disaggregated:
        rig.prefill.next().reply(prefill_body())
    leg = rig.decode.next()
    leg.begin_stream()
    return client, leg


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_no_byte_before_prefill_is_over(front, stream):
    with front.start({"prompt": "p", "stream": stream}) as client:
        leg = front.prefill.next()
        leg.body()
        client.expect_silence()
        reply = prefill_body()
        leg.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply) + reply[:-1])
        client.expect_silence()
        front.decode.expect_nothing()
        leg.send(reply[-1:])
        leg.done()
        leg = front.decode.next()
        leg.body()
        client.expect_silence()
        leg.reply(b"ok")
        assert client.read_response().body == b"ok"


@BOTH_WAYS
def test_head_reaches_the_client_before_the_first_event(front, disaggregated):
    client, leg = streaming(front, disaggregated)
    answer = client.read_head()
    assert answer.status == 200
    client.expect_silence()
    leg.chunk(EVENTS[0])
    assert client.read_chunk(answer) == EVENTS[0]
    leg.end_stream()
    client.read_body(answer)


@BOTH_WAYS
def test_c26_each_event_is_a_chunk_of_its_own_when_they_come_one_by_one(front, disaggregated):
    client, leg = streaming(front, disaggregated)
    answer = client.read_head()
    for event in EVENTS:
        leg.chunk(event)
        assert client.read_chunk(answer) == event
    leg.end_stream()
    assert client.read_chunk(answer) == b""


@BOTH_WAYS
def test_c26_chunk_boundaries_survive_when_many_come_at_once(front, disaggregated):
    client, leg = streaming(front, disaggregated)
    leg.send(b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in EVENTS) + b"0\r\n\r\n")
    leg.done()
    assert client.read_response().chunks == EVENTS


@pytest.mark.parametrize("count", [1, 5, 23, 24, 25, 100])
def test_c26_any_number_of_chunks_in_one_read(front, count):
    events = [b"data: %d\n\n" % i for i in range(count)]
    client, leg = streaming(front, True)
    answer = client.read_head()
    leg.send(b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events))
    leg.end_stream()
    assert client.read_body(answer).chunks == events


@BOTH_WAYS
def test_c26_a_chunk_that_comes_in_pieces_is_passed_on_at_once(front, disaggregated):
    client, leg = streaming(front, disaggregated)
    answer = client.read_head()
    leg.send(b"9\r\ndata")
    got = client.read_chunk(answer)
    assert got == b"data"
    leg.send(b": 1\n\n\r\n")
    while len(answer.body) < 9:
        client.read_chunk(answer)
    assert answer.body == b"data: 1\n\n"
    leg.end_stream()
    assert client.read_chunk(answer) == b""


def test_c26_split_in_every_place(front):
    wires = b"3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n"
    for at in range(1, len(wires)):
        client, leg = streaming(front, False)
        leg.send(wires[:at])
        answer = client.read_head()
        leg.send(wires[at:])
        leg.done()
        assert client.read_body(answer).body == b"abcdefg"
        client.close()


def test_large_answers_arrive_whole(front):
    data = bytes(range(256)) * 40_000

    def send_all(leg, framing):
        if framing == "fixed":
            leg.reply(data)
            return
        leg.begin_stream()
        for at in range(0, len(data), 50_001):
            leg.chunk(data[at:at + 50_001])
        leg.end_stream()

    for framing in ("fixed", "chunked"):
        with front.start({"prompt": "p"}) as client:
            front.prefill.next().reply(prefill_body())
            leg = front.decode.next()
            threading.Thread(target=send_all, args=(leg, framing), daemon=True).start()
            answer = client.read_response()
            assert answer.body == data and answer.framing == framing


@BOTH_WAYS
def test_slow_client_holds_the_engine_back_and_costs_no_memory(scripted, disaggregated):
    client, leg = streaming(scripted, disaggregated, receive_buffer=16 * 1024)
    answer = client.read_head()
    before = scripted.sidecar.resident_bytes()
    piece = b"x" * 65536
    leg.link.socket.settimeout(0)
    sent = 0

    def engine_is_held_back():
        nonlocal sent
        try:
            while sent < 400_000_000:
                sent += leg.link.socket.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        except BlockingIOError:
            return True
        raise AssertionError("the sidecar took everything")

    # What the kernel's buffers take is a few megabytes; the sidecar's own share must be small.
    blocked = 0
    previous = -1
    while blocked < 20:
        wait_until(engine_is_held_back)
        blocked = blocked + 1 if sent == previous else 0
        previous = sent
        scripted.sidecar.resident_bytes()
        with scripted.connect() as other:  # others are served meanwhile
            assert other.request("GET", "/health").status == 200
    assert scripted.sidecar.resident_bytes() - before < 8_000_000
    assert sent < 100_000_000
    while client.received < 2_000_000:  # and it goes on when the client reads
        client.buffer = b""
        client._more()
    client.close()
    leg.wait_until_dropped()
    assert answer.status == 200


@pytest.mark.settings(DYN_SIDECAR_READ_TIMEOUT_MS="300")
def test_client_that_does_not_take_its_answer_is_dropped(scripted):
    client, leg = streaming(scripted, False, receive_buffer=16 * 1024)
    client.read_head()
    try:
        for _ in range(1000):
            leg.chunk(b"x" * 100_000)
    except OSError:
        pass
    else:
        raise AssertionError("the sidecar took everything")
    assert scripted.exchange_line(path="/v1/completions").fields["outcome"] == "client_gone"


def test_slow_engine_holds_an_upload_back(scripted):
    with scripted.connect() as client:
        client.send(wire("PUT", "/up", [("Content-Type", "a/b"), ("Content-Length", "400000000")]))
        leg = scripted.decode.next()
        before = scripted.sidecar.resident_bytes()
        client.socket.settimeout(0)
        sent, blocked, previous = 0, 0, -1
        while blocked < 20:
            try:
                while sent < 100_000_000:
                    sent += client.socket.send(b"x" * 65536)
            except BlockingIOError:
                pass
            blocked = blocked + 1 if sent == previous else 0
            previous = sent
            with scripted.connect() as other:
                assert other.request("GET", "/health").status == 200
        assert sent < 100_000_000
        assert scripted.sidecar.resident_bytes() - before < 8_000_000
        leg.close()
