"""Thousands of exchanges of random shape, with clients and engines that misbehave at random, against the real sidecar.

What must hold: every request that its client did not abandon gets exactly one answer, and that answer is right or visibly
broken; no answer reaches another request; nothing stays behind on an engine or in the sidecar; nothing that the sidecar
sends ends an engine.

The seed is printed; HANDOFF_TEST_SEED repeats a run (the machine's timing aside). HANDOFF_FAULT_EXCHANGES sets the count.
"""

import asyncio
import json
import os
import pathlib
import random
import sys
import time

import pytest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "mock_engine"), str(HERE.parent / "processes")]

import faults  # noqa: E402
import shapes  # noqa: E402
from clients import LATE, TIMED_OUT, Clients  # noqa: E402
from fault_engines import CONNECTOR, ENGINE, SANITIZED, TRTLLM, Engines, check_engines  # noqa: E402
from sidecar_process import SidecarProcess  # noqa: E402
from wire import Broken, Connection  # noqa: E402

BIN = pathlib.Path(os.environ.get("HANDOFF_BIN", HERE.parent.parent / "build/release/bin"))
EXCHANGES = int(os.environ.get("HANDOFF_FAULT_EXCHANGES", "3000"))
CLIENTS = int(os.environ.get("HANDOFF_FAULT_CLIENTS", "48"))

SETTINGS = {
    "DYN_SIDECAR_THREADS": "2",
    # Far above what healthy engines take on a busy machine. Only the read time-out is waited for: by requests that meet a stall.
    "DYN_SIDECAR_CONNECT_TIMEOUT_MS": "30000",  # of auxiliary calls too
    "DYN_SIDECAR_READ_TIMEOUT_MS": "8000",
    "DYN_SIDECAR_PREFILL_DEADLINE_MS": "60000",
    "DYN_SIDECAR_CLIENT_HEADER_TIMEOUT_MS": "30000",  # clients that the machine starves are not at fault
    "DYN_SIDECAR_CLIENT_BODY_TIMEOUT_MS": "30000",
    "DYN_SIDECAR_MAX_PREFILL_RESPONSE_BYTES": "2097152",
    "DYN_SIDECAR_DRAIN_DELAY_MS": "100",
    "DYN_SIDECAR_DRAIN_TIMEOUT_MS": "50000",
    "DYN_SIDECAR_READY_INTERVAL_MS": "500",
}
if SANITIZED:  # everything takes longer, the faults too
    SETTINGS.update(DYN_SIDECAR_READ_TIMEOUT_MS="16000")


