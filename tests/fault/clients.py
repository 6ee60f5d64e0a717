"""What the clients of the random runs have in common: which way of asking comes next, and how an answer is judged."""

import asyncio
import collections
import random
import time

from wire import Broken, Connection, Nonsense

# Said of an answer that may only be if the machine held an engine up for longer than the read time-out.
LATE = "late"
# What the sidecar says of an engine that took too long.
TIMED_OUT = (b"did not answer in time", b"The prefill engine took too long")


class Clients:
    """Base of a run. `port` is where to ask, `answer_limit` (seconds) when an answer must have come, whatever the faults,
    `patience` how many of those one way of asking may take. A run has its own `request(rng)` and `is_over()`."""

    answer_limit = 60.0
    patience = 2

    def __init__(self):
        self.counts = collections.Counter()
        self.wrong = []
        self.late = 0
        self.held_up = 0.0  # seconds, the longest that the machine did not let this program go on
        self.next_number = 0

    @property
    def port(self):
        raise NotImplementedError

    def is_over(self):
        raise NotImplementedError

    def request(self, rng):
        raise NotImplementedError

    def ended(self, request, answered):
        """Called once for each request whose answer was waited for. `answered`: in some way, a broken one included."""

    async def judged(self):
        """Called when an answer has been judged, before its client goes on."""

    async def watch_the_machine(self):
        """Until it is cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.1)
            self.held_up = max(self.held_up, time.monotonic() - before - 0.1)

    def was_starved(self, log):
        """Whether answers may be late: health checks were too, or this program was held up for long."""
        return self.held_up > 1 or "healthy=false" in log or "endpoint_not_ready" in log

    def complain(self, request, what):
        self.wrong.append(f"{request.describe() if request else 'connection'}: {what}")

    def note(self, request, verdict):
        if verdict == LATE:
            self.late += 1
        elif verdict:
            self.complain(request, verdict)

    async def client(self, seed, ways):
        """One client until the run is over. `ways`: coroutine functions of a Random, with their weights."""
        rng = random.Random(seed)
        while not self.is_over():
            way = rng.choices(list(ways), list(ways.values()))[0]
            try:
                await asyncio.wait_for(way(rng), self.answer_limit * self.patience)
            except asyncio.TimeoutError:
                self.complain(None, f"{way.__name__}: no end")
            except (Broken, Nonsense, OSError) as error:
                self.complain(None, f"{way.__name__}: {error!r}")

    async def read_one(self, connection, request):
        """Reads and judges an answer. True if the connection goes on."""
        answered = True
        try:
            answer = await asyncio.wait_for(connection.read_answer(request.shape.method), self.answer_limit)
        except asyncio.TimeoutError:
            answered = False
            self.complain(request, "no answer")
            return False
        except Broken as error:
            self.counts["broken"] += 1
            if not request.may_break():
                self.complain(request, f"broken: {error}, after {connection.answered}")
            return False
        except Nonsense as error:
            answered = False
            self.complain(request, f"not HTTP: {error}")
            return False
        finally:
            self.ended(request, answered)
        self.counts[answer.status] += 1
        self.note(request, request.judge(answer))
        await self.judged()
        return answer.keep_alive

    async def read_after_leaving(self, connection, request):
        """Of a client that counts as gone: an answer may come or not, but it may not be a wrong one."""
        try:
            answer = await asyncio.wait_for(connection.read_answer(request.shape.method), self.answer_limit)
        except Broken:
            return
        verdict = request.judge(answer)
        if verdict and verdict != LATE:
            self.complain(request, verdict)

    async def steady(self, rng, pause=0.0):
        """Several requests on one connection. `pause`: at the most, in seconds, after some of them."""
        connection = await Connection.open(self.port)
        for _ in range(rng.randint(1, 8)):
            request = self.request(rng)
            connection.send(request.wire())
            if not await self.read_one(connection, request):
                break
            await connection.nothing_more()
            if pause and rng.random() < 0.1:
                await asyncio.sleep(rng.random() * pause)
        connection.close()
