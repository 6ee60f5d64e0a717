#!/usr/bin/env python3
"""Fails when a request costs more user-space instructions than its budget. Deterministic, so it can gate a merge."""

import argparse
import sys

from compare import add_common_arguments, choose_cores, options_of, raise_on_termination
from rig import RigError
from rig.bench import Bench
from rig.callgrind import instructions_per_request
from rig.children import Children
from rig.program import run_in_work_dir


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_arguments(parser)
    parser.add_argument("--product", default="sidecar", help="sidecar (default), nginx, haproxy or relay")
    parser.add_argument("--pass-through", type=int, default=45000, metavar="N",
                        help="budget of a 1 KB pass-through request (default 45000)")
    parser.add_argument("--prefill-decode", type=int, default=95000, metavar="N",
                        help="budget of a 1 KB P/D request (default 95000); the sidecar only")
    return parser.parse_args()


def check(arguments, work_dir):
    with Children(work_dir) as children:
        return check_with(arguments, children)


def check_with(arguments, children):
    product_core, driver_core = choose_cores()
    options = options_of(arguments)
    if arguments.product.split("-")[0] in options.missing():
        raise RigError(options.missing()[arguments.product.split("-")[0]])
    bench = Bench(children, options, product_core, driver_core, seconds=1, filler="plain")
    if arguments.product not in bench.products:
        raise RigError(f"--product {arguments.product}: must be one of {', '.join(bench.products)}")
    cases = [("pass-through", [], arguments.pass_through)]
    if arguments.product == "sidecar":
        cases.append(("P/D", [bench.prefill_header()], arguments.prefill_decode))
    within = True
    for name, headers, budget in cases:
        count = instructions_per_request(bench, arguments.product, headers)["per_request"]
        within &= count <= budget
        print(f"{arguments.product} {name}: {count:.0f} instructions per request, budget {budget}: "
              f"{'ok' if count <= budget else 'EXCEEDED'}")
    return 0 if within else 1


def main():
    arguments = parse_arguments()
    raise_on_termination()
    # 1 says that a budget is exceeded.
    return run_in_work_dir(arguments.keep_work, lambda work_dir: check(arguments, work_dir), error_code=2)


if __name__ == "__main__":
    sys.exit(main())