class Request:
    """One request to be sent: its shape, what is to go wrong, and what may come of it."""

    def __init__(self, rng, run, number):
        self.number = number
        self.falls_back = run.falls_back
        self.shape = rng.choice(run.palette) if rng.random() < 0.85 else rng.choice(run.others)
        self.headers = [("host", "sidecar.test"), ("x-request-id", f"r{number}")]
        self.prefill = None
        self.prefill_fault = self.decode_fault = None
        shape = self.shape
        if shape.method == "POST":
            self.headers.append(("content-type", "application/json"))
        if shape.path == "/no/such/path":
            self.headers[-1] = ("content-type", "application/octet-stream")
        if shape.disaggregated and (rng.random() < 0.85 or run.needs_prefill(shape)):
            self.prefill = rng.choices((0, 1, 2), (4, 4, 1))[0]
            self.headers.append(("x-prefiller-host-port", run.engines.address(self.prefill)))
        if self.prefill is not None and rng.random() < 0.25:
            self.prefill_fault = rng.choice(run.engines.prefill_faults)
            self.headers.append((faults.PREFILL_HEADER, self.prefill_fault.name))
        elif not shape.local and rng.random() < 0.2:
            candidates = run.engines.decode_faults
            if not shape.text:
                candidates = [fault for fault in candidates if not fault.generation_only]
            if shape.stream or not shape.text:
                candidates = [fault for fault in candidates if not fault.whole_replies_only]
            self.decode_fault = rng.choice(candidates)
            self.headers.append((faults.DECODE_HEADER, self.decode_fault.name))
        if shape.local:
            self.prefill_fault = self.decode_fault = None
        self.version = "1.1"
        self.chunked = shape.body != b"" and rng.random() < 0.2
        self.rng = rng

    def wire(self):
        lines = [f"{self.shape.method} {self.shape.path} HTTP/{self.version}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        body = self.shape.body
        if self.chunked and self.version == "1.1":
            lines.append("transfer-encoding: chunked")
            parts, at = [], 0
            while at < len(body):
                size = self.rng.choice((1, 17, 1000, 20000))
                piece = body[at : at + size]
                parts.append(b"%x\r\n%s\r\n" % (len(piece), piece))
                at += size
            body = b"".join(parts) + b"0\r\n\r\n"
        elif body:
            lines.append(f"content-length: {len(body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body

    def is_stormy(self):
        """Goes to the engine that dies at times."""
        return self.prefill == 2

    def describe(self):
        told = [fault and fault.name for fault in (self.prefill_fault, self.decode_fault)]
        return (f"request r{self.number} {self.shape.method} {self.shape.path} stream={self.shape.stream} "
                f"prefill={self.prefill} faults={told} HTTP/{self.version} chunked={self.chunked}")

    def judge(self, answer):
        """None if a complete answer is one that this request may get."""
        shape = self.shape
        if shape.method == "HEAD" and answer.status == 200:
            return None
        fault = self.prefill_fault or self.decode_fault
        harmless = fault is None or fault.may == faults.HARMLESS
        if answer.status == 200 and shape.status == 200:
            wrong = shapes.check_body(shape, answer)
            about_the_request = fault is not None and any(400 <= status < 500 for status in fault.statuses)
            may_fall_back = self.is_stormy() or not about_the_request
            fell_back = self.falls_back and fault is self.prefill_fault and may_fall_back
            if fault is not None and fault.never_ok and not fell_back:
                return f"200 in spite of {fault.name}"
            if wrong is None or (fault is not None and fault.may == faults.GARBLED and wrong != "wrong KV"):
                return None
            if wrong == "in-band error" and self.is_stormy():
                return None  # the engine with the handoff's blocks died before decode had them
            return wrong
        if answer.status == shape.status:
            return None
        if answer.status == 502 and not shape.text and b"closed the connection without an answer" in answer.body:
            return None  # lost to an idle connection's close; sending a POST of unknown effect again is not ours to do
        if harmless and answer.status == 504 and any(said in answer.body for said in TIMED_OUT):
            # A real generation worker waits for the blocks of a context worker that died, until its own transfer
            # time-out, longer than anybody waits for its answer. There is no policy that has it compute them.
            # Mooncake's decode waits for an engine that it remembers; NIXL push's for a write.
            waits = TRTLLM or CONNECTOR in ("mooncake", "nixl-push")
            return None if waits and self.is_stormy() else LATE
        if harmless and not self.is_stormy():
            return f"status {answer.status} without a reason: {answer.body[:200]!r}"
        if answer.status < 400:
            return f"status {answer.status}"
        if harmless or not fault.statuses or answer.status in fault.statuses:
            return None
        if self.is_stormy() and answer.status in (500, 502, 503, 504):
            return None
        return f"status {answer.status}, not in {fault.statuses}: {answer.body[:200]!r}"

    def may_break(self):
        fault = self.prefill_fault or self.decode_fault
        return self.is_stormy() or (fault is not None and fault.may != faults.HARMLESS)


class Run(Clients):
    answer_limit = 180.0  # far above every time-out in SETTINGS

    def __init__(self, seed, log_path):
        super().__init__()
        self.seed = seed
        self.rng = random.Random(seed)
        self.engines = Engines(seed, log_path.parent)
        # An engine that can't prefill has nothing to fall back to.
        self.falls_back = self.rng.random() < 0.25 and ENGINE != "sglang"
        settings = {
            **SETTINGS,
            "DYN_DECODE_ENGINE_PORT": str(self.engines.decode.port),
            "DYN_SIDECAR_ON_PREFILL_FAILURE": "decode-only" if self.falls_back else "error",
            "DYN_SIDECAR_PREFILL_RETRIES": self.rng.choice(("0", "0", "2")),
            "DYN_SIDECAR_PREFILL_RETRY_BACKOFF_MS": "50",
        }
        settings.update(self.engines.sidecar_settings())
        if ENGINE == "trtllm-generation-first":
            settings["DYN_SIDECAR_TRTLLM_SCHEDULE"] = "generation-first"
        try:
            self.sidecar = SidecarProcess(str(BIN / "handoff-sidecar"), log_path, settings, ENGINE.split("-")[0])
        except BaseException:
            self.engines.stop()
            raise
        self.palette = shapes.make_palette(self.rng, self.engines.decode, 200, "vllm" if CONNECTOR else ENGINE)
        self.others = shapes.others(ENGINE)
        self.abandoned = 0  # requests that may or may not have been seen as such
        self.answered = 0

    @property
    def port(self):
        return self.sidecar.port

    def is_over(self):
        return self.next_number >= EXCHANGES or len(self.wrong) >= 20 or not self.sidecar.alive()

    def ended(self, request, answered):
        self.answered += answered

    @staticmethod
    def needs_prefill(shape):
        """Alone, such a decode engine has no answer."""
        return ENGINE == "sglang" and not shape.local

    def request(self, rng):
        self.next_number += 1
        return Request(rng, self, self.next_number)

    # ------------------------------------------------------------------------------------------------- clients

    def ways(self):
        return {self.with_pauses: 10, self.pipelined: 4, self.cancelling: 6, self.old_version: 2, self.slow_reader: 2,
                self.slow_writer: 2, self.half_closing: 2, self.cut_head: 1}

    async def with_pauses(self, rng):
        await self.steady(rng, pause=0.3)

    async def pipelined(self, rng):
        connection = await Connection.open(self.port)
        requests = [self.request(rng) for _ in range(rng.randint(2, 4))]
        wire = b"".join(request.wire() for request in requests)
        if rng.random() < 0.5:
            connection.send(wire)
        else:
            cut = rng.randrange(1, len(wire))
            connection.send(wire[:cut])
            await asyncio.sleep(0.01)
            connection.send(wire[cut:])
        for index, request in enumerate(requests):
            if not await self.read_one(connection, request):
                self.abandoned += len(requests) - index - 1
                connection.close()
                return
        await connection.nothing_more()
        connection.close()

    async def cancelling(self, rng):
        connection = await Connection.open(self.port)
        request = self.request(rng)
        self.abandoned += 1
        wire = request.wire()
        when = rng.random()
        if when < 0.25:  # while sending
            connection.send(wire[: rng.randrange(len(wire))])
            await asyncio.sleep(rng.random() * 0.02)
        elif when < 0.7:  # a while after
            connection.send(wire)
            await asyncio.sleep(rng.choice((0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.5)) * rng.random())
        else:  # at some byte of the answer
            connection.send(wire)
            limit = rng.choice((1, 20, 200, 1000, 5000))
            while connection.received < limit and await self._some(connection):
                pass
        connection.close(reset=rng.random() < 0.4)

    async def _some(self, connection):
        try:
            return await asyncio.wait_for(connection.read_some(), 2)  # a short answer may be over before
        except (Broken, asyncio.TimeoutError):
            return False

    async def old_version(self, rng):
        connection = await Connection.open(self.port)
        request = self.request(rng)
        request.version = "1.0"
        if rng.random() < 0.5:
            request.headers.append(("connection", "keep-alive"))
        connection.send(request.wire())
        await self.read_one(connection, request)
        connection.close()

    async def slow_reader(self, rng):
        connection = await Connection.open(self.port, slow=True)
        connection.pause = 0.003
        request = self.request(rng)
        request.headers.append(("connection", "close"))
        connection.send(request.wire())
        await self.read_one(connection, request)
        connection.close()

    async def slow_writer(self, rng):
        connection = await Connection.open(self.port)
        request = self.request(rng)
        wire = request.wire()
        at = 0
        while at < len(wire):
            size = rng.choice((1, 3, 50, 500)) if at < 1000 else rng.choice((2000, 30000))
            connection.send(wire[at : at + size])
            at += size
            await asyncio.sleep(0.001)
        await self.read_one(connection, request)
        connection.close()

    async def half_closing(self, rng):
        connection = await Connection.open(self.port)
        request = self.request(rng)
        self.abandoned += 1
        connection.send(request.wire())
        connection.finish_sending()
        await self.read_after_leaving(connection, request)
        connection.close()

    async def cut_head(self, rng):
        connection = await Connection.open(self.port)
        request = self.request(rng)
        self.abandoned += 1
        wire = request.wire()
        connection.send(wire[: rng.randrange(wire.index(b"\r\n\r\n"))])
        await asyncio.sleep(0.005)
        connection.close(reset=rng.random() < 0.5)

    # ------------------------------------------------------------------------------------------------ the storm

    async def storm(self, seed, over):
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        while not over.is_set():
            await loop.run_in_executor(None, self.engines.kill_mortal, rng.random() < 0.5)
            await asyncio.sleep(rng.random() * 0.5)
            await loop.run_in_executor(None, self.engines.restart_mortal)
            self.counts["engine deaths"] += 1
            try:
                await asyncio.wait_for(over.wait(), 1 + rng.random() * 4)
            except asyncio.TimeoutError:
                pass

    async def exchanges(self):
        over = asyncio.Event()
        storm = asyncio.create_task(self.storm(self.rng.getrandbits(32), over))
        watch = asyncio.create_task(self.watch_the_machine())
        await asyncio.gather(*(self.client(self.rng.getrandbits(32), self.ways()) for _ in range(CLIENTS)))
        watch.cancel()
        over.set()
        await storm

    async def work_during_shutdown(self):
        """Requests in flight when SIGTERM comes are answered: the drain is longer than they take."""
        rng = random.Random(self.rng.getrandbits(32))
        streams = [shape for shape in self.palette if shape.stream]
        pairs = []
        for _ in range(20):
            connection = await Connection.open(self.port)
            request = self.request(rng)
            request.shape = rng.choice(streams)
            request.prefill_fault = request.decode_fault = None
            request.chunked = False
            request.headers = [("host", "a"), ("content-type", "application/json"), (faults.DECODE_HEADER, "delay-after"),
                               ("x-request-id", f"r{request.number}"),
                               ("x-prefiller-host-port", self.engines.address(0))]
            request.prefill = 0
            connection.send(request.wire())
            pairs.append((connection, request))
        await asyncio.sleep(0.05)
        self.sidecar.terminate()
        for connection, request in pairs:
            await self.read_one(connection, request)
            connection.close()


@pytest.mark.parametrize("seed", [int(os.environ.get("HANDOFF_TEST_SEED", random.SystemRandom().randrange(2**31)))])
def test_random_faults(seed, tmp_path):
    print(f"HANDOFF_TEST_SEED={seed}")
    run = Run(seed, tmp_path / "sidecar.log")
    try:
        sidecar = run.sidecar
        time.sleep(0.5)  # the engine's health has been asked: its connection is part of the baseline
        descriptors = sidecar.descriptors()
        began = time.monotonic()
        asyncio.run(run.exchanges())
        took = time.monotonic() - began
        print(f"{run.next_number} requests in {took:.1f} s, {run.answered} answered, {run.abandoned} abandoned, "
              f"{run.late} late, held up for {run.held_up:.2f} s: {dict(run.counts)}")
        assert sidecar.alive(), f"the sidecar ended with {sidecar.process.returncode}:\n{sidecar.log()[-6000:]}"
        assert run.wrong == [], "\n".join(run.wrong[:20])
        assert run.late == 0 or run.was_starved(sidecar.log()), f"{run.late} time-outs without a reason"

        check_engines(run)
        assert sidecar.wait_for_descriptors(descriptors + 1) <= descriptors + 1
        resident = sidecar.resident_mib()
        print(f"resident: {resident:.0f} MiB, descriptors: {descriptors} before")
        if not SANITIZED:
            assert resident < 150

        asyncio.run(run.work_during_shutdown())
        assert run.wrong == [], "\n".join(run.wrong[:20])
        assert sidecar.wait() == 0, sidecar.log()[-5000:]
        totals = sidecar.totals()
        outcomes = {name: totals.get(name, 0) for name in ("answered", "client_gone", "broken", "cancelled")}
        print(f"totals: {outcomes}")
        assert sum(outcomes.values()) == totals["exchanges"]
        assert run.answered <= totals["exchanges"] <= run.answered + run.abandoned
        assert totals.get("sessions_failed", 0) == 0
        check_engines(run)
        assert run.engines.stop() == [0, 0, 0, 0]
    except BaseException:
        keep = os.environ.get("HANDOFF_FAULT_LOG")
        if keep:
            pathlib.Path(keep).write_text(run.sidecar.log(), encoding="utf-8")
        raise
    finally:
        run.sidecar.kill()
        for engine in run.engines.all():
            if engine.process.poll() is None:
                engine.stop()
