"""The only two time-outs of these tests. Nobody sleeps: a test waits for an event, or for the proof that none comes."""

import os
import threading
import time

SCALE = float(os.environ.get("HANDOFF_TEST_TIME_SCALE", "1"))

# Must not expire in a healthy run, however slow the machine.
PATIENCE = 60 * SCALE
# Expires in a healthy run: long enough to see what must not happen, had it been going to.
BRIEF = 0.15 * SCALE


def wait_until(condition):
    """For what tells nobody when it happens: looks again and again."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        threading.Event().wait(0.005)
