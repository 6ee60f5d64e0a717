"""What the programs of the rig have in common: a work folder, errors as one line, the built tools."""

import os
import shutil
import sys
import tempfile

from . import RigError


def run_in_work_dir(keep, work, error_code=1):
    """Exit code of `work(folder)`. The folder is removed afterwards unless `keep`; an error is told and is `error_code`."""
    work_dir = tempfile.mkdtemp(prefix="handoff-bench-")
    try:
        return work(work_dir)
    except (RigError, OSError, ValueError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error_code
    except KeyboardInterrupt:
        print("error: interrupted before anything was measured", file=sys.stderr)
        return 130
    finally:
        if keep:
            print(f"work folder: {work_dir}", file=sys.stderr)
        else:
            shutil.rmtree(work_dir, ignore_errors=True)


def require_tools(paths):
    for path in paths:
        if not os.access(path, os.X_OK):
            raise RigError(f"{path} is missing: configure with -DHANDOFF_BUILD_BENCHMARKS=ON, build, and name the folder "
                           "with --bin")
