#!/usr/bin/env python3
"""Measures the Endpoint Picker side by side with a bare gRPC echo, and behind Envoy. See README.md in this folder."""

import argparse
import os
import shlex
import sys

from compare import choose_cores, environment_of, raise_on_termination
from rig import RigError, epp_metrics, machine, report
from rig.children import Children
from rig.epp_bench import EppBench
from rig.epp_goals import METRICS, TABLE
from rig.epp_products import EppOptions
from rig.program import run_in_work_dir

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", default=os.path.join(_ROOT, "build", "release", "bin"),
                        help="folder of the built tools, and of handoff-epp (default: build/release/bin)")
    parser.add_argument("--epp", help="another handoff-epp binary")
    parser.add_argument("--epp-env", action="append", default=[], metavar="NAME=VALUE",
                        help="further environment of the Endpoint Picker (repeatable)")
    parser.add_argument("--envoy", help="the envoy command (default: the one on PATH, or of scripts/envoy_binary.py)")
    parser.add_argument("--only", default=",".join(METRICS), help="comma list of " + ",".join(METRICS))
    parser.add_argument("--rounds", type=int, help="interleaved rounds, 1..50 (default 5; quick 1)")
    parser.add_argument("--seconds", type=float, help="length of one timed run, 0.2..120 (default 5; quick 0.5)")
    parser.add_argument("--quick", action="store_true", help="short runs: to see that all works, not for conclusions")
    parser.add_argument("--baseline", metavar="JSON", help="earlier result file: report rows that are 10 %% worse")
    parser.add_argument("--output", default=os.path.join(_ROOT, "bench-results"), help="folder of the result files")
    parser.add_argument("--keep-work", action="store_true", help="keep configurations and logs, and print where")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 5)
    arguments.seconds = arguments.seconds or (0.5 if arguments.quick else 5.0)
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


def measure(arguments, work_dir):
    options = EppOptions(arguments.bin, arguments.epp, arguments.envoy,
                         environment_of(arguments.epp_env, "--epp-env"))
    product_core, driver_core = choose_cores()
    facts = {
        "machine": machine.describe(),
        "versions": machine.versions(None, None),
        "commit": machine.commit(_ROOT),
        "command": shlex.join([os.path.basename(sys.argv[0])] + sys.argv[1:]),
        "missing": options.missing(),
    }
    baseline = report.read_baseline(arguments.baseline, TABLE)
    os.sched_setaffinity(0, {driver_core})
    rounds, complete = [], True
    with Children(work_dir) as children:
        bench = EppBench(children, options, product_core, driver_core, arguments.seconds)
        try:
            for number in range(arguments.rounds):
                rounds.append(epp_metrics.run_round(bench, number, arguments.selected, arguments.quick,
                                                    lambda text: print(text, file=sys.stderr)))
        except KeyboardInterrupt:
            complete = False
    print(report.markdown(bench, rounds, facts, baseline, complete, TABLE))
    path = report.save(arguments.output, bench, rounds, facts, complete, TABLE)
    print(f"raw numbers: {path}", file=sys.stderr)
    if not complete:
        return 130
    return 1 if any(current.errors for current in rounds) else 0


def main():
    arguments = parse_arguments()
    raise_on_termination()
    return run_in_work_dir(arguments.keep_work, lambda work_dir: measure(arguments, work_dir))


if __name__ == "__main__":
    sys.exit(main())
