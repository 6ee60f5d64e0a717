"""The goals: which number each row compares, with what, and when it is met."""

import statistics
from dataclasses import dataclass
from typing import Callable, Optional


def over(peer):
    """Value of the product over the same value of a peer."""
    return lambda values, product: _divide(values.get(product), values.get(peer))


def added_over(peer):
    """What the product adds to the direct way, over what the peer adds."""

    def ratio(values, product):
        direct = values.get("direct")
        if direct is None or product not in values or peer not in values:
            return None
        added, peer_added = values[product] - direct, values[peer] - direct
        return None if added <= 0 or peer_added <= 0 else added / peer_added  # noise larger than the thing measured

    return ratio


def less(peer):
    """What the product takes beyond a peer, in the row's unit."""

    def difference(values, product):
        if product not in values or peer not in values:
            return None
        return values[product] - values[peer]

    return difference


def itself(values, product):
    return values.get(product)


def _divide(value, by):
    return None if value is None or not by or by < 0 else value / by


@dataclass(frozen=True)
class Row:
    id: str
    text: str
    unit: str
    compare: Callable
    must: Optional[float] = None
    stretch: Optional[float] = None
    measured_once: bool = False  # a count or a size: the same in every round
    higher: bool = False  # higher is better, and the limits are least values
    subject: Optional[str] = None  # whose row it is, where not the table's


ROWS = [
    Row("S1", "CPU per request ÷ nginx, 1 KB, c=32", "µs", over("nginx"), 1.30, 1.10),
    Row("S1-16", "CPU per request ÷ nginx, 16 KB, c=8", "µs", over("nginx")),
    Row("S2", "requests per second of CPU ÷ Go stand-in's, 1 KB, c=32", "/s", over("go-stand-in"), 2.5, 3.3,
        higher=True),
    Row("S3", "added p50 ÷ relay's added, 1 KB, c=1", "µs", added_over("relay"), 1.35, 1.20),
    Row("S4", "added p99 ÷ nginx's added, 1 KB, c=32, open loop", "µs", added_over("nginx"), 1.25, 1.00),
    Row("S4-closed", "added p99 ÷ nginx's added, 1 KB, c=32, closed loop", "µs", added_over("nginx")),
    Row("S5", "CPU per request ÷ nginx (body in memory), 256 KB, c=8", "µs", over("nginx"), 1.35, 1.10),
    Row("S5-default", "CPU per request ÷ nginx-default (body in a file), 256 KB, c=8", "µs", over("nginx-default")),
    Row("P1-1", "P/D CPU ÷ own pass-through, 1 KB, c=32", "×", itself, 1.80, 1.60),
    Row("P1-16", "P/D CPU ÷ own pass-through, 16 KB, c=8", "×", itself, 1.60, 1.40),
    Row("P1-256", "P/D CPU ÷ own pass-through, 256 KB, c=8", "×", itself, 1.60, 1.35),
    Row("P2-1", "P/D requests per second of CPU ÷ Go stand-in's, 1 KB, c=32", "/s", over("go-stand-in"), 2.2, 2.6,
        higher=True),
    Row("P2-16", "same, 16 KB, c=8", "/s", over("go-stand-in"), 4.5, 6.0, higher=True),
    Row("P2-256", "same, 256 KB, c=8", "/s", over("go-stand-in"), 10.0, 14.0, higher=True),
    Row("P3", "P/D added p50 ÷ own pass-through added p50, c=1", "×", itself, 2.30, 2.05),
    Row("C1", "CPU per event ÷ relay, 500 streams", "µs", over("relay"), 1.30, 1.15),
    Row("C1-100", "CPU per event ÷ relay, 100 streams", "µs", over("relay")),
    Row("C2", "added one-way p50 ÷ nginx's added, 20 streams", "µs", added_over("nginx"), 1.25, 1.00),
    Row("C3", "downstream sends per upstream chunk", "sends", itself, 1.05, 1.00, True),
    Row("M1", "resident kB per idle client connection", "kB", itself, 4.0, 2.0),
    Row("M2", "resident kB per stream ÷ nginx, 500 streams", "kB", over("nginx"), 0.70, 0.45),
    Row("I1-pass", "instructions per pass-through request, 1 KB", "k", itself, 45.0, 30.0, True),
    Row("I1-pd", "instructions per P/D request, 1 KB", "k", itself, 95.0, 65.0, True),
    Row("T1", "exec to first accepted connection ÷ nginx", "ms", over("nginx"), 1.50, 1.00),
    Row("T1-answer", "exec to first answer ÷ nginx", "ms", over("nginx")),
    Row("B1-sidecar", "stripped sidecar", "MB", itself, 2.0, 1.2, True),
    Row("B1-backend", "largest stripped backend", "kB", itself, 400.0, 150.0, True),
]

# Metric as selected with --only: all rows that start with it.
METRICS = ["S1", "S2", "S3", "S4", "S5", "P1", "P2", "P3", "C1", "C2", "C3", "M1", "M2", "I1", "T1", "B1"]


@dataclass(frozen=True)
class Table:
    """What one driver reports: `subject` is the product that the goals are for."""
    rows: list
    products: list
    subject: str
    file_prefix: str


SIDECAR_TABLE = Table(ROWS, ["direct", "relay", "two-leg-relay", "two-leg-relay-at-once", "nginx", "nginx-default", "haproxy",
                             "go-stand-in",
                             "sidecar", "sidecar-sglang", "sidecar-trtllm", "sidecar-trtllm-generation-first",
                             "sidecar-mooncake", "sidecar-shared-storage", "sidecar-offloading", "sidecar-push",
                             "sidecar-push-at-once"], "sidecar", "compare")


def verdict(row, ratios):
    """A goal is missed only if the median and three fifths of the rounds miss it: one bad round is the machine."""
    if row.must is None or not ratios:
        return ""
    median = statistics.median(ratios)

    def missed(limit):
        # Half a percent is below what any of this can resolve; C3's stretch of exactly 1 needs the slack too.
        if row.higher:
            limit *= 0.995
            return median < limit and sum(ratio < limit for ratio in ratios) >= 0.6 * len(ratios)
        limit *= 1.005
        return median > limit and sum(ratio > limit for ratio in ratios) >= 0.6 * len(ratios)

    outcome = "MISS" if missed(row.must) else "pass" if missed(row.stretch) else "stretch"
    return outcome if len(ratios) >= 3 or row.measured_once else outcome + " (too few rounds)"
