"""What is run for each metric. Every function fills {row id: {product: value}} for one round."""

import glob
import os
import shutil
import subprocess

from . import RigError
from .callgrind import instructions_per_request

_KB = 1024
# Of P1 and P2: the row's name, connections, bytes of the body.
_SIZES = (("1", 32, _KB), ("16", 8, 16 * _KB), ("256", 8, 256 * _KB))
# Whose P/D requests are compared with their own pass-through.
_FLOORS = ("two-leg-relay", "two-leg-relay-at-once")
PROTOCOLS = ("sidecar-sglang", "sidecar-trtllm", "sidecar-trtllm-generation-first", "sidecar-mooncake",
              "sidecar-shared-storage", "sidecar-offloading", "sidecar-push", "sidecar-push-at-once")


class Round:
    """Measurements of one round, so that S1 and P1 share a run, and the order of products, turned each round."""

    def __init__(self, bench, number, quick):
        bench.round = number
        self.bench = bench
        self.number = number
        self.quick = quick
        self.values = {}
        self.errors = []
        self._done = {}

    def order(self, *names):
        there = [name for name in names if name == "direct" or name in self.bench.products]
        turn = self.number % len(there) if there else 0
        return there[turn:] + there[:turn]

    def put(self, row, product, value):
        self.values.setdefault(row, {})[product] = value

    def once(self, method, *args, **kwargs):
        key = (method.__name__, args, tuple(sorted(kwargs.items())))
        if key not in self._done:
            self._done[key] = method(*args, **kwargs)
        return self._done[key]

    def attempt(self, metric, product, action):
        """One product's failure is noted and does not stop the others."""
        try:
            action()
        except RigError as error:
            self.errors.append(f"{metric} {product} round {self.number + 1}: {error}")

    def each(self, metric, names, action):
        for name in self.order(*names):
            self.attempt(metric, name, lambda: action(name))  # pylint: disable=cell-var-from-loop


def s1(r):
    def measure(name):
        r.put("S1", name, r.once(r.bench.pass_through, name, 32, _KB)["cpu_us_per_request"])
        r.put("S1-16", name, r.once(r.bench.pass_through, name, 8, 16 * _KB)["cpu_us_per_request"])

    r.each("S1", ("sidecar", "nginx", "relay", "haproxy"), measure)


def s2(r):
    r.each("S2", ("sidecar", "go-stand-in"), lambda name: r.put(
        "S2", name, 1e6 / r.once(r.bench.pass_through, name, 32, _KB)["cpu_us_per_request"]))


def s3(r):
    r.each("S3", ("direct", "sidecar", "relay", "nginx", "haproxy"),
           lambda name: r.put("S3", name, r.once(r.bench.pass_through, name, 1, _KB)["p50_us"]))


def s4(r):
    """Closed loop first. A quarter of its slowest rate is what the open loop then sends to everybody in this round:
    with single arrivals nothing is batched, so that half of it can already be too much."""
    names = ("direct", "sidecar", "nginx", "relay", "haproxy")
    rates = []

    def closed(name):
        result = r.once(r.bench.pass_through, name, 32, _KB)
        rates.append(result["req_per_s"])
        r.put("S4-closed", name, result["p99_us"])

    r.each("S4", names, closed)
    if not rates:
        return
    rate = max(1, int(min(rates) / 4))
    r.each("S4", names, lambda name: r.put(
        "S4", name, r.bench.pass_through(name, 32, _KB, rate=rate)["p99_us"]))


def s5(r):
    def measure(name):
        cpu = r.once(r.bench.pass_through, name, 8, 256 * _KB)["cpu_us_per_request"]
        r.put("S5", name, cpu)
        r.put("S5-default", name, cpu)

    r.each("S5", ("sidecar", "nginx", "nginx-default", "relay", "haproxy"), measure)


def p1(r):
    def measure(name):
        for size, connections, body_bytes in _SIZES:
            if name in PROTOCOLS and size == "256":
                continue  # copying the body, which is the same for all
            ways = r.bench.in_turns(name, connections, body_bytes)
            r.put(f"P1-{size}", name, ways["P/D"]["cpu_us_per_request"] / ways["pass-through"]["cpu_us_per_request"])

    r.each("P1", ("sidecar",) + _FLOORS + PROTOCOLS, measure)


