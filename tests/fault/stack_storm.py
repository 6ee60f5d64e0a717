"""What happens to the parts of the stack while clients go on: deaths, restarts, stalls, changes of the endpoints.

Nothing here goes by the clock: an incident begins after a number of exchanges, and goes on at what the Endpoint Picker says.
"""

import asyncio
import contextlib
import signal

from stack_requests import PICKER_DIED


class Storm:
    """Incidents one after another, from a seed."""

    def __init__(self, run, rng):
        self._run = run
        self._rng = rng
        self._stack = run.stack
        self._choices = {
            self.prefill_dies: 4, self.decode_dies: 3, self.sidecar_dies: 2, self.sidecar_drains: 2, self.picker_dies: 2,
            self.renderer_dies: 1, self.renderer_fails: 3, self.endpoint_is_taken_out: 2,
        }

    async def blow(self, over):
        """Until `over` is set; whatever is broken is whole again then."""
        while not over.is_set():
            await self._run.exchanges_more(self._rng.randint(5, 40))
            incident = self._rng.choices(list(self._choices), list(self._choices.values()))[0]
            self._run.counts[incident.__name__] += 1
            await incident()

    # ------------------------------------------------------------------------------------------- what it waits for

    async def _do(self, call, *arguments):
        """What blocks, beside the clients."""
        return await asyncio.get_running_loop().run_in_executor(None, lambda: call(*arguments))

    async def _said(self, event, endpoint, since, **fields):
        """The Endpoint Picker has said so of an endpoint, after line `since`."""
        picker = self._stack.picker
        line = await self._do(lambda: picker.wait_for_line(
            lambda line: line.event == event and {"endpoint": endpoint, **fields}.items() <= line.fields.items(), since))
        assert line is not None, f"no {event} of {endpoint}: {picker.lines[-5:]}"

    def _mark(self):
        return len(self._stack.picker.lines)

    @contextlib.contextmanager
    def _open(self, incident):
        """Requests that are under way in here, or begin in here, have seen it."""
        self._run.begin_incident(incident)
        try:
            yield
        finally:
            self._run.end_incident(incident)

    async def _while_others_work(self):
        await self._run.exchanges_more(self._rng.choice((0, 1, 5, 20)))

    # ------------------------------------------------------------------------------------------- deaths

    async def _engine_dies(self, engines, name, incident):
        index = self._rng.randrange(len(engines))
        engine = engines[index]
        endpoint = f"{name}-{index}"
        since = self._mark()
        with self._open(incident):
            if self._rng.random() < 0.5:
                await self._do(engine.control, "POST", "/mock/die")
            else:
                engine.process.kill()
            await self._said("endpoint_not_ready", endpoint, since)
        await self._while_others_work()
        since = self._mark()
        await self._do(self._stack.restart_engine, engine)
        await self._said("endpoint", endpoint, since, state="schedulable")

    async def prefill_dies(self):
        await self._engine_dies(self._stack.prefills, "prefill", "prefill died")

    async def decode_dies(self):
        await self._engine_dies(self._stack.decodes, "decode", "decode died")

    async def sidecar_dies(self):
        index = self._rng.randrange(len(self._stack.sidecars))
        sidecar = self._stack.sidecars[index]
        since = self._mark()
        with self._open("sidecar died"):
            sidecar.process.kill()
            await self._said("endpoint_not_ready", f"decode-{index}", since)
        await self._while_others_work()
        since = self._mark()
        await self._do(self._stack.restart_sidecar, sidecar)
        await self._said("endpoint", f"decode-{index}", since, state="schedulable")

    async def sidecar_drains(self):
        """Told to stop, it is taken out before it refuses anything: nobody may notice."""
        index = self._rng.randrange(len(self._stack.sidecars))
        sidecar = self._stack.sidecars[index]
        since = self._mark()
        sidecar.process.send_signal(signal.SIGTERM)
        await self._said("endpoint_not_ready", f"decode-{index}", since)
        code = await self._do(sidecar.process.wait)
        assert code == 0, f"a sidecar that drained ended with {code}"
        since = self._mark()
        await self._do(self._stack.restart_sidecar, sidecar)
        await self._said("endpoint", f"decode-{index}", since, state="schedulable")

    async def picker_dies(self):
        number = signal.SIGKILL if self._rng.random() < 0.5 else signal.SIGTERM
        with self._open(PICKER_DIED):
            code = await self._do(self._stack.restart_picker, number)
            assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0), f"the Endpoint Picker ended with {code}"
            # Envoy connects again with the next request.
            while not await self._run.probe():
                pass

    async def renderer_dies(self):
        self._stack.renderer.process.kill()
        await self._while_others_work()
        await self._do(self._stack.restart_engine, self._stack.renderer)

    async def renderer_fails(self):
        """It stalls or answers wrongly: requests are routed by their size, or refused where too many wait for it."""
        rule = self._rng.choice(({"action": "stall"}, {"action": "status", "status": 500}, {"action": "status", "status": 422},
                                 {"action": "non_json", "body": "<html>"}, {"action": "reset_at", "at": 100},
                                 {"action": "framing", "kind": "bad_chunk_size"}))
        await self._do(lambda: self._stack.renderer.fault(match={"method": "POST"}, **rule))
        await self._run.exchanges_more(self._rng.choice((5, 20, 40)))
        await self._do(self._stack.renderer.control, "DELETE", "/mock/faults")

    async def endpoint_is_taken_out(self):
        """The file names it no more: what runs on it goes on, nothing new comes."""
        places = self._stack.places()
        gone = self._rng.choice([name for name in places])
        since = self._mark()
        without = {name: place for name, place in places.items() if name != gone}
        await self._do(self._stack.write_endpoints, without)
        await self._said("endpoint_removed", gone, since)
        await self._while_others_work()
        since = self._mark()
        await self._do(self._stack.write_endpoints, places)
        await self._said("endpoint", gone, since, state="schedulable")
