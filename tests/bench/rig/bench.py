"""One run of the rig: the fake engines, and one method per kind of measurement. Every result is kept raw."""

import contextlib
import json
import re
import signal
import statistics
import time
import urllib.request

from . import RigError
from .machine import free_port, resident_kb, socket_memory_kb
from .products import Running

_PORT = re.compile(r"listening port=(\d+)")
_CHAT = "/v1/chat/completions"
_WARM_UP_MS = 500
# Two ways that are compared with each other take turns, for this long at a time.
TURNS = 6
TURN_WARM_UP_MS = 100
# What a product may call to send bytes; plain write() is left out because it also wakes threads and writes logs.
_RECEIVE_CALLS = ("recvfrom", "recvmsg", "recvmmsg", "readv")
_SEND_CALLS = ("sendto", "sendmsg", "sendmmsg", "writev", "splice", "sendfile")


class Bench:
    def __init__(self, children, options, product_core, driver_core, seconds, filler):
        self.children = children
        self.options = options
        self.product_core = product_core
        self.driver_core = driver_core
        self.seconds = seconds
        self.filler = filler
        self.round = 0
        self.raw = []
        self.engine = self._start_engine("engine", driver_core)
        self.prefill_engine = self._start_engine("prefill-engine", driver_core, "prefill")
        # Without a proxy the engine takes the product's place, so that "added" means one process more, not one
        # core more.
        self.direct_engine = self._start_engine("direct-engine", product_core)
        self.products = options.products(children, self.prefill_engine.port)

    def _start_engine(self, name, core, role="decode"):
        child = self.children.start(name, [self.options.tool("bench-fake-engine"), "--role", role], core=core)
        return Running(child, int(child.wait_for(_PORT, 5).group(1)))

    @contextlib.contextmanager
    def running(self, name, **options):
        """A fresh product for one measurement; `direct` is the engine itself."""
        if name == "direct":
            yield self.direct_engine
            return
        product = self.products[name].start(self.engine.port, self.product_core, **options)
        try:
            yield product
        finally:
            self.children.stop(product.child)

    def keep(self, what, product, result):
        self.raw.append({"round": self.round, "what": what, "product": product, **result})
        return result

    def prefill_header(self):
        return f"x-prefiller-host-port: 127.0.0.1:{self.prefill_engine.port}"

    def pd_headers(self, name):
        """What makes a request of `name` a P/D request."""
        return [self.prefill_header(), *self.products[name].pd_headers]

    def engine_stats(self, engine=None):
        url = f"http://127.0.0.1:{(engine or self.engine).port}/stats"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)

    # --- requests ----------------------------------------------------------------------------------------

    def load(self, target, connections, body_bytes, headers=(), rate=None, requests=None, seconds=None,
             warm_up_ms=_WARM_UP_MS):
        seconds = seconds or self.seconds
        command = [self.options.tool("bench-load"), "--port", str(target.port), "--connections", str(connections),
                   "--body-bytes", str(body_bytes), "--filler", self.filler,
                   "--watch-pids", ",".join(map(str, target.pids))]
        for header in headers:
            command += ["--header", header]
        if requests:
            command += ["--requests", str(requests)]
        else:
            command += ["--milliseconds", str(int(seconds * 1000)), "--warm-up-ms", str(warm_up_ms)]
        if rate:
            command += ["--rate", str(int(rate))]
        result = self._run_tool("load", command, limit=300 if requests else seconds + 30)
        bad = {name: result[name] for name in ("non_2xx", "broken", "unfinished")
               if result[name] and not (name == "unfinished" and not rate)}
        if bad or result["requests"] == 0:
            raise RigError(f"{target.child.name} did not answer every request with 2xx: {bad or 'no request done'}")
        return result

    def pass_through(self, name, connections, body_bytes, **options):
        what = f"pass-through {body_bytes} B c={connections}" + (" open loop" if options.get("rate") else "")
        with self.running(name) as target:
            return self.keep(what, name, self.load(target, connections, body_bytes, **options))

    def prefill_decode(self, name, connections, body_bytes):
        with self.running(name) as target:
            self.check_handoffs(name, target)
            result = self.load(target, connections, body_bytes, headers=self.pd_headers(name))
        return self.keep(f"P/D {body_bytes} B c={connections}", name, result)

    def in_turns(self, name, connections, body_bytes):
        """Pass-through and P/D of one product, and the way without it, in many short turns: the machine's speed changes
        within seconds by more than what a ratio of two runs could show. The p50 is the median of the turns'."""
        ways = {"direct": (), "pass-through": (), "P/D": self.pd_headers(name)}
        turns = {way: [] for way in ways}
        with self.running(name) as target:
            self.check_handoffs(name, target)
            for _ in range(TURNS):
                for way, headers in ways.items():
                    if way == "direct" and connections > 1:
                        continue  # only latencies are compared with it
                    turns[way].append(self.load(self.direct_engine if way == "direct" else target, connections, body_bytes,
                                                headers=headers, seconds=self.seconds / TURNS, warm_up_ms=TURN_WARM_UP_MS))
        results = {}
        for way, parts in turns.items():
            if parts:
                requests, cpu_us = (sum(part[key] for part in parts) for key in ("requests", "cpu_us"))
                results[way] = self.keep(f"{way} in turns, {body_bytes} B c={connections}", name, {
                    "requests": requests, "cpu_us": cpu_us, "cpu_us_per_request": cpu_us / requests,
                    "p50_us": statistics.median(part["p50_us"] for part in parts), "cores": parts[-1]["cores"],
                    "turns": [part["cpu_us_per_request"] for part in parts]})
        return results

    def check_handoffs(self, name, target):
        """Proves on 100 requests of a fresh product that both legs run: one that ignores the header would shine."""
        product, engines = self.products[name], (self.prefill_engine, self.engine)
        before = [self.engine_stats(engine) for engine in engines]
        self.load(target, 1, 1024, headers=self.pd_headers(name), requests=100)
        prefill, decode = ({key: value - old[key] for key, value in self.engine_stats(engine).items()}
                           for engine, old in zip(engines, before))
        given, taken = prefill["handoffs_given"], decode[product.taken_counter]
        if given != 100 or taken != 100:
            raise RigError(f"{name}: of 100 P/D requests {given} reached prefill and {taken} brought a handoff to "
                           "decode")
        pairs = 100 if product.has_pairing_id else 0
        same_ids = prefill["pairing_sum"] % 2**64 == decode["pairing_sum"] % 2**64
        if prefill["paired"] != pairs or decode["paired"] != pairs or not same_ids:
            raise RigError(f"{name}: {prefill['paired']} and {decode['paired']} of 100 legs had an id in common, "
                           f"{'the same' if same_ids else 'not the same'} in both")

    # --- streams -----------------------------------------------------------------------------------------

    def sse_command(self, target, streams, seconds=None, events=None, interval_ms=20, event_bytes=180):
        """For `seconds` of measuring, or `events` per stream read to the end."""
        count = events or int((seconds + _WARM_UP_MS / 1000 + 20) * 1000 / interval_ms)
        path = f"{_CHAT}?events={count}&interval_ms={interval_ms}&bytes={event_bytes}"
        command = [self.options.tool("bench-sse"), "--port", str(target.port), "--streams", str(streams),
                   "--events", str(count), "--event-bytes", str(event_bytes), "--path", path,
                   "--watch-pids", ",".join(map(str, target.pids))]
        if events:
            return command + ["--complete", "1"]
        return command + ["--milliseconds", str(int(seconds * 1000)), "--warm-up-ms", str(_WARM_UP_MS)]

    def stream(self, name, streams):
        with self.running(name) as target:
            result = self._run_tool("sse", self.sse_command(target, streams, seconds=self.seconds),
                                    limit=self.seconds + 40)
        result["expected_events"] = int(streams * result["seconds"] * 50)
        return self.keep(f"SSE {streams} streams", name, result)

    def count_sends(self, name, streams, events):
        """Downstream sends per chunk the engine sent, from strace's counts over whole streams."""
        with self.running(name) as target:
            before = self.engine_stats()["stream_sends"]
            command = ["strace", "-c", "-f"]
            for pid in target.pids:
                command += ["-p", str(pid)]
            tracer = self.children.start("strace", command)
            for pid in target.pids:
                tracer.wait_for(re.compile(rf"Process {pid} attached"), 10)
            self._run_tool("sse", self.sse_command(target, streams, events=events, interval_ms=50), limit=120)
            engine_sends = self.engine_stats()["stream_sends"] - before
            self.children.stop(tracer, how=signal.SIGINT, seconds=10)
        calls = _parse_strace_counts(tracer.stderr_path)
        # A busy machine lets chunks pile up until one receive takes several; then the receives are the chunks.
        receives = sum(calls.get(call, 0) for call in _RECEIVE_CALLS) - streams
        chunks = min(engine_sends, receives) if receives > engine_sends / 10 else engine_sends
        sends = sum(calls.get(call, 0) for call in _SEND_CALLS)
        if sends < chunks / 2:
            sends += calls.get("write", 0)
        downstream = sends - streams  # one request went up for every stream
        return self.keep("sends per chunk", name, {
            "engine_sends": engine_sends, "chunks": chunks, "downstream_sends": downstream, "calls": calls,
            "per_chunk": downstream / max(chunks, 1)})

    # --- memory ------------------------------------------------------------------------------------------

    def idle_memory(self, name, connections):
        """Resident bytes per client connection that has had one request and waits for the next."""
        with self.running(name) as target:
            self.load(target, 1, 1024, requests=200)
            rss, anonymous = resident_kb(target.pids)
            kernel = socket_memory_kb()
            holder = self.children.start("idle", [self.options.tool("bench-idle"), "--port", str(target.port),
                                                  "--connections", str(connections)],
                                         core=self.driver_core, stdin=True)
            holder.wait_for(re.compile("holding"), 60)
            time.sleep(0.3)
            rss_idle, anonymous_idle = resident_kb(target.pids)
            kernel_idle = socket_memory_kb()
            self.children.stop(holder)
        return self.keep("idle connections", name, {
            "connections": connections, "rss_kb": [rss, rss_idle], "anonymous_kb": [anonymous, anonymous_idle],
            "tcp_kernel_kb": [kernel, kernel_idle], "bytes_per_connection": (rss_idle - rss) * 1024 / connections})

    def stream_memory(self, name, streams):
        """Resident bytes per stream while all streams flow."""
        with self.running(name) as target:
            self.load(target, 1, 1024, requests=200)
            rss, anonymous = resident_kb(target.pids)
            client = self.children.start("sse", self.sse_command(target, streams, seconds=2), core=self.driver_core)
            client.wait_for(re.compile("^streaming", re.MULTILINE), 30)
            time.sleep(1)
            rss_streaming, anonymous_streaming = resident_kb(target.pids)
            self._take_result("sse", client, 40)
        return self.keep("stream memory", name, {
            "streams": streams, "rss_kb": [rss, rss_streaming], "anonymous_kb": [anonymous, anonymous_streaming],
            "bytes_per_stream": (rss_streaming - rss) * 1024 / streams})

    # --- start -------------------------------------------------------------------------------------------

    def start_time(self, name, repeats):
        product = self.products[name]
        port = free_port()
        command = [self.options.tool("bench-start"), "--port", str(port), "--core", str(self.product_core),
                   "--repeats", str(repeats), "--"] + product.command(port, self.engine.port)
        starts = self._run_tool("start", command, limit=repeats * 15,
                                env=product.env(port, self.engine.port))["starts"]
        times = {key: sorted(start[key] for start in starts)[len(starts) // 2]
                 for key in ("connected_ms", "answered_ms")}
        return self.keep("start", name, {**times, "starts": starts})

    # -----------------------------------------------------------------------------------------------------

    def _run_tool(self, name, command, limit, env=None):
        child = self.children.start(name, command, core=self.driver_core, env=env)
        return self._take_result(name, child, limit)

    def _take_result(self, name, child, limit):
        try:
            code = child.finish(limit)
        except RigError:
            self.children.stop(child)
            raise
        self.children.forget(child)
        with open(child.stdout_path) as file:
            lines = file.read().splitlines()
        if code == 3 and lines:
            raise RigError(f"{name}: damaged streams: {lines[-1]}")
        if code != 0 or not lines:
            with open(child.stderr_path) as file:
                raise RigError(f"{name} failed with code {code}: {file.read().strip()}")
        return json.loads(lines[-1])


def _parse_strace_counts(path):
    """Successful calls by name out of `strace -c`; the errors column is there only where a call failed."""
    calls = {}
    with open(path) as file:
        for line in file:
            words = line.split()
            if len(words) in (5, 6) and words[3].isdigit() and words[-1] != "total":
                failed = int(words[4]) if len(words) == 6 else 0
                calls[words[-1]] = calls.get(words[-1], 0) + int(words[3]) - failed
    if not calls:
        raise RigError(f"strace counted nothing; see {path}")
    return calls
