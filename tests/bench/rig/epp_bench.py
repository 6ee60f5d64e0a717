"""One run for the Endpoint Picker: what stands around it, and one method per kind of measurement."""

import contextlib
import os
import statistics
import subprocess

from . import RigError
from .bench import TURN_WARM_UP_MS, TURNS, Bench
from .epp_products import Echo, Envoy, Epp, start_engines, start_tokenizer
from .machine import free_port

_WARM_UP_MS = 500


class EppBench(Bench):
    """The engines only answer health probes, and requests that come through Envoy."""

    def __init__(self, children, options, product_core, driver_core, seconds):  # pylint: disable=super-init-not-called
        self.children = children
        self.options = options
        self.product_core = product_core
        self.driver_core = driver_core
        self.seconds = seconds
        self.filler = "prose"
        self.round = 0
        self.raw = []
        missing = options.missing()
        engines = start_engines(children, options, driver_core)
        self.products = {"echo": Echo(children, options, engines)}
        if "epp" not in missing:
            self.products["epp"] = Epp(children, options, engines)
            self.products["epp-aggregated"] = Epp(children, options, engines, aggregated=True)
            if "epp-tokens" not in missing:
                tokenizer = start_tokenizer(children, options, driver_core)
                self.products["epp-tokens"] = Epp(children, options, engines, tokenizer_port=tokenizer)
        if "envoy" not in missing:
            envoy = Envoy(children, options, engines[-1])
            self.products["envoy"] = envoy
            self.products["envoy+echo"] = envoy
            if "epp" in self.products:
                self.products["envoy+epp"] = envoy

    @contextlib.contextmanager
    def running(self, name, **_):
        product = self.products[name].start(self.product_core)
        try:
            yield product
        finally:
            self.children.stop(product.child)

    @contextlib.contextmanager
    def running_envoy(self, name):
        """Envoy by itself, or with the ext_proc server that its name says."""
        behind = name.partition("+")[2]
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(self.running(behind)) if behind else None
            envoy = self.products[name].start(self.product_core, server.port if server else None)
            stack.callback(self.children.stop, envoy.child)
            yield envoy, envoy.pids + (server.pids if server else [])

    def streams(self, name, streams, body_bytes=1024, extra=(), seconds=None):
        """ext_proc traffic straight to the product."""
        with self.running(name) as target:
            result = self._drive(name, target, streams, body_bytes, extra, seconds or self.seconds, _WARM_UP_MS)
        what = f"{body_bytes} B, {streams} streams" + "".join(f" {word}" for word in extra)
        return self.keep(what, name, result)

    def in_turns(self, names, streams, body_bytes=1024):
        """The products by name, each for a moment at a time in many turns: the machine's speed changes within seconds by more
        than what the difference of two runs could show. The p50 is the median of the turns'."""
        turns = {name: [] for name in names}
        with contextlib.ExitStack() as stack:
            targets = {name: stack.enter_context(self.running(name)) for name in names}
            for _ in range(TURNS):
                for name, target in targets.items():
                    turns[name].append(self._drive(name, target, streams, body_bytes, (), self.seconds / TURNS, TURN_WARM_UP_MS))
        return {name: self.keep(f"in turns, {body_bytes} B, {streams} streams", name,
                                {"p50_us": statistics.median(part["p50_us"] for part in parts),
                                 "turns": [part["p50_us"] for part in parts]})
                for name, parts in turns.items()}

    def _drive(self, name, target, streams, body_bytes, extra, seconds, warm_up_ms):  # pylint: disable=too-many-arguments,too-many-positional-arguments
        command = [self.options.tool("bench-ext-proc-load"), "--port", str(target.port), "--streams", str(streams),
                   "--body-bytes", str(body_bytes), "--milliseconds", str(int(seconds * 1000)),
                   "--warm-up-ms", str(warm_up_ms), "--watch-pids", ",".join(map(str, target.pids))]
        if name in ("epp", "epp-tokens"):
            command += ["--expect-prefill", "1"]
        result = self._run_tool("ext-proc-load", command + list(extra), limit=seconds + 40)
        if result["decisions"] == 0 and result["chunks"] == 0:
            raise RigError(f"{name} answered nothing")
        return result

    def through_envoy(self, name, connections, body_bytes):
        with self.running_envoy(name) as (envoy, pids):
            target = _Watched(envoy, pids)
            result = self.load(target, connections, body_bytes)
        return self.keep(f"Envoy {body_bytes} B c={connections}", name, result)

    def start_time(self, name, repeats):
        product = self.products[name]
        port = free_port()
        command = [self.options.tool("bench-start"), "--port", str(port), "--core", str(self.product_core),
                   "--repeats", str(repeats), "--"] + product.command(port)
        starts = self._run_tool("start", command, limit=repeats * 15, env=product.env(port))["starts"]
        median = sorted(start["connected_ms"] for start in starts)[len(starts) // 2]
        return self.keep("start", name, {"connected_ms": median, "starts": starts})

    def stripped_bytes(self):
        stripped = os.path.join(self.children.work_dir, "stripped")
        try:
            subprocess.run(["strip", "-o", stripped, self.options.epp], check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise RigError(f"strip {self.options.epp}: {error}") from None
        return os.path.getsize(stripped)


class _Watched:
    """Where to send, and every process whose time counts."""

    def __init__(self, front, pids):
        self.child = front.child
        self.port = front.port
        self.pids = pids
