"""A process that gets no further descriptor for a while; it keeps what it has."""

import contextlib
import resource

import pytest

from .limits import SCALE


@contextlib.contextmanager
def without_descriptors(process):
    if SCALE > 1:
        # It takes every object for a wrong one then.
        pytest.skip("UndefinedBehaviorSanitizer looks at memory through a pipe, for which it needs descriptors")
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