def p2(r):
    def measure(name):
        for size, connections, body_bytes in _SIZES:
            both = r.once(r.bench.prefill_decode, name, connections, body_bytes)["cpu_us_per_request"]
            r.put(f"P2-{size}", name, 1e6 / both)

    r.each("P2", ("sidecar", "go-stand-in"), measure)


def p3(r):
    def measure(name):
        ways = r.bench.in_turns(name, 1, _KB)
        direct, own, both = (ways[way]["p50_us"] for way in ("direct", "pass-through", "P/D"))
        if own <= direct:
            raise RigError("the pass-through adds nothing measurable: too much noise")
        r.put("P3", name, (both - direct) / (own - direct))

    r.each("P3", ("sidecar",) + _FLOORS + PROTOCOLS, measure)


def c1(r):
    for row, streams in (("C1", 500), ("C1-100", 100)):
        r.each(row, ("sidecar", "relay", "nginx", "haproxy"),
               lambda name: r.put(row, name, r.bench.stream(name, streams)["cpu_us_per_event"]))


def c2(r):
    r.each("C2", ("direct", "sidecar", "nginx", "relay", "haproxy"),
           lambda name: r.put("C2", name, r.bench.stream(name, 20)["p50_us"]))


def c3(r):
    if r.number > 0:
        return  # a count, not a time
    if not shutil.which("strace"):
        raise RigError("strace is not installed")
    r.each("C3", ("sidecar", "nginx", "relay", "haproxy"), lambda name: r.put(
        "C3", name, r.bench.count_sends(name, streams=10, events=20 if r.quick else 100)["per_chunk"]))


def m1(r):
    r.each("M1", ("sidecar", "nginx", "relay", "haproxy"), lambda name: r.put(
        "M1", name, r.bench.idle_memory(name, 2000)["bytes_per_connection"] / 1024))


def m2(r):
    r.each("M2", ("sidecar", "nginx", "relay", "haproxy"), lambda name: r.put(
        "M2", name, r.bench.stream_memory(name, 500)["bytes_per_stream"] / 1024))


def i1(r):
    if r.number > 0:
        return  # deterministic
    runs = {"short": 50, "long": 300} if r.quick else {}
    r.each("I1", ("sidecar", "nginx", "relay", "haproxy"), lambda name: r.put(
        "I1-pass", name, instructions_per_request(r.bench, name, **runs)["per_request"] / 1000))
    r.each("I1", ("sidecar",) + PROTOCOLS, lambda name: r.put("I1-pd", name, instructions_per_request(
        r.bench, name, headers=r.bench.pd_headers(name), **runs)["per_request"] / 1000))


def t1(r):
    def measure(name):
        result = r.bench.start_time(name, 5 if r.quick else 15)
        r.put("T1", name, result["connected_ms"])
        if result["answered_ms"] > 0:
            r.put("T1-answer", name, result["answered_ms"])

    r.each("T1", ("sidecar", "nginx", "relay", "haproxy"), measure)


def b1(r):
    if r.number > 0:
        return
    options = r.bench.options
    sizes = {}
    backends = sorted(glob.glob(os.path.join(options.bin_dir, "*backend*.so")))
    for path in [options.sidecar] + backends:
        if not os.path.exists(path):
            continue
        stripped = os.path.join(r.bench.children.work_dir, "stripped")
        try:
            subprocess.run(["strip", "-o", stripped, path], check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            raise RigError(f"strip {path}: {error}") from None
        sizes[os.path.basename(path)] = os.path.getsize(stripped)
    if os.path.basename(options.sidecar) in sizes:
        r.put("B1-sidecar", "sidecar", sizes.pop(os.path.basename(options.sidecar)) / 1e6)
    if sizes:
        r.bench.keep("backend sizes", "sidecar", {"bytes": sizes})
        r.put("B1-backend", "sidecar", max(sizes.values()) / 1e3)


BY_NAME = {"S1": s1, "S2": s2, "S3": s3, "S4": s4, "S5": s5, "P1": p1, "P2": p2, "P3": p3, "C1": c1, "C2": c2, "C3": c3,
           "M1": m1, "M2": m2, "I1": i1, "T1": t1, "B1": b1}


def run_round(bench, number, selected, quick, progress):
    current = Round(bench, number, quick)
    for metric in selected:
        progress(f"round {number + 1}: {metric}")
        current.attempt(metric, "rig", lambda: BY_NAME[metric](current))  # pylint: disable=cell-var-from-loop
    return current
