"""What is run for each metric of the Endpoint Picker. Every function fills {row id: {product: value}} for one round."""

from .epp_goals import CONCURRENCIES
from .metrics import Round

_KB = 1024
_LONG_PROMPT = 220 * _KB
_CHUNK_RATE = 50_000
_EPPS = ("epp", "echo", "epp-aggregated")


def e1(r):
    def measure(name):
        small = r.once(r.bench.streams, name, 16)
        r.put("E1", name, small["decisions_per_s"])
        r.put("E1-cpu", name, small["cpu_us_per_decision"])
        r.put("E1-64", name, r.once(r.bench.streams, name, 16, 64 * _KB)["decisions_per_s"])

    r.each("E1", _EPPS, measure)


def e2(r):
    def measure():
        for name, result in r.bench.in_turns(r.order(*_EPPS), 1).items():
            r.put("E2", name, result["p50_us"])

    r.attempt("E2", "all", measure)


def e3(r):
    r.each("E3", _EPPS, lambda name: r.put("E3", name, r.once(r.bench.streams, name, 16)["p99_us"]))


def e4(r):
    def measure(name):
        r.put("E4", name, r.bench.streams(name, 16, extra=("--chunks", "0"))["cpu_us_per_chunk"])
        paced = r.bench.streams(name, 500, extra=("--chunk-rate", str(_CHUNK_RATE)))
        r.put("E4-rate", name, paced["cpu_us_per_chunk"])
        r.put("E4-core", name, paced["cpu_us"] / 1e6 / paced["seconds"])
        r.put("E4-sent", name, paced["chunks_per_s"])

    r.each("E4", ("epp", "echo"), measure)


def long_prompts(r):
    def measure(name):
        for streams in CONCURRENCIES:
            result = r.bench.streams(name, streams, _LONG_PROMPT)
            r.put(f"L-{streams}", name, result["decisions_per_s"])
            r.put(f"L-{streams}-cpu", name, result["cpu_us_per_decision"])

    def tokenized(name):
        result = r.bench.streams(name, 20, _LONG_PROMPT, extra=("--distinct", "1"))
        r.put("L-tokens", name, result["decisions_per_s"])
        r.put("L-tokens-cpu", name, result["cpu_us_per_decision"])

    r.each("L", ("epp", "echo"), measure)
    r.each("L", ("epp-tokens",), tokenized)


def through_envoy(r):
    def measure(name):
        for connections in CONCURRENCIES:
            result = r.bench.through_envoy(name, connections, _LONG_PROMPT)
            r.put(f"V-{connections}", name, result["req_per_s"])
            r.put(f"V-{connections}-added", name, result["p50_us"] / 1000)

    r.each("V", ("envoy", "envoy+echo", "envoy+epp"), measure)


def t1(r):
    r.each("T1", ("epp", "echo"), lambda name: r.put(
        "T1", name, r.bench.start_time(name, 5 if r.quick else 15)["connected_ms"]))


def b1(r):
    if r.number == 0:
        r.each("B1", ("epp",), lambda name: r.put("B1", name, r.bench.stripped_bytes() / 1e6))


BY_NAME = {"E1": e1, "E2": e2, "E3": e3, "E4": e4, "L": long_prompts, "V": through_envoy, "T1": t1, "B1": b1}


def run_round(bench, number, selected, quick, progress):
    current = Round(bench, number, quick)
    for metric in selected:
        progress(f"round {number + 1}: {metric}")
        current.attempt(metric, "rig", lambda: BY_NAME[metric](current))  # pylint: disable=cell-var-from-loop
    return current
