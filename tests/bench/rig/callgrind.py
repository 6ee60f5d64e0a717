"""User-space instructions per request, by callgrind: the difference of two runs, so start-up cancels out."""

import os
import re
import shutil

from . import RigError

_START_SECONDS = 60


def instructions_per_request(bench, name, headers=(), body_bytes=1024, short=200, long=1200):
    if not shutil.which("valgrind"):
        raise RigError("valgrind is not installed")
    counts = [_run(bench, name, headers, body_bytes, requests) for requests in (short, long)]
    what = "instructions " + ("P/D" if headers else "pass-through")
    return bench.keep(what, name, {"requests": [short, long], "instructions": counts,
                                   "per_request": (counts[1] - counts[0]) / (long - short)})


def _run(bench, name, headers, body_bytes, requests):
    out = os.path.join(bench.children.work_dir, f"callgrind-{name}-{len(bench.raw)}-{requests}")
    wrapper = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", f"--log-file={out}.log"]
    with bench.running(name, wrapper=wrapper, start_seconds=_START_SECONDS) as target:
        bench.load(target, 1, body_bytes, headers=headers, requests=requests)
        bench.children.stop(target.child, seconds=60)  # the count is written at an orderly end
    try:
        with open(out) as file:
            match = re.search(r"^(?:totals|summary): (\d+)", file.read(), re.MULTILINE)
    except OSError:
        match = None
    if not match:
        raise RigError(f"{name} left no instruction count: it must end on SIGTERM within 60 s; see {out}.log")
    return int(match.group(1))
