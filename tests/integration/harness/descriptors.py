"""A process that gets no further descriptor for a while; it keeps what it has."""

import contextlib
import resource


@contextlib.contextmanager
def without_descriptors(process):
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
