#!/usr/bin/env python3
"""Measures the sidecar side by side with nginx, HAProxy and a bare relay. See README.md in this folder."""

import argparse
import os
import shlex
import signal
import sys

from rig import RigError, machine, metrics, report
from rig.bench import Bench
from rig.children import Children
from rig.goals import METRICS
from rig.products import Options
from rig.program import run_in_work_dir

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))


def add_common_arguments(parser):
    """Shared with callgrind_budget.py."""
    parser.add_argument("--bin", default=os.path.join(_ROOT, "build", "release", "bin"),
                        help="folder of the built tools, and of handoff-sidecar (default: build/release/bin)")
    parser.add_argument("--sidecar", help="another sidecar binary")
    parser.add_argument("--sidecar-arg", action="append", default=[], metavar="ARG",
                        help="further argument of the sidecar, as --sidecar-arg=--name (repeatable)")
    parser.add_argument("--sidecar-env", action="append", default=[], metavar="NAME=VALUE",
                        help="further environment of the sidecar (repeatable)")
    parser.add_argument("--keep-work", action="store_true", help="keep configurations and logs, and print where")


def environment_of(pairs, flag):
    env = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise RigError(f"{flag} {pair}: must be NAME=VALUE")
        env[name] = value
    return env


def options_of(arguments):
    return Options(arguments.bin, arguments.sidecar, arguments.sidecar_arg,
                   environment_of(arguments.sidecar_env, "--sidecar-env"))


def choose_cores():
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[1 if len(allowed) > 1 else 0]


def raise_on_termination():
    """SIGTERM unwinds like Ctrl-C, so that the children are ended."""

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_arguments(parser)
    parser.add_argument("--only", default=",".join(METRICS), help="comma list of " + ",".join(METRICS))
    parser.add_argument("--rounds", type=int, help="interleaved rounds, 1..50 (default 5; quick 2)")
    parser.add_argument("--seconds", type=float, help="length of one timed run, 0.2..120 (default 5; quick 1)")
    parser.add_argument("--quick", action="store_true", help="short runs: to see that all works, not for conclusions")
    parser.add_argument("--filler", choices=("plain", "prose"), default="plain",
                        help="prompt text: one letter, or words with JSON escapes")
    parser.add_argument("--baseline", metavar="JSON", help="earlier result file: report ratios that grew by 10 %%")
    parser.add_argument("--output", default=os.path.join(_ROOT, "bench-results"), help="folder of the result files")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 5)
    arguments.seconds = arguments.seconds or (1.0 if arguments.quick else 5.0)
    if not 1 <= arguments.rounds <= 50:
        parser.error("--rounds must be 1..50")
    if not 0.2 <= arguments.seconds <= 120:
        parser.error("--seconds must be 0.2..120")
    wanted = [name.strip().upper() for name in arguments.only.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in METRICS]
    if unknown or not wanted:
        parser.error(f"--only: unknown {','.join(unknown) or 'empty list'}; choose from {','.join(METRICS)}")
    arguments.selected = [name for name in METRICS if name in wanted]
    return arguments


def measure(arguments, options, work_dir):
    product_core, driver_core = choose_cores()
    facts = {
        "machine": machine.describe(),
        "versions": machine.versions(options.nginx, options.haproxy),
        "commit": machine.commit(_ROOT),
        "command": shlex.join([os.path.basename(sys.argv[0])] + sys.argv[1:]),
        "missing": options.missing(),
    }
    for note in facts["missing"].values():
        print(f"note: {note}; only what is there is measured", file=sys.stderr)
    baseline = report.read_baseline(arguments.baseline)
    os.sched_setaffinity(0, {driver_core})
    rounds, complete = [], True
    with Children(work_dir) as children:
        bench = Bench(children, options, product_core, driver_core, arguments.seconds, arguments.filler)
        try:
            for number in range(arguments.rounds):
                rounds.append(metrics.run_round(bench, number, arguments.selected, arguments.quick,
                                                lambda text: print(text, file=sys.stderr)))
        except KeyboardInterrupt:
            complete = False
    print(report.markdown(bench, rounds, facts, baseline, complete))
    path = report.save(arguments.output, bench, rounds, facts, complete)
    print(f"raw numbers: {path}", file=sys.stderr)
    if not complete:
        return 130
    return 1 if any(current.errors for current in rounds) else 0


def main():
    arguments = parse_arguments()
    raise_on_termination()
    return run_in_work_dir(arguments.keep_work, lambda work_dir: measure(arguments, options_of(arguments), work_dir))


if __name__ == "__main__":
    sys.exit(main())
