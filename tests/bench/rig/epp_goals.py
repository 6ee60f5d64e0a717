"""The goals of the Endpoint Picker. `echo` is a bare gRPC server with the same messages."""

from .goals import Row, Table, itself, less, over

CONCURRENCIES = (20, 60, 100, 150)


def _long_prompt_rows():
    for streams in CONCURRENCIES:
        yield Row(f"L-{streams}", f"220 KB prompts, decisions/s ÷ echo, c={streams}", "/s", over("echo"), higher=True)
        yield Row(f"L-{streams}-cpu", f"220 KB prompts, CPU per decision ÷ echo, c={streams}", "µs", over("echo"))
    yield Row("L-tokens", "220 KB prompts, all different, tokenized by the mock engine, decisions/s, c=20", "/s", itself,
              subject="epp-tokens", higher=True)
    yield Row("L-tokens-cpu", "same, CPU per decision of the Endpoint Picker", "µs", itself, subject="epp-tokens")


def _envoy_rows():
    for connections in CONCURRENCIES:
        yield Row(f"V-{connections}", f"220 KB prompts through Envoy, requests/s ÷ Envoy alone, c={connections}", "/s",
                  over("envoy"), subject="envoy+epp", higher=True)
        yield Row(f"V-{connections}-added", f"same, p50 added to Envoy's, c={connections}", "ms", less("envoy"),
                  subject="envoy+epp")


ROWS = [
    Row("E1", "decisions/s ÷ echo, 1 KB, c=16", "/s", over("echo"), 0.70, 0.85, higher=True),
    Row("E1-cpu", "CPU per decision ÷ echo, 1 KB, c=16", "µs", over("echo")),
    Row("E1-64", "decisions/s ÷ echo, 64 KB, c=16", "/s", over("echo"), higher=True),
    Row("E2", "p50 − echo's, 1 KB, c=1", "µs", less("echo"), 25.0, 10.0),
    Row("E3", "p99 ÷ echo, 1 KB, c=16", "µs", over("echo"), 1.5, 1.2),
    Row("E4", "CPU per response chunk ÷ echo, 16 streams, one chunk on its way in each", "µs", over("echo"), 1.3, 1.1),
    Row("E4-rate", "CPU per response chunk ÷ echo, 500 streams, 50,000 chunks/s", "µs", over("echo")),
    Row("E4-core", "share of a core at 50,000 chunks/s", "cores", itself),
    Row("E4-sent", "chunks/s that came back of 50,000", "/s", itself, higher=True),
    *_long_prompt_rows(),
    *_envoy_rows(),
    Row("T1", "exec to first accepted connection ÷ echo", "ms", over("echo"), 1.5, 1.2),
    Row("B1", "stripped handoff-epp, system libraries not counted", "MB", itself, 4.0, 2.0, True),
]

METRICS = ["E1", "E2", "E3", "E4", "L", "V", "T1", "B1"]
TABLE = Table(ROWS, ["echo", "envoy", "envoy+echo", "envoy+epp", "epp", "epp-aggregated", "epp-tokens"], "epp",
              "compare-epp")
