"""Hundreds of exchanges of random shape through the whole stack - Envoy, the Endpoint Picker, sidecars, engines, a renderer -
while its parts die, stall, come back and change.

What must hold: a request whose client stays gets exactly one answer, and that answer is right, or it is one that something
which went wrong in the meantime explains; no answer reaches another request; at the end nothing is booked or held anywhere,
and everything works.

The seed is printed; HANDOFF_TEST_SEED repeats a run (the machine's timing aside). HANDOFF_FAULT_EXCHANGES sets the count,
HANDOFF_FAULT_ENGINE the protocol.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import random
import sys
import time

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / folder) for folder in ("mock_engine", "integration", "processes"))]

import faults  # noqa: E402
import shapes  # noqa: E402
from clients import Clients  # noqa: E402
from harness.stack import answered, chat, expected_text, report, start_stack, wait_tidy  # noqa: E402
from stack_requests import PICKER_DIED, StackRequest  # noqa: E402
from stack_storm import Storm  # noqa: E402
from wire import Broken, Connection  # noqa: E402

EXCHANGES = int(os.environ.get("HANDOFF_FAULT_EXCHANGES", "500"))
ENGINE = os.environ.get("HANDOFF_FAULT_ENGINE", "vllm")
CLIENTS = int(os.environ.get("HANDOFF_FAULT_CLIENTS", "16"))
SANITIZED = os.environ.get("HANDOFF_SANITIZED", "") != ""

LEASE_SCALE = "0.5"  # of 30 s: above what a healthy handoff can take, short enough to wait for
SIDECAR_FLAGS = ("--connect-timeout-ms", "10000", "--read-timeout-ms", "16000" if SANITIZED else "8000",
                 "--prefill-deadline-ms", "60000", "--max-prefill-response-bytes", "2097152",
                 "--drain-delay-ms", "3000", "--drain-timeout-ms", "50000", "--ready-interval-ms", "50")


class Run(Clients):
    answer_limit = 180.0  # far above every time-out in SIDECAR_FLAGS
    patience = 8

    def __init__(self, seed):
        super().__init__()
        self.rng = random.Random(seed)
        self.gone = 0  # exchanges that have ended
        self._open_incidents = []
        self._under_way = set()
        self._waiting = []
        self._quiet = asyncio.Event()  # an incident ended
        self.settings = self._choose_settings()
        self.stack = None
        self.palette = self.others = None
        self.prefill_faults = faults.prefill_faults(ENGINE)
        self.decode_faults = faults.decode_faults(ENGINE)

    def _choose_settings(self):
        """What a run is about, beside what happens in it."""
        rng = self.rng
        few = rng.random() < 0.5  # may be planned at a time
        queues = rng.random() < 0.4
        self.may_refuse = few
        self.may_skip_prefill = rng.random() < 0.3 and ENGINE != "sglang"  # whose decode engines can't prefill
        settings = {
            "DYN_EPP_THREADS": "2",
            "DYN_EPP_TOKENIZATION_TIMEOUT_MS": "500",
            "DYN_EPP_MAX_INFLIGHT_REQUESTS": "6" if few and not queues else "1024",
            # A sidecar that drains is taken out well before it stops to listen (SIDECAR_FLAGS).
            "DYN_EPP_HEALTH_INTERVAL_MS": "250",
            "DYN_EPP_UNHEALTHY_AFTER": "2",
            "DYN_USE_KV_EVENTS": rng.choice(("true", "true", "false")),
            "DYN_EPP_NONSTREAM_PREFILL_RELEASE": rng.choice(("estimate", "response")),
            "DYN_EPP_SESSION_AFFINITY_MODE": rng.choice(("off", "soft", "hard")),
        }
        if queues:
            settings.update(DYN_ROUTER_QUEUE_THRESHOLD="0.5", DYN_EPP_MAX_NUM_BATCHED_TOKENS="4000",
                            DYN_ROUTER_QUEUE_POLICY=rng.choice(("fcfs", "lcfs", "wspt")))
        if self.may_skip_prefill:
            settings.update(DYN_ROUTER_CONDITIONAL_DISAGG="true", DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD="300")
        return settings

    def start(self, seed):
        def rules(header, those):
            return ("--faults", json.dumps(faults.rules_for(header, those)))

        flags = ("--time-scale", LEASE_SCALE, "--seed", str(seed % 2**31), "--blocks", "60000", "--prefill-us-per-token", "2",
                 "--decode-us-per-token", "300")
        decode = ("--kv-load-failure-policy", "recompute") if ENGINE == "vllm" else ()
        self.stack = start_stack(engine=ENGINE, settings=self.settings, flags=flags, sidecar_flags=SIDECAR_FLAGS,
                                 prefill_flags=rules(faults.PREFILL_HEADER, self.prefill_faults),
                                 decode_flags=(*decode, *rules(faults.DECODE_HEADER, self.decode_faults)))
        return self.stack

    def engines(self):
        """By name."""
        stack = self.stack
        return {f"{role}-{index}": engine for role, engines in (("prefill", stack.prefills), ("decode", stack.decodes))
                for index, engine in enumerate(engines)}

    def make_shapes(self):
        self.palette = shapes.make_palette(self.rng, self.stack.decodes[0], 120, ENGINE)
        self.others = shapes.others(ENGINE)

    # ----------------------------------------------------------------------------------- what clients and storm share

    def begin_incident(self, incident):
        self.counts[incident] += 1
        self._open_incidents.append(incident)
        for request in self._under_way:
            request.seen.add(incident)

    def end_incident(self, incident):
        self._open_incidents.remove(incident)
        self._quiet.set()
        self._quiet.clear()

    async def calm(self):
        """While nobody can be answered, asking again and again shows nothing new."""
        while PICKER_DIED in self._open_incidents:
            await self._quiet.wait()

    async def exchanges_more(self, count):
        """Until so many more exchanges have ended, or there will be none."""
        if count == 0 or self.is_over():
            return
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((self.gone + count, done))
        await done

    def _one_more(self):
        self.gone += 1
        over = self.is_over()
        due = [done for at, done in self._waiting if over or at <= self.gone]
        self._waiting = [(at, done) for at, done in self._waiting if not (over or at <= self.gone)]
        for done in due:
            if not done.done():
                done.set_result(None)

    def is_over(self):
        return self.next_number >= EXCHANGES or len(self.wrong) >= 20

    def request(self, rng):
        self.next_number += 1
        request = StackRequest(rng, self, self.next_number)
        request.seen.update(self._open_incidents)
        self._under_way.add(request)
        return request

    def ended(self, request, answered):
        self.leave(request)

    async def judged(self):
        await self.calm()

    @property
    def port(self):
        return self.stack.port

    def leave(self, request):
        self._under_way.discard(request)
        self._one_more()

    async def probe(self):
        """Whether a harmless request is answered now."""
        connection = await Connection.open(self.port)
        try:
            connection.send(b"GET /v1/models HTTP/1.1\r\nhost: stack.test\r\n\r\n")
            return (await asyncio.wait_for(connection.read_answer("GET"), self.answer_limit)).status == 200
        except Broken:
            return False
        finally:
            connection.close()

    # ----------------------------------------------------------------------------------------------------- clients

    def ways(self):
        return {self.steady: 10, self.pipelined: 3, self.cancelling: 7, self.slow_reader: 2, self.dribbling: 2,
                self.half_closing: 1}

    async def pipelined(self, rng):
        connection = await Connection.open(self.port)
        to_come = rng.randint(2, 4)
        sent = []
        while to_come or sent:
            # Two at a time: Envoy closes the connection at a third while it has two answers that were not taken.
            ahead = min(to_come, 2 - len(sent))
            new = [self.request(rng) for _ in range(ahead)]
            connection.send(b"".join(request.wire() for request in new))
            sent += new
            to_come -= ahead
            if not await self.read_one(connection, sent.pop(0)):
                break
        for request in sent:  # behind one that was not answered
            self.leave(request)
        if not sent and not to_come and not connection.reader.at_eof():
            await connection.nothing_more()
        connection.close()

    async def cancelling(self, rng):
        connection = await Connection.open(self.port)
        request = self.request(rng)
        wire = request.wire()
        when = rng.random()
        try:
            if when < 0.25:  # while sending
                connection.send(wire[: rng.randrange(len(wire))])
                await connection.drain()
            elif when < 0.65:  # when some others have been answered, or at the first bytes
                connection.send(wire)
                await self._either(self.exchanges_more(rng.choice((0, 1, 1, 2, 4))), self._some(connection))
            else:  # at some byte of the answer
                connection.send(wire)
                limit = rng.choice((1, 20, 200, 1000, 5000))
                while connection.received < limit and await self._some(connection):
                    pass
        except Broken:
            pass
        self.counts["left"] += 1
        connection.close(reset=rng.random() < 0.4)
        self.leave(request)

    @staticmethod
    async def _either(*waits):
        tasks = [asyncio.ensure_future(each) for each in waits]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _some(self, connection):
        """More of the answer; False at its end."""
        before = connection.received
        reading = asyncio.ensure_future(connection.read_some())
        # A short answer on a kept connection is not followed by anything: others' ends tell that it is over.
        await self._either(reading, self.exchanges_more(8))
        return connection.received > before

    async def slow_reader(self, rng):
        """Takes its answer piece by piece, each when another exchange has ended, for a while."""
        connection = await Connection.open(self.port, slow=True)
        request = self.request(rng)
        connection.send(request.wire())
        await self._either(self.exchanges_more(rng.choice((1, 3, 10))))
        await self.read_one(connection, request)
        connection.close()

    async def dribbling(self, rng):
        connection = await Connection.open(self.port)
        request = self.request(rng)
        wire = request.wire()
        at = 0
        try:
            while at < len(wire):
                size = rng.choice((1, 3, 50, 500)) if at < 1000 else rng.choice((2000, 30000))
                connection.send(wire[at : at + size])
                at += size
                await connection.drain()
                await asyncio.sleep(0)  # lets the others go on
        except Broken:
            if not request.may_break():
                self.complain(request, "broken while sending")
        await self.read_one(connection, request)
        connection.close()

    async def half_closing(self, rng):
        connection = await Connection.open(self.port)
        request = self.request(rng)
        connection.send(request.wire())
        connection.finish_sending()
        await self.read_after_leaving(connection, request)
        connection.close()
        self.leave(request)

    async def exchanges(self):
        over = asyncio.Event()
        storm = asyncio.create_task(Storm(self, random.Random(self.rng.getrandbits(32))).blow(over))
        watch = asyncio.create_task(self.watch_the_machine())
        clients = asyncio.gather(*(self.client(self.rng.getrandbits(32), self.ways()) for _ in range(CLIENTS)))
        done, _ = await asyncio.wait([storm, clients], return_when=asyncio.FIRST_COMPLETED)
        if storm in done:  # only by a failure
            clients.cancel()
            await asyncio.gather(clients, return_exceptions=True)
            storm.result()
        watch.cancel()
        over.set()
        await storm


def check_nothing_is_left(run):
    stack = run.stack
    ended = {name: engine.process.poll() for name, engine in run.engines().items() if engine.process.poll() is not None}
    assert not ended, f"engines ended: {ended}"
    for state in wait_tidy(stack):
        assert state["blocks"]["leaked"] == 0 and not state["dead"] and state["deaths"] == 0, state
        assert state["wrong_text"] == 0 and state["misrouted"] == 0, state
        assert ENGINE == "trtllm" or state["hung_incomplete"] == 0, state
    account = report(stack)
    assert account["planning"] == 0 and account["buffered_bytes"] == 0 and account["plans"] == [], account
    for selector in account["selectors"]:
        assert selector["waiting"] == 0 and selector["orphans_expired"] == 0, selector
        loads = {(worker["active_prefill_tokens"], worker["active_decode_blocks"], worker["active_requests"])
                 for worker in selector["workers"]}
        assert loads == {(0, 0, 0)}, selector
    status, stats = stack.admin("/stats?filter=ext_proc.*spurious_msgs_received")
    assert status == 200
    spurious = [line for line in stats.decode().splitlines() if not line.endswith(": 0")]
    assert spurious == [], "Envoy got answers that it did not wait for"


@contextlib.contextmanager
def kept_logs(stack):
    """HANDOFF_FAULT_LOG names a file for what all parts said in a failed run."""
    try:
        yield
    except BaseException:
        keep = os.environ.get("HANDOFF_FAULT_LOG")
        if keep:
            pathlib.Path(keep).write_text(stack.logs(), encoding="utf-8")
        raise


@pytest.mark.parametrize("seed", [int(os.environ.get("HANDOFF_TEST_SEED", random.SystemRandom().randrange(2**31)))])
def test_random_faults_of_the_whole_stack(seed):
    print(f"HANDOFF_TEST_SEED={seed}")
    run = Run(seed)
    print(run.settings)
    with run.start(seed) as stack, kept_logs(stack):
        run.make_shapes()
        began = time.monotonic()
        asyncio.run(run.exchanges())
        print(f"{run.next_number} requests in {time.monotonic() - began:.1f} s: {dict(run.counts)}, late {run.late}")
        assert run.wrong == [], "\n".join(run.wrong[:20])
        assert run.late == 0 or run.was_starved("\n".join(line.text for line in stack.picker.lines)), run.late
        check_nothing_is_left(run)
        for number in range(4):  # and it works
            body = chat(f"afterwards {number}")
            assert answered(stack, body)["choices"][0]["message"]["content"] == expected_text(stack, body)
        check_nothing_is_left(run)
        picker = stack.picker
        assert picker.stop() == 0, picker.lines[-5:]
